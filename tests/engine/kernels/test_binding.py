"""The binding: structures, layout, weights as they are packed, and steps that are refused."""

import ctypes
import pathlib
from collections.abc import Callable
from typing import Any

import attrs
import numpy
import pytest
import torch

from triolet.engine.kernels.binding import (
    LayerPointers,
    ModelWeights,
    NativeFault,
    StepBatch,
    address_of,
    declare_functions,
    take_memory,
)
from triolet.engine.kernels.layout import (
    ARCHITECTURES,
    Layout,
    layout_fault,
)
from triolet.engine.kernels.library import machine_isas, open_library
from triolet.engine.kernels.model import ForwardStep, int32s
from triolet.engine.kernels.sampler import ROW_PARAMETERS, SampleCall, ScoreCall
from triolet.engine.kernels.weights import DummyTensors, plan_tensors
from triolet.engine.model.loader import DTYPES
from triolet.engine.model.registry import plan_weights
from triolet.engine.model.weight_folder import SINGLE_FILE
from triolet.engine.model_config import config as model_config
from triolet.engine.model_config.config import ModelConfig, load_model_config
from triolet.engine.worker.numerics import exact_log

from ..model.tiny_models import TINY, random_tokens, write_config, write_model
from .small_models import BLOCKS, Driver, load_native, needs_kernels

GOOD = ForwardStep(
    token_ids=int32s([5, 6, 7]),
    rows=int32s([0, 1]),
    begins=int32s([0, 0]),
    counts=int32s([2, 1]),
    block_tables=numpy.array([[1, 2], [3, 4]], numpy.int32),
    logit_tokens=int32s([1, 2]),
)
BAD: dict[str, tuple[Callable[[ForwardStep], ForwardStep], int]] = {
    "a negative position": (lambda s: attrs.evolve(s, begins=int32s([-1, 0])), 1),
    "a position beyond the last": (lambda s: attrs.evolve(s, begins=int32s([0, 2**31 - 1])), 1),
    "a sequence of nothing": (lambda s: attrs.evolve(s, counts=int32s([3, 0])), 1),
    "a table that is too short": (lambda s: attrs.evolve(s, begins=int32s([0, 32])), 2),
    "a block that there is not": (
        lambda s: attrs.evolve(s, block_tables=s.block_tables + BLOCKS), 2
    ),
    "a negative block": (lambda s: attrs.evolve(s, block_tables=s.block_tables - 2), 2),
    "counts that do not add up": (lambda s: attrs.evolve(s, counts=int32s([2, 2])), 3),
    "a token out of the vocabulary": (lambda s: attrs.evolve(s, token_ids=int32s([5, 6, 101])), 4),
    "a negative token": (lambda s: attrs.evolve(s, token_ids=int32s([-1, 6, 7])), 4),
    "logits of no token": (lambda s: attrs.evolve(s, logit_tokens=int32s([1, 3])), 5),
}  # fmt: skip


def test_structures_have_the_sizes_of_the_other_side() -> None:
    """Whose fields are 4 or 8 bytes in the same order; one 4 of `StepBatch` fills up."""
    assert ctypes.sizeof(LayerPointers) == 19 * 8
    assert ctypes.sizeof(ModelWeights) == 22 * 4 + 5 * 8
    assert ctypes.sizeof(StepBatch) == 6 * 4 + 7 * 8
    assert ROW_PARAMETERS.itemsize == 7 * 8 + 12 * 4
    assert ctypes.sizeof(SampleCall) == 14 * 8 + 4 * 4
    assert ctypes.sizeof(ScoreCall) == 7 * 8 + 4 * 4


@needs_kernels
@pytest.mark.parametrize("case", list(BAD))
def test_an_inconsistent_step_is_refused_and_changes_nothing(
    tmp_path: pathlib.Path, case: str
) -> None:
    model = load_native(write_config(tmp_path), dummy=True)
    expected = model.forward(GOOD).copy()
    spoil, code = BAD[case]
    with pytest.raises(NativeFault) as caught:
        model.forward(spoil(GOOD))
    assert caught.value.code == code
    assert str(caught.value)
    assert numpy.array_equal(model.forward(GOOD), expected)


@needs_kernels
def test_logits_of_a_token_that_is_not_there_are_refused(tmp_path: pathlib.Path) -> None:
    model = load_native(write_config(tmp_path), dummy=True)
    kept = attrs.evolve(GOOD, keeps_all=True)
    model.forward(kept)
    with pytest.raises(NativeFault, match="not in the step"):
        model.logits(kept, int32s([3]))


@needs_kernels
def test_logits_of_tokens_that_were_not_kept_are_refused(tmp_path: pathlib.Path) -> None:
    model = load_native(write_config(tmp_path), dummy=True)
    model.forward(GOOD)
    with pytest.raises(ValueError, match="as far as logits"):
        model.logits(GOOD, int32s([0]))


@needs_kernels
def test_more_than_the_memory_was_made_for_is_refused(tmp_path: pathlib.Path) -> None:
    model = load_native(write_config(tmp_path), dummy=True)
    many = attrs.evolve(GOOD, logit_tokens=int32s([1] * (model.logit_rows_max + 1)))
    with pytest.raises(ValueError, match="rows of logits"):
        model.forward(many)
    with pytest.raises(ValueError, match="a step of"):
        model.forward(attrs.evolve(GOOD, token_ids=int32s([1] * (model.tokens_max + 1))))


@needs_kernels
def test_memory_that_cannot_have_pages_is_told() -> None:
    populate = declare_functions(open_library()).triolet_populate
    memory = take_memory(3 * 4096)
    populate(address_of(memory), len(memory), 2)
    assert not memory.any()
    nowhere = 2**46  # nothing is mapped there
    with pytest.raises(MemoryError, match="no pages for 8192 bytes"):
        populate(nowhere, 8192, 1)


@needs_kernels
@pytest.mark.parametrize("isa", machine_isas())
def test_noise_has_the_specified_bits(isa: str) -> None:
    random = numpy.random.default_rng(3).integers(0, 2**32, 2000, numpy.uint32)
    ends = numpy.array([0, 1, 2, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1], numpy.uint32)
    words = numpy.concatenate([random, ends])
    expected = [-exact_log(-exact_log((word + 0.5) * 2.0**-32)) for word in words.tolist()]
    noise = numpy.empty(len(words), numpy.float64)
    functions = declare_functions(open_library(isa))
    functions.triolet_noise(address_of(words), address_of(noise), len(words))
    assert noise.tolist() == expected
    assert (noise.min() > -3.14) & (noise.max() < 22.88)


def config(folder: pathlib.Path, **changes: Any) -> ModelConfig:
    return load_model_config(write_config(folder, **changes))


def test_parts_do_not_overlap_and_depend_on_the_config_alone(tmp_path: pathlib.Path) -> None:
    layout = Layout.of(config(tmp_path, tie_word_embeddings=False, attention_bias=True))
    assert layout == Layout.of(load_model_config(tmp_path))
    parts = sorted(layout.parts.values(), key=lambda part: part.begin)
    ends = [0, *(part.end for part in parts)]
    assert all(part.begin >= end for part, end in zip(parts, ends, strict=False))
    assert all(part.begin % 4096 == 0 for part in parts)
    assert layout.size >= parts[-1].end
    assert {"embedding", "head", "norm", "1.attention_output_bias"} <= set(layout.parts)


def test_what_the_kernels_lack_is_named(tmp_path: pathlib.Path) -> None:
    assert layout_fault(config(tmp_path)) == ""
    wide = config(tmp_path, head_dim=514, num_attention_heads=4)
    assert layout_fault(wide) == "heads of 514 channels are wider than 512"
    other = attrs.evolve(config(tmp_path), architecture="GPT2LMHeadModel")
    assert "GPT2LMHeadModel is none of LlamaForCausalLM" in layout_fault(other)


def test_every_family_of_the_loader_is_served() -> None:
    assert set(ARCHITECTURES) == set(model_config.ARCHITECTURES)


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


@needs_kernels
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


@needs_kernels
def test_a_file_of_tied_weights_may_hold_the_head_and_it_is_not_used(
    tmp_path: pathlib.Path,
) -> None:
    write_model(tmp_path)
    assert TINY["tie_word_embeddings"]
    logits = Driver(load_native(tmp_path), [[0, 1]]).step([(0, 0, TOKENS)])
    assert logits.shape == (len(TOKENS), TINY["vocab_size"])
