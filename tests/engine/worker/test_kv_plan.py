"""How many KV blocks, and how long a sequence may become."""

from typing import Any

import pytest

from triolet.engine.config import EngineSettings
from triolet.engine.errors import InvalidParameter
from triolet.engine.worker.kv_plan import KV_MEMORY_BYTES_DEFAULT, KvPlan, device_kv_bytes, plan_kv


@pytest.mark.parametrize(
    ("changes", "model_len", "token_bytes", "expected"),
    [
        # Enough memory: every sequence may be of full length; lengths are rounded up to blocks.
        ({"max_num_seqs": 4}, 100, 10, KvPlan(4 * 7, 100)),
        ({"max_num_seqs": 4, "max_model_len": 33}, 100, 10, KvPlan(4 * 3, 33)),
        # Memory bounds: 1600 bytes are ten blocks of 160.
        ({"kv_memory_bytes_max": 1600}, 100, 10, KvPlan(10, 100)),
        ({"kv_memory_bytes_max": 480}, 100, 10, KvPlan(3, 48)),
        # Given blocks are taken as they are, whatever they cost.
        ({"kv_blocks": 5, "kv_memory_bytes_max": 1}, 100, 10, KvPlan(5, 80)),
        # Nothing is kept: memory does not bound.
        ({"kv_memory_bytes_max": 1, "max_num_seqs": 2}, 100, 0, KvPlan(14, 100)),
    ],
)
def test_plan(changes: dict[str, Any], model_len: int, token_bytes: int, expected: KvPlan) -> None:
    settings = EngineSettings(model="m", **changes)
    assert plan_kv(settings, model_len=model_len, token_bytes=token_bytes) == expected


def test_what_settings_leave_open_is_what_there_is() -> None:
    settings = EngineSettings(model="m", max_num_seqs=4)
    assert plan_kv(settings, model_len=100, token_bytes=10, memory_bytes=480) == KvPlan(3, 48)
    token_bytes = KV_MEMORY_BYTES_DEFAULT // 160
    assert plan_kv(settings, model_len=100, token_bytes=token_bytes) == KvPlan(10, 100)


def test_a_device_keeps_room_for_weights_and_steps() -> None:
    assert device_kv_bytes(1000, weight_bytes=300, step_bytes=100) == 500
    assert device_kv_bytes(1000, weight_bytes=850, step_bytes=100) == 0


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"max_model_len": 101}, "max_model_len"),
        ({"max_model_len": 64, "kv_memory_bytes_max": 480}, "max_model_len"),
        ({"max_model_len": 64, "kv_blocks": 3}, "max_model_len"),
        ({"kv_memory_bytes_max": 159}, "kv_memory_bytes_max"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], parameter: str) -> None:
    settings = EngineSettings(model="m", **changes)
    with pytest.raises(InvalidParameter) as caught:
        plan_kv(settings, model_len=100, token_bytes=10)
    assert caught.value.parameter == parameter
