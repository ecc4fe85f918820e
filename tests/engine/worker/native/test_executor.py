"""The native executor: its name, numerics id and refusals, and when "auto" chooses it."""

import logging
import pathlib

import pytest

from triolet.engine.errors import InvalidParameter
from triolet.engine.kernels import library
from triolet.engine.kernels.library import machine_isas
from triolet.engine.model_config.config import load_model_config
from triolet.engine.worker.executors import make_executor
from triolet.engine.worker.native.executor import NativeExecutor, native_fault

from ...kernels.small_models import needs_kernels
from ...model.tiny_models import write_config
from ..test_executors import boot, first_step, ready, settings_of

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
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        other = make_executor(settings_of(folder, device="cuda"), 0, lambda seconds: None)
    assert type(other).__name__ == "TorchExecutor"
    assert "computing with torch, which is slower: the native kernels compute on a" in caplog.text


def test_auto_is_torch_where_there_are_no_kernels(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    executor = make_executor(settings_of(write_config(tmp_path)), 0, lambda seconds: None)
    assert type(executor).__name__ == "TorchExecutor"
    assert "no C++ compiler was found at installation" in caplog.text
