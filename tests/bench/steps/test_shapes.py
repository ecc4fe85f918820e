"""Folders of random weights: whole, the same each time, loadable, and their tokens are text."""

import pathlib

import attrs
import numpy as np
import pytest
import torch

from triolet.bench.steps.shapes import (
    SMALL,
    TINY,
    Shape,
    bfloat16_bits,
    shape_folder,
)
from triolet.engine.config import EngineSettings
from triolet.engine.worker.torch.executor import TorchExecutor

LLAMA = attrs.evolve(TINY, name="l", vocab_size=600, hidden_size=32, intermediate_size=48)
QWEN = attrs.evolve(SMALL, name="q", vocab_size=600, hidden_size=32, layers=2, head_dim=16)


@pytest.mark.parametrize("shape", [LLAMA, QWEN], ids=lambda shape: shape.name)
def test_a_folder_can_be_computed_with(shape: Shape, tmp_path: pathlib.Path) -> None:
    settings = EngineSettings(model=str(shape_folder(shape, tmp_path)), threads=1, kv_blocks=4)
    ready = TorchExecutor(settings, 0).load(lambda phase, fraction: None)
    assert ready.vocab_size == 600


def test_rounding_is_torchs() -> None:
    values = np.random.default_rng(1).standard_normal(10_000).astype(np.float32)
    ours = torch.from_numpy(bfloat16_bits(values).view(np.int16))
    assert torch.equal(ours, torch.from_numpy(values).bfloat16().view(torch.int16))
