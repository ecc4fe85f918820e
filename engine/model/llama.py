"""Llama (1 to 3.3, and the many models that are Llamas by another name).

The family that the others vary: grouped heads, rotary embedding, a gated MLP, no biases. A few
descendants have biases and say so in their config. Llama 3 stretches long rotary waves (`rotary`).
"""

from .decoder import DecoderLayer
from .layer_weights import LayerWeights


def load_llama_layer(weights: LayerWeights) -> DecoderLayer:
    """Load a layer. Raises `ModelFolderError` for a missing tensor or a wrong shape."""
    bias = weights.config.attention_bias
    return DecoderLayer(
        attention_norm=weights.norm("input_layernorm"),
        attention=weights.attention(bias=bias, output_bias=bias),
        mlp_norm=weights.norm("post_attention_layernorm"),
        mlp=weights.gated_mlp("mlp", bias=weights.config.mlp_bias),
    )
