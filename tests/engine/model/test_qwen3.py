"""Qwen3 against `transformers`: normed heads of their own size."""

import pathlib
from typing import Any

import pytest
import transformers

from .reference import check_against_reference

pytestmark = pytest.mark.slow
VARIANTS: dict[str, dict[str, Any]] = {
    "heads wider than the hidden state": {"head_dim": 32, "tie_word_embeddings": True},
    "biases": {"head_dim": 16, "attention_bias": True},
    "a window": {
        "head_dim": 20,
        "sliding_window": 30,
        "use_sliding_window": True,
        "max_window_layers": 2,
    },
}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_logits_and_greedy_tokens_are_the_references(tmp_path: pathlib.Path, variant: str) -> None:
    check_against_reference(tmp_path, transformers.Qwen3ForCausalLM, **VARIANTS[variant])
