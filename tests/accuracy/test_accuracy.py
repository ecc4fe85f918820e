"""The small form of `python -m tests.accuracy`, and that its verdicts can be bad ones."""

import pathlib

import attrs
import pytest

from triolet.engine.model.bundled import bundled_model_folder

from .families import FAMILIES, Family, random_sequences
from .tables import (
    EXECUTORS,
    LogitsLine,
    PerplexityLine,
    held_out_windows,
    logits_table,
    perplexity_table,
)

pytestmark = pytest.mark.slow


# All variants of every family: `engine/model/test_family_logits`, `engine/kernels/test_model`.
@pytest.mark.parametrize("family", FAMILIES[-2:], ids=lambda family: family.name)
def test_logits_are_nearer_than_transformers_in_bfloat16(
    family: Family, tmp_path: pathlib.Path
) -> None:
    lines = list(logits_table(family, tmp_path, random_sequences(1, 100), EXECUTORS))
    assert len(lines) >= 3
    assert all(line.good for line in lines), "\n".join(map(str, lines))


def test_perplexity_of_the_bundled_model_is_the_references() -> None:
    folder = bundled_model_folder()
    lines = list(perplexity_table(folder, held_out_windows(folder, 1, 300), EXECUTORS))
    assert len(lines) >= 3
    assert all(line.good for line in lines), "\n".join(map(str, lines))
    assert 1.0 < lines[0].perplexity < 2.0


def test_what_is_too_far_is_told() -> None:
    line = LogitsLine("llama", "torch bf16", error=0.02, largest=0.1, error_max=0.02)
    assert not line.good
    assert str(line).endswith("TOO FAR")
    assert attrs.evolve(line, error_max=0.03).good
    assert not PerplexityLine("torch bf16", 1.502, 1.5).good
    assert PerplexityLine("torch bf16", 1.501, 1.5).good
