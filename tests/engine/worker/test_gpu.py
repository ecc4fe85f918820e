"""The torch executor on a CUDA device: what the CPU's tests cannot tell. Without one all skip.

Never run so far: no machine of this project's has had a GPU.
"""

import pathlib
from typing import Any

import pytest
import torch

from triolet.engine.config import EngineSettings
from triolet.engine.model_config.config import GEMMA3, LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE
from triolet.engine.step_messages import RowSampling
from triolet.engine.worker.torch.executor import TorchExecutor
from triolet.engine.worker.torch.sampler import SampledRow, sample_tokens
from triolet.tests.accuracy.scored import Scorer

from ..model.tiny_models import random_tokens, write_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
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


@pytest.mark.parametrize("chunk", [150, 32, 1])
@pytest.mark.parametrize("name", list(MODELS))
def test_logits_are_near_the_cpus(tmp_path: pathlib.Path, name: str, chunk: int) -> None:
    """float32 on both sides; a GPU's products may be rounded to TF32."""
    folder = write_model(tmp_path, **MODELS[name])
    tokens = random_tokens(150, seed=3)
    exact = Scorer.of(folder, {"executor": "torch"}, length=150, chunk=150)
    expected = exact.logits(tokens, VOCABULARY)
    on_gpu = {"executor": "torch", "device": "cuda"}
    found = Scorer.of(folder, on_gpu, length=150, chunk=chunk).logits(tokens, VOCABULARY)
    assert abs(found - expected).max() < 2e-2 * abs(expected).max()


def test_the_same_logits_give_the_same_tokens() -> None:
    logits = torch.randn(64, 5000, generator=torch.Generator().manual_seed(1)) * 3
    rows = [
        SampledRow(
            RowSampling(
                temperature=(0.0, 0.7, 1.2)[index % 3],
                top_k=(0, 40)[index % 2],
                top_p=(1.0, 0.9)[index // 2 % 2],
                min_p=0.0,
                seed=index,
            ),
            position=index,
            seen={7: 2, 8: 0},
        )
        for index in range(64)
    ]
    here = sample_tokens(logits.clone(), rows)
    there = sample_tokens(logits.cuda(), rows)
    assert here == there


def test_kv_memory_is_what_is_free(tmp_path: pathlib.Path) -> None:
    folder = write_model(tmp_path)
    settings = EngineSettings(
        model=str(folder), executor="torch", device="cuda", max_num_seqs=2**20
    )
    ready = TorchExecutor(settings, 0).load(lambda phase, fraction: None)
    assert not ready.bitwise
    free, total = torch.cuda.mem_get_info()
    assert 0.02 * total < free < 0.3 * total
