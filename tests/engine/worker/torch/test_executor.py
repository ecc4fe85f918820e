"""The torch executor: devices, modes, and a torch without oneDNN."""

import pathlib
from typing import Any

import pytest
import torch

from triolet.engine.errors import InvalidParameter
from triolet.engine.model.layers import has_packed_linear
from triolet.engine.worker.torch.executor import TorchExecutor

from ...model.tiny_models import write_config
from ..test_executors import boot, first_step, ready, settings_of


def make(folder: pathlib.Path, **changes: Any) -> TorchExecutor:
    return TorchExecutor(settings_of(folder, **changes), 0)


def first_token(executor: TorchExecutor) -> int:
    return first_step(executor).token_ids[0]


def test_plain_mode_claims_no_bits(tmp_path: pathlib.Path) -> None:
    bitwise = ready(TorchExecutor, write_config(tmp_path))
    plain = ready(TorchExecutor, tmp_path, bitwise=False)
    assert (bitwise.bitwise, plain.bitwise) == (True, False)
    assert bitwise.numerics_id != plain.numerics_id


@pytest.mark.parametrize("device", ["tpu", "meta", "nonsense:1"])
def test_devices_that_are_not_there_are_refused(tmp_path: pathlib.Path, device: str) -> None:
    with pytest.raises(InvalidParameter, match="device"):
        ready(TorchExecutor, write_config(tmp_path), device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_cuda_device_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidParameter, match="not available"):
        ready(TorchExecutor, write_config(tmp_path), device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_computes_the_same_model(tmp_path: pathlib.Path) -> None:
    write_config(tmp_path)
    cuda, cpu = make(tmp_path, device="cuda"), make(tmp_path)
    assert not boot(cuda).bitwise
    boot(cpu)
    assert first_token(cuda) == first_token(cpu)


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
    assert found.numerics_id != ready(TorchExecutor, tmp_path).numerics_id
    assert first_token(executor) == first_token(expected)
