"""The native executor: its name, numerics id and refusals, and when "auto" chooses it."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from triolet.engine.errors import InvalidParameter
from triolet.engine.kernels import library, shared_memory
from triolet.engine.kernels.library import machine_isas
from triolet.engine.kernels.shared_memory import has_all_pages
from triolet.engine.model_config.config import load_model_config
from triolet.engine.place_memory import PlaceMemory, open_memory_of_places
from triolet.engine.step_messages import KVMemory, StepResult, WorkerReady
from triolet.engine.worker.executors import make_executor
from triolet.engine.worker.native.executor import NativeExecutor, native_fault

from ...kernels.small_models import needs_kernels
from ...kernels.test_shared_memory import needs_huge_pages
from ...model.tiny_models import write_config, write_model
from ..test_executors import boot, change_a_weight, first_step, ready, settings_of

pytestmark = needs_kernels


def test_its_name_and_times(tmp_path: pathlib.Path) -> None:
    executor = NativeExecutor(settings_of(write_config(tmp_path)), 0)
    assert executor.name == "native"
    boot(executor)
    assert executor.name == f"native {machine_isas()[0]}"
    result = first_step(executor)
    assert 0 < result.sample_s < result.compute_s


def test_the_numerics_id_names_the_instruction_set(tmp_path: pathlib.Path) -> None:
    folder = write_config(tmp_path)
    ids = {ready(NativeExecutor, folder, isa=isa).numerics_id for isa in machine_isas()}
    assert len(ids) == len(machine_isas())


def test_what_it_does_not_serve_is_refused_with_the_reason(tmp_path: pathlib.Path) -> None:
    write_config(tmp_path)
    with pytest.raises(InvalidParameter, match=r"cannot be native: .* on a CPU, not on cuda"):
        ready(NativeExecutor, tmp_path, device="cuda")
    with pytest.raises(InvalidParameter, match="blocks of 16 tokens"):
        ready(NativeExecutor, tmp_path, block_tokens=32)
    with pytest.raises(InvalidParameter, match="isa must be one of"):
        settings_of(tmp_path, isa="sse9")
    with pytest.raises(InvalidParameter, match="heads of 514 channels"):
        ready(NativeExecutor, write_config(tmp_path, head_dim=514))


def test_auto_is_native_where_it_can_be(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_config(tmp_path)
    assert native_fault(settings_of(folder), load_model_config(folder)) == ""
    auto = make_executor(settings_of(folder), 0, lambda seconds: None)
    assert type(auto).__name__ == "NativeExecutor"
    on_gpu = make_executor(settings_of(folder, device="cuda"), 0, lambda seconds: None)
    assert type(on_gpu).__name__ == "TorchExecutor"
    assert caplog.text == ""


def test_auto_is_torch_where_there_are_no_kernels(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    executor = make_executor(settings_of(write_config(tmp_path)), 0, lambda seconds: None)
    assert type(executor).__name__ == "TorchExecutor"
    assert "no C++ compiler was found at installation" in caplog.text


@pytest.fixture
def memory() -> Iterator[PlaceMemory]:
    """Of a run, and of one place in it."""
    with open_memory_of_places() as (place,):
        yield place


def life(
    folder: pathlib.Path, place: PlaceMemory | None, **changes: Any
) -> tuple[WorkerReady, StepResult]:
    """A worker's, with the memory of those before: what it promises, and its first step."""
    executor = NativeExecutor(settings_of(folder, **changes), 0, memory=place)
    return boot(executor), first_step(executor)


@needs_huge_pages
def test_the_next_life_finds_its_memory_and_computes_the_same(
    tmp_path: pathlib.Path, memory: PlaceMemory
) -> None:
    folder = write_model(tmp_path)
    alone = life(folder, None, load_format="auto")
    first = life(folder, memory, load_format="auto")
    os.pwrite(memory.cache, b"\xff" * 2**20, 0)  # no numbers: what a life has left is not read
    second = life(folder, memory, load_format="auto")
    assert [each[0].kv_memory for each in (alone, first, second)] == list(KVMemory)
    promises = [attrs.evolve(each[0], kv_memory=KVMemory.OWN) for each in (alone, first, second)]
    assert promises[0] == promises[1] == promises[2]
    assert first[1].token_ids == second[1].token_ids == alone[1].token_ids
    assert all(has_all_pages(fd, os.fstat(fd).st_size) for fd in memory.fds)


@needs_huge_pages
def test_a_folder_that_was_exchanged_is_noticed_and_the_weights_stay(
    tmp_path: pathlib.Path, memory: PlaceMemory, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_model(tmp_path)
    before = life(folder, memory, load_format="auto")
    change_a_weight(folder)
    after = life(folder, memory, load_format="auto")
    assert after[0].numerics_id == before[0].numerics_id
    assert after[1].token_ids == before[1].token_ids
    assert "have changed since they were loaded" in caplog.text


@needs_huge_pages
def test_other_settings_make_a_copy_with_an_id_of_its_own(
    tmp_path: pathlib.Path, memory: PlaceMemory, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_model(tmp_path)
    shared = life(folder, memory, load_format="auto")
    assert "a copy of this worker's own" not in caplog.text
    copied = life(folder, memory, load_format="dummy")
    assert copied[0].numerics_id != shared[0].numerics_id
    assert "a copy of this worker's own" in caplog.text
    again = life(folder, memory, load_format="auto")[0]
    assert again == attrs.evolve(shared[0], kv_memory=KVMemory.FOUND)


def test_without_huge_pages_nothing_is_shared(
    tmp_path: pathlib.Path, memory: PlaceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path)
    monkeypatch.setattr(shared_memory, "_COLLAPSE", 1000)  # advice that no kernel knows
    with_fds, without = life(folder, memory), life(folder, None)
    assert with_fds[0] == without[0]
    assert [os.fstat(fd).st_size for fd in memory.fds] == [0, 0, 0]
