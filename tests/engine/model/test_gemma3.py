"""Gemma 3 against `transformers`: windows with a base of their own, the text part of a whole."""

import pathlib
from typing import Any

import pytest
import transformers

from .reference import SIZES, check_against_reference

SLIDING, FULL = "sliding_attention", "full_attention"
TYPES = [SLIDING, FULL, SLIDING]
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
VARIANTS: dict[str, dict[str, Any]] = {
    "heads wider than the hidden state": {"head_dim": 32, "sliding_window_pattern": 2},
    "a scale of its own": {"head_dim": 16, "query_pre_attn_scalar": 40, "layer_types": TYPES},
    "biases": {"head_dim": 16, "attention_bias": True},
    "logits bent back": {"head_dim": 16, "final_logit_softcapping": 5.0},
    "an untied head": {"head_dim": 16, "tie_word_embeddings": False},
    "a stretch of the layers that see all": {
        "head_dim": 16,
        "layer_types": TYPES,
        "rope_parameters": {FULL: LINEAR, SLIDING: {"rope_type": "default", "rope_theta": 5e3}},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_logits_and_greedy_tokens_are_the_references(tmp_path: pathlib.Path, variant: str) -> None:
    settings = {"sliding_window": 20, **VARIANTS[variant]}
    check_against_reference(tmp_path, transformers.Gemma3ForCausalLM, **settings)


@pytest.mark.slow
def test_the_text_part_of_a_model_that_sees_is_the_references(tmp_path: pathlib.Path) -> None:
    vision = {"image_size": 8, "patch_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    check_against_reference(
        tmp_path,
        transformers.Gemma3ForConditionalGeneration,
        text_config={**SIZES, "head_dim": 16, "sliding_window": 20, "layer_types": TYPES},
        vision_config={**vision, "hidden_size": 8, "intermediate_size": 8},
        mm_tokens_per_image=4,
    )
