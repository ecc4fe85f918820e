"""Llama against `transformers`: biases that descendants have, and every stretch of rope."""

import pathlib
from typing import Any

import pytest
import transformers

from .reference import check_against_reference

pytestmark = pytest.mark.slow
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "heads of their own size": {"head_dim": 24},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    "dynamic rope": {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}},
    "yarn": {"rope_parameters": YARN},
}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_logits_and_greedy_tokens_are_the_references(tmp_path: pathlib.Path, variant: str) -> None:
    check_against_reference(tmp_path, transformers.LlamaForCausalLM, **VARIANTS[variant])
