"""The smallest folder of each family: its config, and its tensors' names and shapes.

Written by hand, after checkpoints: what a model asks for is not taken from the model.
"""

from collections.abc import Mapping
from typing import Any

import attrs

HIDDEN, VOCABULARY, HEAD, MIDDLE, EXPERTS, EXPERT_MIDDLE = 16, 40, 8, 24, 3, 8
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": MIDDLE,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": HEAD,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
_LAYER = "model.layers.0."
_SHARED: Mapping[str, list[int]] = {
    "model.embed_tokens.weight": [VOCABULARY, HIDDEN],
    "model.norm.weight": [HIDDEN],
    _LAYER + "input_layernorm.weight": [HIDDEN],
    _LAYER + "post_attention_layernorm.weight": [HIDDEN],
    _LAYER + "self_attn.q_proj.weight": [2 * HEAD, HIDDEN],
    _LAYER + "self_attn.k_proj.weight": [HEAD, HIDDEN],
    _LAYER + "self_attn.v_proj.weight": [HEAD, HIDDEN],
    _LAYER + "self_attn.o_proj.weight": [HIDDEN, 2 * HEAD],
}
_HEAD_NORMS = {_LAYER + f"self_attn.{name}_norm.weight": [HEAD] for name in ("q", "k")}


@attrs.frozen
class Family:
    """A whole folder but for the tokenizer; tensors are float32."""

    name: str
    config: Mapping[str, Any]
    shapes: Mapping[str, list[int]]


def _mlp(prefix: str, middle: int) -> dict[str, list[int]]:
    return {
        _LAYER + prefix + "gate_proj.weight": [middle, HIDDEN],
        _LAYER + prefix + "up_proj.weight": [middle, HIDDEN],
        _LAYER + prefix + "down_proj.weight": [HIDDEN, middle],
    }


_EXPERTS_APART = {
    name: shape
    for number in range(EXPERTS)
    for name, shape in _mlp(f"mlp.experts.{number}.", EXPERT_MIDDLE).items()
}
_EXPERTS_FUSED = {
    _LAYER + "mlp.experts.gate_up_proj": [EXPERTS, 2 * EXPERT_MIDDLE, HIDDEN],
    _LAYER + "mlp.experts.down_proj": [EXPERTS, HIDDEN, EXPERT_MIDDLE],
}
_MOE_CONFIG = {
    **SIZES,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_MIDDLE,
    "norm_topk_prob": True,
}
_MOE_SHAPES = {**_SHARED, **_HEAD_NORMS, _LAYER + "mlp.gate.weight": [EXPERTS, HIDDEN]}
_GEMMA_CONFIG = {
    **SIZES,
    "architectures": ["Gemma3ForCausalLM"],
    "sliding_window": 8,
    "rope_local_base_freq": 5000.0,
}
_GEMMA_SHAPES = {
    **_SHARED,
    **_HEAD_NORMS,
    **_mlp("mlp.", MIDDLE),
    _LAYER + "pre_feedforward_layernorm.weight": [HIDDEN],
    _LAYER + "post_feedforward_layernorm.weight": [HIDDEN],
}
LLAMA = Family(
    "llama", {**SIZES, "architectures": ["LlamaForCausalLM"]}, {**_SHARED, **_mlp("mlp.", MIDDLE)}
)
FAMILIES = (
    LLAMA,
    Family("experts apart", _MOE_CONFIG, {**_MOE_SHAPES, **_EXPERTS_APART}),
    Family("experts fused", _MOE_CONFIG, {**_MOE_SHAPES, **_EXPERTS_FUSED}),
    Family("gemma", _GEMMA_CONFIG, _GEMMA_SHAPES),
    Family(
        "gemma that sees",
        {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": _GEMMA_CONFIG},
        {
            **{"language_" + name.replace("model.", "model.model.", 1): shape
               for name, shape in _GEMMA_SHAPES.items()},
            "vision_tower.post_layernorm.weight": [4],
        },
    ),
)  # fmt: skip
