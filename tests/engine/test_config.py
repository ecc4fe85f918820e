"""Settings: bounds by name, and a digest that any change moves."""

import math
from typing import Any

import attrs
import pytest

from triolet.engine.config import STEP_TOKENS_MAX, EngineSettings
from triolet.engine.errors import InvalidParameter

REFUSED = [
    {"executor": "tpu"},
    {"load_format": "pickle"},
    {"workers": 0},
    {"workers": 2},  # of torch, which is the default
    {"block_tokens": 0},
    {"max_num_seqs": 0},
    {"max_num_batched_tokens": 0},
    {"max_num_batched_tokens": 10**12},
    {"max_num_seqs": STEP_TOKENS_MAX + 1},
    {"block_tokens": STEP_TOKENS_MAX + 1},
    {"kv_blocks": -1},
    {"step_timeout_s": 0.0},
    {"max_num_seqs": 2.5},
    {"kv_blocks": True},
    {"prefix_cache": 1},
    {"device": None},
    {"null_step_s": "1"},
    {"step_timeout_s": math.nan},
    {"orphan_s": math.inf},
    {"null_step_s": math.nan},
    {"steps_in_flight": 0},
    {"steps_in_flight": 3},
    {"scheduling_policy": "lifo"},
]


@pytest.mark.parametrize("values", REFUSED, ids=str)
def test_out_of_range_is_refused_by_name(values: dict[str, object]) -> None:
    (field,) = values
    with pytest.raises(InvalidParameter) as caught:
        EngineSettings(model="m", **values)  # type: ignore[arg-type]
    assert caught.value.parameter == field


def test_the_digest_covers_every_field() -> None:
    base = EngineSettings(model="m", executor="null")
    assert base.digest() == EngineSettings(model="m", executor="null").digest()
    for field in attrs.fields(EngineSettings):
        value = attrs.asdict(base)[field.name]
        other = attrs.evolve(base, **{field.name: _changed(value)})
        assert other.digest() != base.digest(), field.name


def _changed(value: Any) -> Any:
    """Another allowed value of the same type."""
    if isinstance(value, str):
        others = {"auto": "dummy", "null": "torch", "priority": "fcfs", "": "avx2"}
        return others.get(value, value + "x")
    return not value if isinstance(value, bool) else value + (-1 if value > 1 else 1)
