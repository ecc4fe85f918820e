"""Qwen2 against `transformers`: biases, ties, and windows of some layers."""

import pathlib
from typing import Any

import pytest
import transformers

from .reference import check_against_reference

pytestmark = pytest.mark.slow
SLIDING, FULL = "sliding_attention", "full_attention"
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "a window that is not used": {"sliding_window": 20, "use_sliding_window": False},
    "a window from the second layer on": {
        "sliding_window": 20,
        "use_sliding_window": True,
        "max_window_layers": 1,
    },
    "layer types": {
        "sliding_window": 33,
        "use_sliding_window": True,
        "layer_types": [SLIDING, FULL, SLIDING],
    },
    "yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}},
}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_logits_and_greedy_tokens_are_the_references(tmp_path: pathlib.Path, variant: str) -> None:
    check_against_reference(tmp_path, transformers.Qwen2ForCausalLM, **VARIANTS[variant])
