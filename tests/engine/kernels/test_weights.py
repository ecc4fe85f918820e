"""Packed weights: every format of a checkpoint, dummies, and what a model asks for."""

import pathlib

import numpy
import pytest
import torch

from triolet.engine.kernels.weights import DummyTensors, plan_tensors
from triolet.engine.model.loader import DTYPES
from triolet.engine.model.registry import plan_weights
from triolet.engine.model.weight_folder import SINGLE_FILE
from triolet.engine.model_config.config import load_model_config

from ..model.reference import SIZES
from ..model.tiny_models import CPU, TINY, random_tokens, write_config, write_model
from .small_models import Driver, load_native

FAMILIES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
TOKENS = random_tokens(20, seed=1)


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_the_tensors_asked_for_are_those_of_torch(
    tmp_path: pathlib.Path, architecture: str, tied: bool
) -> None:
    bias = {"attention_bias": True} if architecture in (FAMILIES[0], *FAMILIES[3:]) else {}
    folder = write_config(tmp_path, architectures=[architecture], tie_word_embeddings=tied, **bias)
    config = load_model_config(folder)
    assert plan_tensors(config) == plan_weights(config)


@pytest.mark.usefixtures("kernels_here")
@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32", "float64"])
def test_every_format_gives_the_same_weights(tmp_path: pathlib.Path, stored: str) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    config = load_model_config(write_config(tmp_path, tie_word_embeddings=False))
    generator = torch.Generator().manual_seed(5)
    # Exact in every format: eighths below 2.
    tensors = {
        name: torch.randint(-15, 16, shape, generator=generator).to(getattr(torch, stored)) / 8
        for name, shape in plan_weights(config).items()
    }
    assert getattr(torch, stored) in DTYPES.values()
    safetensors.save_file(tensors, tmp_path / SINGLE_FILE)
    logits = Driver(load_native(tmp_path), [[0, 1]]).step([(0, 0, TOKENS)])
    safetensors.save_file(
        {name: tensor.float() for name, tensor in tensors.items()}, tmp_path / SINGLE_FILE
    )
    expected = Driver(load_native(tmp_path), [[0, 1]]).step([(0, 0, TOKENS)])
    assert numpy.isfinite(expected).all()
    assert numpy.array_equal(logits, expected)


def test_dummies_depend_on_the_name_alone() -> None:
    source = DummyTensors()
    x, y = (source.take(name, (64, 100)).values for name in ("x", "y"))
    assert numpy.array_equal(x, source.take("x", (64, 100)).values)
    assert not numpy.array_equal(x, y)
    assert float(x.astype(numpy.float64).std()) == pytest.approx(0.1, rel=0.1)
    assert source.take("norm", (3,)).values.tolist() == [1, 1, 1]
    bias = source.take("k.bias", (900,)).values.astype(numpy.float64)
    assert float(bias.std()) == pytest.approx(0.1, rel=0.1)


@pytest.mark.usefixtures("kernels_here")
def test_a_file_of_tied_weights_may_hold_the_head_and_it_is_not_used(
    tmp_path: pathlib.Path,
) -> None:
    write_model(tmp_path)
    assert TINY["tie_word_embeddings"]
    assert CPU.type == "cpu"
    logits = Driver(load_native(tmp_path), [[0, 1]]).step([(0, 0, TOKENS)])
    assert logits.shape == (len(TOKENS), TINY["vocab_size"])
    assert SIZES["hidden_size"] == TINY["hidden_size"]
