"""Qwen3-MoE against `transformers`: routers, layers without experts, both forms of the weights."""

import pathlib
from typing import Any

import pytest
import transformers

from .reference import check_against_reference

pytestmark = pytest.mark.slow
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "head_dim": 16}
VARIANTS: dict[str, dict[str, Any]] = {
    "probabilities as they are": {**EXPERTS, "norm_topk_prob": False},
    "probabilities normed": {**EXPERTS, "norm_topk_prob": True, "tie_word_embeddings": True},
    "a dense layer by name": {**EXPERTS, "mlp_only_layers": [1], "attention_bias": True},
    "experts in every second layer": {**EXPERTS, "decoder_sparse_step": 2},
    "all experts for everybody": {**EXPERTS, "num_experts_per_tok": 6},
    "a window": {**EXPERTS, "sliding_window": 30, "use_sliding_window": True},
}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_logits_and_greedy_tokens_are_the_references(tmp_path: pathlib.Path, variant: str) -> None:
    check_against_reference(tmp_path, transformers.Qwen3MoeForCausalLM, **VARIANTS[variant])


def test_experts_stored_as_one_tensor_are_the_same_model(tmp_path: pathlib.Path) -> None:
    check_against_reference(
        tmp_path, transformers.Qwen3MoeForCausalLM, save={"save_original_format": False}, **EXPERTS
    )
