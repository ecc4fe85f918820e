"""Mistral: Llama's layers without any bias, in which attention reaches back one window.

The window is the same in every layer (7B 0.1 has 4096 tokens); later models have none and are
Llamas but for their name.
"""

from .decoder import DecoderLayer
from .layer_weights import LayerWeights


def load_mistral_layer(weights: LayerWeights) -> DecoderLayer:
    """Load a layer. Raises `ModelFolderError` for a missing tensor or a wrong shape."""
    return DecoderLayer(
        attention_norm=weights.norm("input_layernorm"),
        attention=weights.attention(bias=False, output_bias=False),
        mlp_norm=weights.norm("post_attention_layernorm"),
        mlp=weights.gated_mlp("mlp"),
    )
