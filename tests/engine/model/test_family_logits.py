"""Every family against `transformers`: the same logits and greedy tokens, in every variant.

The native kernels are compared with the same variants (`kernels/test_model.py`).
"""

import pathlib
from typing import Any

import pytest
import transformers

from .reference import SIZES, check_against_reference

SLIDING, FULL = "sliding_attention", "full_attention"
TYPES = [SLIDING, FULL, SLIDING]
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
USED = {"sliding_window": 30, "use_sliding_window": True}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "head_dim": 16}
ALL_EXPERTS = {**EXPERTS, "num_experts_per_tok": 6}
# What the text part of a model of text and pictures is, and pictures as small as they can be.
PARTS = {
    "text_config": {**SIZES, "head_dim": 16, "sliding_window": 20, "layer_types": TYPES},
    "vision_config": {
        "image_size": 8, "patch_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
        "hidden_size": 8, "intermediate_size": 8,
    },
    "mm_tokens_per_image": 4,
}  # fmt: skip
# {architecture: {variant: what its config says beside the sizes}}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "LlamaForCausalLM": {
        "tied": {"tie_word_embeddings": True},
        "untied": {"tie_word_embeddings": False},
        "biases": {"attention_bias": True, "mlp_bias": True},
        "heads of their own size": {"head_dim": 24},
        "heads of 80 channels": {
            "head_dim": 80, "num_attention_heads": 2, "num_key_value_heads": 1
        },
        "llama3 rope": {"rope_parameters": LLAMA3},
        "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
        "dynamic rope": {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}},
        "yarn": {"rope_parameters": YARN},
    },
    "MistralForCausalLM": {
        f"window {window}": {"sliding_window": window} for window in (None, 2, 21, 64, 65)
    },
    "Qwen2ForCausalLM": {
        "tied": {"tie_word_embeddings": True},
        "a window that is not used": {"sliding_window": 20, "use_sliding_window": False},
        "a window from the second layer on": {**USED, "max_window_layers": 1},
        "layer types": {**USED, "layer_types": [SLIDING, FULL, SLIDING]},
        "yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}},
    },
    "Qwen3ForCausalLM": {
        "heads wider than the hidden state": {"head_dim": 32, "tie_word_embeddings": True},
        "biases": {"head_dim": 16, "attention_bias": True},
        "a window": {**USED, "head_dim": 20, "max_window_layers": 2},
    },
    "Qwen3MoeForCausalLM": {
        "probabilities as they are": {**EXPERTS, "norm_topk_prob": False},
        "probabilities normed": {**EXPERTS, "norm_topk_prob": True, "tie_word_embeddings": True},
        "a dense layer by name": {**ALL_EXPERTS, "mlp_only_layers": [1], "attention_bias": True},
        "experts in every second layer": {**EXPERTS, "decoder_sparse_step": 2},
        "all experts for every token": ALL_EXPERTS,
        "many experts, normed": {
            **EXPERTS, "num_experts": 19, "num_experts_per_tok": 19, "norm_topk_prob": True
        },
        "a window": {**EXPERTS, **USED},
        "stored as one tensor": {**EXPERTS, "save": {"save_original_format": False}},
    },
    "Gemma3ForCausalLM": {
        "heads wider than the hidden state": {"head_dim": 32, "sliding_window_pattern": 2},
        "a scale of its own": {"head_dim": 16, "query_pre_attn_scalar": 40, "layer_types": TYPES},
        "biases": {"head_dim": 16, "attention_bias": True},
        "logits bent back": {"head_dim": 20, "final_logit_softcapping": 5.0},
        "an untied head": {"head_dim": 16, "tie_word_embeddings": False},
        "a stretch of the layers that see all": {
            "head_dim": 16,
            "layer_types": TYPES,
            "rope_parameters": {
                FULL: LINEAR, SLIDING: {"rope_type": "default", "rope_theta": 5e3}
            },
        },
    },
    "Gemma3ForConditionalGeneration": {"the text part": PARTS},
}  # fmt: skip
# {its name: architecture, what the config says}
CASES = {
    f"{architecture.partition('For')[0]}, {name}": (architecture, changes)
    for architecture, variants in VARIANTS.items()
    for name, changes in variants.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_logits_and_tokens_are_the_references(tmp_path: pathlib.Path, case: str) -> None:
    architecture, changes = CASES[case]
    own = {"sliding_window": 20} if architecture == "Gemma3ForCausalLM" else {}
    check_against_reference(tmp_path, getattr(transformers, architecture), **{**own, **changes})
