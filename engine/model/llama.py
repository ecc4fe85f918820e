"""Llama (1 to 3.3, and the many models that are Llamas by another name).

The family that the others vary: grouped heads, rotary embedding, a gated MLP, no biases. A few
descendants have biases and say so in their config. Llama 3 stretches long rotary waves (`rotary`).
"""

from .decoder import DecoderLayer, SelfAttention, attention_shape
from .layer_weights import LayerWeights


def load_llama_layer(weights: LayerWeights) -> DecoderLayer:
    """One layer. Raises `ModelFolderError` for a missing tensor or a wrong shape."""
    config = weights.config
    bias, mlp_bias = config.attention_bias, config.mlp_bias
    return DecoderLayer(
        attention_norm=weights.norm("input_layernorm"),
        attention=SelfAttention(
            index=weights.index,
            window=weights.window,
            shape=attention_shape(config),
            query_key_value=weights.query_key_value(
                "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias=bias
            ),
            output=weights.attention_output("self_attn.o_proj", bias=bias),
        ),
        mlp_norm=weights.norm("post_attention_layernorm"),
        mlp=weights.gated_mlp("mlp", bias=mlp_bias),
    )
