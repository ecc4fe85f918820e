"""The torch executor from folder to tokens: limits, numerics id, refusals."""

import pathlib
from typing import Any

import pytest
import torch

from triolet.engine.errors import InvalidParameter, ModelFolderError
from triolet.engine.model.layers import has_packed_linear
from triolet.engine.step_messages import WorkerReady
from triolet.engine.worker.torch.executor import TorchExecutor

from ...model.tiny_models import write_config, write_model
from ..whole_executors import boot, change_a_weight, check_boot, first_step, settings_of


def make(folder: pathlib.Path, **changes: Any) -> TorchExecutor:
    return TorchExecutor(settings_of(folder, **changes), 0)


def ready(folder: pathlib.Path, **changes: Any) -> WorkerReady:
    return boot(make(folder, **changes))


def first_token(executor: TorchExecutor) -> int:
    return first_step(executor).token_ids[0]


def test_from_folder_to_tokens(tmp_path: pathlib.Path) -> None:
    write_model(tmp_path)
    executor = make(tmp_path, load_format="auto")
    check_boot(executor)
    assert torch.get_num_threads() == 1
    dummy = make(tmp_path)
    boot(dummy)
    assert first_token(executor) == first_token(dummy)


def test_kv_memory_is_counted_in_bytes_of_this_model(tmp_path: pathlib.Path) -> None:
    write_config(tmp_path)
    token_bytes = 2 * 2 * 2 * 16 * 4  # keys and values, layers, kv heads, head size, float32
    found = ready(tmp_path, kv_memory_bytes_max=3 * 16 * token_bytes)
    assert (found.kv_blocks, found.max_model_len) == (3, 48)


def test_the_numerics_id_is_of_what_decides_about_bits(tmp_path: pathlib.Path) -> None:
    write_model(tmp_path)
    one = ready(tmp_path, load_format="auto").numerics_id
    assert one.startswith("torch-")
    assert ready(tmp_path, load_format="auto", threads=2, max_num_seqs=7).numerics_id == one
    torch.set_num_threads(1)
    others = {ready(tmp_path).numerics_id, ready(tmp_path, bitwise=False).numerics_id}
    change_a_weight(tmp_path)
    others.add(ready(tmp_path, load_format="auto").numerics_id)
    assert len(others - {one}) == 3


def test_plain_mode_claims_no_bits(tmp_path: pathlib.Path) -> None:
    assert not ready(write_config(tmp_path), bitwise=False).bitwise


@pytest.mark.parametrize("device", ["tpu", "meta", "nonsense:1"])
def test_devices_that_are_not_there_are_refused(tmp_path: pathlib.Path, device: str) -> None:
    with pytest.raises(InvalidParameter, match="device"):
        ready(write_config(tmp_path), device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_cuda_device_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidParameter, match="not available"):
        ready(write_config(tmp_path), device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_computes_the_same_model(tmp_path: pathlib.Path) -> None:
    write_config(tmp_path)
    cuda, cpu = make(tmp_path, device="cuda"), make(tmp_path)
    assert not boot(cuda).bitwise
    boot(cpu)
    assert first_token(cuda) == first_token(cpu)


def test_memory_that_no_machine_has_is_refused_before_it_is_asked_for(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(InvalidParameter, match="kv_blocks must be at most"):
        ready(write_config(tmp_path), kv_blocks=10**12)
    wide = {"hidden_size": 2**18, "intermediate_size": 2**18, "num_hidden_layers": 64}
    with pytest.raises(
        ModelFolderError, match=r"GiB for its weights as torch.float32, and cpu has"
    ):
        ready(write_config(tmp_path, **wide))


def test_a_torch_without_onednns_operators_is_told_of(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = make(write_config(tmp_path))
    assert boot(expected).bitwise
    assert caplog.text == ""
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    has_packed_linear.cache_clear()
    try:
        executor = make(tmp_path)
        found = boot(executor)
    finally:
        monkeypatch.undo()
        has_packed_linear.cache_clear()
    assert f"torch {torch.__version__} lacks the oneDNN operators" in caplog.text
    assert found.bitwise
    assert found.numerics_id != ready(tmp_path).numerics_id
    assert first_token(executor) == first_token(expected)


def test_a_folder_without_weights_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelFolderError, match="safetensors"):
        ready(write_config(tmp_path), load_format="auto")
