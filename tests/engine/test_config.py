"""Settings: bounds by name, and a digest that any change moves; cores and memory."""

import math
import os
import pathlib
import sys
from importlib import import_module
from typing import Any

import attrs
import pytest

from triolet.engine.config import (
    NATIVE_WORKER_MODULE,
    STEP_TOKENS_MAX,
    TORCH_WORKER_MODULE,
    WORKER_MODULE,
    EngineSettings,
    check_torch,
    worker_module_ahead,
)
from triolet.engine.errors import InvalidParameter
from triolet.engine.host import cores, has_torch, memory_bytes, threads_default

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
        if field.name.endswith("_endpoint"):
            value = "ipc:///a"  # and one of them needs the other
            base = attrs.evolve(base, kv_events_endpoint=value, kv_events_replay_endpoint=value)
        other = attrs.evolve(base, **{field.name: _changed(value)})
        assert other.digest() != base.digest(), field.name


def _changed(value: Any) -> Any:
    """Another allowed value of the same type."""
    if isinstance(value, str):
        others = {"auto": "dummy", "null": "torch", "priority": "fcfs", "": "avx2", "cpu": "cuda"}
        return others.get(value, value + "x")
    return not value if isinstance(value, bool) else value + (-1 if value > 1 else 1)


@pytest.mark.parametrize(("usable", "threads"), [({0}, 1), ({0, 1}, 1), ({2, 3, 5, 7}, 3)])
def test_one_core_is_left_to_the_others(
    monkeypatch: pytest.MonkeyPatch, usable: set[int], threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: usable)
    assert cores() == len(usable)
    assert threads_default() == threads


@pytest.mark.parametrize(
    ("content", "expected"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1),
     ("6400000 100000", 8), ("", 8), ("1 0", 8)],
)  # fmt: skip
def test_a_quota_counts_as_whole_cores(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, content: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "cpu.max").write_text(content)
    assert cores(tmp_path / "cpu.max") == expected
    assert cores(tmp_path / "none") == 8


def test_memory_is_counted_in_bytes() -> None:
    assert memory_bytes() > 2**27


@pytest.mark.parametrize("settings", [{"executor": "torch"}, {"device": "cuda"}])
def test_torch_that_is_asked_for_must_be_installed(settings: dict[str, Any]) -> None:
    chosen = EngineSettings(model="", **settings)
    check_torch(chosen, has_torch=True)
    ((name, value),) = settings.items()
    with pytest.raises(InvalidParameter, match=rf"{name} {value} needs PyTorch: pip install"):
        check_torch(chosen, has_torch=False)
    check_torch(EngineSettings(model=""), has_torch=False)


def test_torch_is_looked_for_where_imports_look(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_torch()
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not has_torch()


@pytest.mark.parametrize(
    ("settings", "module"),
    [
        ({}, NATIVE_WORKER_MODULE),
        ({"executor": "native"}, NATIVE_WORKER_MODULE),
        ({"executor": "null"}, WORKER_MODULE),
        ({"executor": "torch"}, TORCH_WORKER_MODULE),
        ({"device": "cuda"}, TORCH_WORKER_MODULE),
    ],
)
def test_a_worker_ahead_imports_what_its_executor_needs(
    settings: dict[str, Any], module: str
) -> None:
    assert worker_module_ahead(EngineSettings(model="", **settings)) == module
    import_module(module)
