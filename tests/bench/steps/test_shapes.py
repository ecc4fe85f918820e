"""Folders of random weights: whole, the same each time, loadable, and their tokens are text."""

import pathlib

import attrs
import numpy as np
import pytest
import safetensors.torch
import torch

from triolet.bench.load.schedule import WORDS
from triolet.bench.steps.shapes import (
    END_TOKEN,
    SHAPES,
    SMALL,
    TINY,
    Shape,
    bfloat16_bits,
    make_vocabulary,
    shape_folder,
    text_token_ids,
)
from triolet.engine.config import EngineSettings
from triolet.engine.worker.torch.executor import TorchExecutor
from triolet.runtime.text.tokenizer import Tokenizer

LLAMA = attrs.evolve(TINY, name="l", vocab_size=600, hidden_size=32, intermediate_size=48)
QWEN = attrs.evolve(SMALL, name="q", vocab_size=600, hidden_size=32, layers=2, head_dim=16)


@pytest.mark.parametrize("shape", [LLAMA, QWEN], ids=lambda shape: shape.name)
def test_a_folder_can_be_computed_with(shape: Shape, tmp_path: pathlib.Path) -> None:
    settings = EngineSettings(model=str(shape_folder(shape, tmp_path)), threads=1, kv_blocks=4)
    ready = TorchExecutor(settings, 0).load(lambda phase, fraction: None)
    assert ready.vocab_size == 600


@pytest.mark.parametrize("shape", [LLAMA, QWEN], ids=lambda shape: shape.name)
def test_tokens_that_are_no_text_have_no_weight_in_the_output(
    shape: Shape, tmp_path: pathlib.Path
) -> None:
    weights = safetensors.torch.load_file(shape_folder(shape, tmp_path) / "model.safetensors")
    output = weights["model.embed_tokens.weight" if shape.tied else "lm_head.weight"]
    silent = [int(i) for i in (output == 0).all(dim=1).nonzero()]
    vocabulary, _ = make_vocabulary(600)
    assert set(silent) == set(range(600)) - set(text_token_ids(shape))
    assert "\u00e9" in {vocabulary[i] for i in silent}
    assert 599 in silent


def test_words_of_the_load_are_a_token_each(tmp_path: pathlib.Path) -> None:
    tokenizer = Tokenizer.load(shape_folder(LLAMA, tmp_path))
    text = " " + " ".join(WORDS)
    token_ids = tokenizer.encode(text)
    assert len(token_ids) == len(WORDS)
    assert tokenizer.decode(token_ids) == text
    assert tokenizer.is_byte_level
    assert tokenizer.slicer.place is not None
    assert tokenizer.eos_token_ids == (599,)
    assert tokenizer.vocabulary_size == 600


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.name)
def test_a_vocabulary_has_no_token_twice(shape: Shape) -> None:
    vocabulary, merges = make_vocabulary(shape.vocab_size)
    assert len(set(vocabulary)) == len(vocabulary) == shape.vocab_size
    assert vocabulary[-1] == END_TOKEN
    known = set(vocabulary[:256])
    for left, right in merges:
        assert {left, right} <= known
        known.add(left + right)


def test_rounding_is_torchs() -> None:
    values = np.random.default_rng(1).standard_normal(10_000).astype(np.float32)
    ours = torch.from_numpy(bfloat16_bits(values).view(np.int16))
    assert torch.equal(ours, torch.from_numpy(values).bfloat16().view(torch.int16))
