"""The native executor from folder to tokens: limits, numerics id, refusals, and its choice."""

import logging
import pathlib
from typing import Any

import pytest

from triolet.engine.errors import InvalidParameter, ModelFolderError
from triolet.engine.kernels import library
from triolet.engine.kernels.library import machine_isas
from triolet.engine.model_config.config import load_model_config
from triolet.engine.step_messages import WorkerReady
from triolet.engine.worker.executors import make_executor
from triolet.engine.worker.native.executor import NativeExecutor, native_fault

from ...model.tiny_models import write_config, write_model
from ..whole_executors import boot, change_a_weight, check_boot, first_step, settings_of

pytestmark = pytest.mark.skipif(bool(library.native_fault()), reason="no compiler, no kernels")


def ready(folder: pathlib.Path, **changes: Any) -> WorkerReady:
    return boot(NativeExecutor(settings_of(folder, **changes), 0))


def test_from_folder_to_tokens(tmp_path: pathlib.Path) -> None:
    write_model(tmp_path)
    executor = NativeExecutor(settings_of(tmp_path, load_format="auto"), 0)
    assert executor.name == "native"
    check_boot(executor)
    assert executor.name == f"native {machine_isas()[0]}"
    result = first_step(executor)
    assert 0 < result.sample_s < result.compute_s


def test_kv_memory_is_counted_in_bytes_of_this_model(tmp_path: pathlib.Path) -> None:
    write_config(tmp_path)
    token_bytes = 2 * 2 * 2 * 32 * 2  # keys and values, layers, kv heads, head padded, bf16
    found = ready(tmp_path, kv_memory_bytes_max=3 * 16 * token_bytes)
    assert (found.kv_blocks, found.max_model_len) == (3, 48)


def test_the_numerics_id_is_of_what_decides_about_bits(tmp_path: pathlib.Path) -> None:
    write_model(tmp_path)
    one = ready(tmp_path, load_format="auto").numerics_id
    assert one.startswith("native-")
    assert ready(tmp_path, load_format="auto", threads=2, max_num_seqs=7).numerics_id == one
    others = {ready(tmp_path).numerics_id}
    others |= {
        ready(tmp_path, load_format="auto", isa=isa).numerics_id for isa in machine_isas()[1:]
    }
    change_a_weight(tmp_path)
    others.add(ready(tmp_path, load_format="auto").numerics_id)
    assert len(others - {one}) == len(machine_isas()) + 1


def test_what_it_does_not_serve_is_refused_with_the_reason(tmp_path: pathlib.Path) -> None:
    write_config(tmp_path)
    with pytest.raises(InvalidParameter, match=r"cannot be native: .* on a CPU, not on cuda"):
        ready(tmp_path, device="cuda")
    with pytest.raises(InvalidParameter, match="blocks of 16 tokens"):
        ready(tmp_path, block_tokens=32)
    with pytest.raises(InvalidParameter, match="isa must be one of"):
        settings_of(tmp_path, isa="sse9")
    with pytest.raises(InvalidParameter, match="heads of 514 channels"):
        ready(write_config(tmp_path, head_dim=514))


def test_memory_that_no_machine_has_is_refused_before_it_is_asked_for(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(InvalidParameter, match="kv_blocks must be at most"):
        ready(write_config(tmp_path), kv_blocks=10**12)
    wide = {"hidden_size": 2**18, "intermediate_size": 2**18, "num_hidden_layers": 64}
    with pytest.raises(ModelFolderError, match="GiB for its weights as bfloat16, and this machine"):
        ready(write_config(tmp_path, **wide))


def test_a_folder_is_checked_as_torch_checks_it(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelFolderError, match="safetensors"):
        ready(write_config(tmp_path), load_format="auto")
    write_model(tmp_path)
    write_config(tmp_path, num_hidden_layers=3)
    with pytest.raises(ModelFolderError, match=r"has no tensor model\.layers\.2\."):
        ready(tmp_path, load_format="auto")


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
