"""Qwen2 and Qwen2.5: queries, keys and values have biases, attention's output has none.

Layers from `max_window_layers` on may have a window; no published checkpoint uses it.
"""

from .decoder import DecoderLayer
from .layer_weights import LayerWeights


def load_qwen2_layer(weights: LayerWeights) -> DecoderLayer:
    """Load a layer. Raises `ModelFolderError` for a missing tensor or a wrong shape."""
    return DecoderLayer(
        attention_norm=weights.norm("input_layernorm"),
        attention=weights.attention(bias=True, output_bias=False),
        mlp_norm=weights.norm("post_attention_layernorm"),
        mlp=weights.gated_mlp("mlp"),
    )
