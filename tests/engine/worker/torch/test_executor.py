"""The torch executor: devices, modes, a torch without oneDNN, and a CUDA device if there is one."""

import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from triolet.engine.config import EngineSettings
from triolet.engine.errors import InvalidParameter
from triolet.engine.model.layers import has_packed_linear
from triolet.engine.model_config.config import GEMMA3, LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE
from triolet.engine.worker.torch.executor import TorchExecutor
from triolet.tests.accuracy.scored import Scorer

from ...gpu import on_gpu
from ...model.tiny_models import random_tokens, write_config, write_model
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


VOCABULARY = 101
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": [LLAMA]},
    "mistral": {"architectures": [MISTRAL], "sliding_window": 40},
    "qwen2": {"architectures": [QWEN2]},
    "qwen3": {"architectures": [QWEN3]},
    "qwen3 moe": {
        "architectures": [QWEN3_MOE],
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
    },
    "gemma3": {"architectures": [GEMMA3], "sliding_window": 40},
}


GPU = {"executor": "torch", "device": "cuda"}


@on_gpu
@pytest.mark.parametrize("bitwise", [True, False])
@pytest.mark.parametrize("name", list(MODELS))
def test_logits_are_near_the_cpus(tmp_path: pathlib.Path, name: str, bitwise: bool) -> None:
    """float32 on both sides; a GPU's products may be rounded to TF32."""
    folder = write_model(tmp_path, **MODELS[name])
    tokens = random_tokens(150, seed=3)
    exact = Scorer.of(folder, {"executor": "torch"}, length=150, chunk=150)
    expected = exact.logits(tokens, VOCABULARY)
    for chunk in (150, 32, 1):
        scorer = Scorer.of(folder, {**GPU, "bitwise": bitwise}, length=150, chunk=chunk)
        found = scorer.logits(tokens, VOCABULARY)
        assert abs(found - expected).max() < 2e-2 * abs(expected).max()


@on_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", list(MODELS))
def test_a_gpu_computes_the_same_bits_in_any_chunks(
    tmp_path: pathlib.Path, name: str, dtype: str
) -> None:
    """Beyond a tile, an attention's split and a window."""
    config = {"max_position_embeddings": 1024, "dtype": dtype, **MODELS[name]}
    folder = write_model(tmp_path, **config)
    tokens = random_tokens(700, seed=3)
    whole = Scorer.of(folder, GPU, length=700, chunk=700).logits(tokens, VOCABULARY)
    assert np.isfinite(whole).all()
    for chunk in (1, 13, 128, 500):
        found = Scorer.of(folder, GPU, length=700, chunk=chunk).logits(tokens, VOCABULARY)
        assert np.array_equal(found, whole)


@on_gpu
def test_kv_memory_is_what_is_free(tmp_path: pathlib.Path) -> None:
    folder = write_model(tmp_path, max_position_embeddings=2**17)
    settings = EngineSettings(
        model=str(folder), executor="torch", device="cuda", max_num_seqs=2**17
    )
    free, _ = torch.cuda.mem_get_info()
    ready = TorchExecutor(settings, 0).load(lambda phase, fraction: None)
    assert ready.bitwise
    assert 0.02 * free < torch.cuda.mem_get_info()[0] < 0.3 * free
