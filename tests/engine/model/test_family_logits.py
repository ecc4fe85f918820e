"""Every family against `transformers`: the same logits and greedy tokens, in every variant."""

import pathlib
from typing import Any

import pytest
import transformers

from .reference import SIZES, check_against_reference

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS_OF_LLAMA: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "heads of their own size": {"head_dim": 24},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    "dynamic rope": {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}},
    "yarn": {"rope_parameters": YARN},
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", list(VARIANTS_OF_LLAMA))
def test_llama(tmp_path: pathlib.Path, variant: str) -> None:
    check_against_reference(tmp_path, transformers.LlamaForCausalLM, **VARIANTS_OF_LLAMA[variant])


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 2, 21, 64, 65])
def test_mistral(tmp_path: pathlib.Path, window: int | None) -> None:
    check_against_reference(tmp_path, transformers.MistralForCausalLM, sliding_window=window)


SLIDING, FULL = "sliding_attention", "full_attention"
VARIANTS_OF_QWEN2: dict[str, dict[str, Any]] = {
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


@pytest.mark.slow
@pytest.mark.parametrize("variant", list(VARIANTS_OF_QWEN2))
def test_qwen2(tmp_path: pathlib.Path, variant: str) -> None:
    check_against_reference(tmp_path, transformers.Qwen2ForCausalLM, **VARIANTS_OF_QWEN2[variant])


VARIANTS_OF_QWEN3: dict[str, dict[str, Any]] = {
    "heads wider than the hidden state": {"head_dim": 32, "tie_word_embeddings": True},
    "biases": {"head_dim": 16, "attention_bias": True},
    "a window": {
        "head_dim": 20,
        "sliding_window": 30,
        "use_sliding_window": True,
        "max_window_layers": 2,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", list(VARIANTS_OF_QWEN3))
def test_qwen3(tmp_path: pathlib.Path, variant: str) -> None:
    check_against_reference(tmp_path, transformers.Qwen3ForCausalLM, **VARIANTS_OF_QWEN3[variant])


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "head_dim": 16}
VARIANTS_OF_QWEN3_MOE: dict[str, dict[str, Any]] = {
    "probabilities as they are": {**EXPERTS, "norm_topk_prob": False},
    "probabilities normed": {**EXPERTS, "norm_topk_prob": True, "tie_word_embeddings": True},
    "a dense layer by name": {**EXPERTS, "mlp_only_layers": [1], "attention_bias": True},
    "experts in every second layer": {**EXPERTS, "decoder_sparse_step": 2},
    "all experts for everybody": {**EXPERTS, "num_experts_per_tok": 6},
    "a window": {**EXPERTS, "sliding_window": 30, "use_sliding_window": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", list(VARIANTS_OF_QWEN3_MOE))
def test_qwen3_moe(tmp_path: pathlib.Path, variant: str) -> None:
    check_against_reference(
        tmp_path, transformers.Qwen3MoeForCausalLM, **VARIANTS_OF_QWEN3_MOE[variant]
    )


@pytest.mark.slow
def test_experts_stored_as_one_tensor_are_the_same_model(tmp_path: pathlib.Path) -> None:
    check_against_reference(
        tmp_path, transformers.Qwen3MoeForCausalLM, save={"save_original_format": False}, **EXPERTS
    )


TYPES = [SLIDING, FULL, SLIDING]
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
VARIANTS_OF_GEMMA3: dict[str, dict[str, Any]] = {
    "heads wider than the hidden state": {"head_dim": 32, "sliding_window_pattern": 2},
    "a scale of its own": {"head_dim": 16, "query_pre_attn_scalar": 40, "layer_types": TYPES},
    "biases": {"head_dim": 16, "attention_bias": True},
    "logits bent back": {"head_dim": 16, "final_logit_softcapping": 5.0},
    "an untied head": {"head_dim": 16, "tie_word_embeddings": False},
    "a stretch of the layers that see all": {
        "head_dim": 16,
        "layer_types": TYPES,
        "rope_parameters": {
            FULL: LINEAR,
            SLIDING: {"rope_type": "default", "rope_theta": 5e3},
        },
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", list(VARIANTS_OF_GEMMA3))
def test_gemma3(tmp_path: pathlib.Path, variant: str) -> None:
    settings = {"sliding_window": 20, **VARIANTS_OF_GEMMA3[variant]}
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
