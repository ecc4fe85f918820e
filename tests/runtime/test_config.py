"""Settings are in range once they exist, and a wrong one is refused by its name."""

import math
from collections.abc import Callable
from typing import get_type_hints

import attrs
import pytest

from triolet.engine.config import EngineSettings
from triolet.engine.errors import InvalidParameter
from triolet.runtime.arguments import EngineArguments, HostArguments, RuntimeArguments
from triolet.runtime.config import (
    AdmissionLimits,
    HostSettings,
    InputLimits,
    RuntimeSettings,
    RuntimeTimes,
    StreamSettings,
    SupervisionSettings,
)

ENGINE = EngineSettings(model="m")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: RuntimeSettings(engine=ENGINE, engines=0), "engines"),
        (lambda: RuntimeSettings(engine=ENGINE, engines=100_000), "engines"),
        (lambda: RuntimeSettings(engine=ENGINE, spare_engines=100_000), "spare_engines"),
        (lambda: RuntimeSettings(engine=ENGINE, frontends=-1), "frontends"),
        (lambda: RuntimeSettings(engine=ENGINE, generation_config="x"), "generation_config"),
        (lambda: AdmissionLimits(active_requests_max=0), "admission.active_requests_max"),
        (lambda: AdmissionLimits(retry_after_s=math.nan), "admission.retry_after_s"),
        (lambda: InputLimits(threads=0), "input.threads"),
        (lambda: InputLimits(threads=1.5), "input.threads"),  # type: ignore[arg-type]
        (lambda: RuntimeTimes(grace_s="1"), "grace_s"),  # type: ignore[arg-type]
        (lambda: StreamSettings(window_tokens=0), "streams.window_tokens"),
        (lambda: RuntimeTimes(grace_s=math.inf), "grace_s"),
        (lambda: SupervisionSettings(backoff_max_s=0.01), "backoff_max_s"),
    ],
)
def test_a_wrong_value_is_refused_by_name(make: Callable[[], object], name: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        make()
    assert caught.value.parameter == name


def test_the_options_of_a_runtime_are_the_fields_of_its_settings() -> None:
    def fields_of(tree: type, *but: str) -> dict[str, object]:
        return {each.name: each.type for each in attrs.fields(tree) if each.name not in but}

    assert get_type_hints(EngineArguments) == fields_of(EngineSettings, "model")
    of_hosts = fields_of(HostSettings)
    of_hosts["key"] = of_hosts.pop("key_file")
    count = of_hosts.pop("hosts")
    assert get_type_hints(HostArguments) == of_hosts
    wanted = get_type_hints(EngineArguments) | of_hosts | fields_of(RuntimeSettings, "engine")
    wanted["hosts"] |= count
    assert get_type_hints(RuntimeArguments) == wanted
