"""Qwen3 (dense): each query and key head is normed before it is turned; biases are gone.

Heads have a size of their own, so that all of them may be wider than the hidden state. Layers may
have a window as in Qwen2.
"""

from .decoder import DecoderLayer, SelfAttention, attention_shape
from .layer_weights import LayerWeights


def load_qwen3_layer(weights: LayerWeights) -> DecoderLayer:
    """One layer. Raises `ModelFolderError` for a missing tensor or a wrong shape."""
    return DecoderLayer(
        attention_norm=weights.norm("input_layernorm"),
        attention=load_qwen3_attention(weights),
        mlp_norm=weights.norm("post_attention_layernorm"),
        mlp=weights.gated_mlp("mlp"),
    )


def load_qwen3_attention(weights: LayerWeights) -> SelfAttention:
    """The attention of one layer, with or without experts beside it."""
    bias = weights.config.attention_bias
    return SelfAttention(
        index=weights.index,
        window=weights.window,
        shape=attention_shape(weights.config),
        query_key_value=weights.query_key_value(
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias=bias
        ),
        output=weights.attention_output("self_attn.o_proj", bias=bias),
        query_key_norm=weights.head_norm("self_attn.q_norm", "self_attn.k_norm"),
    )
