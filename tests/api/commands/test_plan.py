"""What is wrong with a command is said before anything is spawned."""

import math
import pathlib
from typing import Any

import pytest

from triolet.api.commands.options import EngineOptions, ServeOptions
from triolet.api.commands.plan import is_loopback, make_plan
from triolet.api.settings import HttpLimits, ServerLimits, settings_of_text
from triolet.engine.errors import InvalidParameter, ModelFolderError
from triolet.runtime.config import StreamSettings, SupervisionSettings
from triolet.runtime.processes.root import ServePlan


def plan_of(
    model: str | None = None,
    engine: dict[str, Any] | None = None,
    **options: Any,
) -> ServePlan:
    return make_plan(model, ServeOptions(**options), EngineOptions(**engine or {}))


def test_without_a_model_it_is_the_bundled_one() -> None:
    plan = plan_of()
    assert plan.model_name == "triolet-bundled"
    settings = settings_of_text(plan.frontend_settings)
    assert settings.runtime == plan.settings


def test_options_reach_the_settings() -> None:
    plan = plan_of(
        restart_limit=7,
        restart_period=9.0,
        spare_engines=2,
        generation_config="none",
        resume_keep=0,
        log_format="json",
    )
    settings = plan.settings
    assert settings.supervision == SupervisionSettings(restart_limit=7, restart_period_s=9.0)
    assert (settings.spare_engines, settings.generation_config) == (2, "none")
    assert settings.logs.format == "json"
    assert settings_of_text(plan.frontend_settings).serve.resume_keep_s == 0


def test_rare_options_reach_the_settings() -> None:
    plan = plan_of(
        limits=ServerLimits(connections_max=7),
        streams=StreamSettings(window_tokens=9),
        backoff_max=11.0,
    )
    assert plan.settings.streams.window_tokens == 9
    assert plan.settings.supervision.backoff_max_s == 11
    assert settings_of_text(plan.frontend_settings).serve.limits.connections_max == 7


@pytest.mark.parametrize("wrong", [0, -1, math.inf, math.nan])
def test_limits_are_finite_and_above_zero(wrong: float) -> None:
    limits = ServerLimits(http=HttpLimits(head_s=wrong))
    with pytest.raises(InvalidParameter, match="above 0") as caught:
        plan_of(limits=limits)
    assert caught.value.parameter == "limits.http.head_s"


@pytest.mark.parametrize("wrong", [-1, 1001])
def test_how_long_text_waits_is_bounded_and_may_be_nothing(wrong: int) -> None:
    plan_of(limits=ServerLimits(merge_ms=0))
    with pytest.raises(InvalidParameter) as caught:
        plan_of(limits=ServerLimits(merge_ms=wrong))
    assert caught.value.parameter == "limits.merge_ms"


def test_an_open_address_needs_a_key() -> None:
    with pytest.raises(InvalidParameter, match="--api-key"):
        plan_of(host="0.0.0.0")
    plan = plan_of(host="0.0.0.0", api_key=("k",))
    assert settings_of_text(plan.frontend_settings).serve.api_keys == ("k",)


@pytest.mark.parametrize(
    "change",
    [
        {"port": 70000},
        {"frontends": 0},
        {"frontends": 257},
        {"engines": 0},
        {"spare_engines": -1},
        {"resume_keep": -1},
        {"resume_keep": math.inf},
        {"resume_keep": math.nan},
        {"log_format": "xml"},
        {"grace": -1.0},
        {"engine": {"executor": "x"}},
        {"engine": {"max_model_len": 4096}},
        {"engine": {"max_model_len": 4096, "executor": "null"}},
    ],
    ids=str,
)
def test_values_out_of_range_are_named(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        plan_of(**change)


@pytest.mark.parametrize(
    ("change", "parameter", "words"),
    [
        ({"api_key": ("",)}, "api_key", "empty"),
        ({"api_key": ("k", " ")}, "api_key", "empty"),
        ({"host": "0.0.0.0", "api_key": ("",)}, "api_key", "empty"),
        ({"allowed_host": ("a/b",)}, "allowed_host", "'a/b'"),
        ({"allowed_origin": ("app.example",)}, "allowed_origin", "scheme://name"),
    ],
    ids=str,
)
def test_what_every_frontend_would_stumble_over_is_said_before_one_is_spawned(
    change: dict[str, Any], parameter: str, words: str
) -> None:
    with pytest.raises(InvalidParameter, match=words) as caught:
        plan_of(**change)
    assert caught.value.parameter == parameter


def test_a_missing_folder_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelFolderError, match="nowhere"):
        plan_of(str(tmp_path / "nowhere"))


def test_loopback_names() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.1.2.3")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))


def test_an_architecture_is_looked_at_by_executors_that_compute(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 9, "architectures": ["GPT2LMHeadModel"]}')
    assert plan_of(str(tmp_path), {"executor": "null"})
    with pytest.raises(ModelFolderError, match=r"GPT2LMHeadModel.* not served: LlamaForCausalLM, "):
        plan_of(str(tmp_path))
