"""Mistral: Llama's layers without any bias, in which attention reaches back one window.

The window is the same in every layer (7B 0.1 has 4096 tokens); later models have none and are
Llamas but for their name.
"""

from .decoder import DecoderLayer, SelfAttention, attention_shape
from .layer_weights import LayerWeights


def load_mistral_layer(weights: LayerWeights) -> DecoderLayer:
    """One layer. Raises `ModelFolderError` for a missing tensor or a wrong shape."""
    return DecoderLayer(
        attention_norm=weights.norm("input_layernorm"),
        attention=SelfAttention(
            index=weights.index,
            window=weights.window,
            shape=attention_shape(weights.config),
            query_key_value=weights.query_key_value(
                "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias=False
            ),
            output=weights.attention_output("self_attn.o_proj", bias=False),
        ),
        mlp_norm=weights.norm("post_attention_layernorm"),
        mlp=weights.gated_mlp("mlp"),
    )
