"""Qwen3 (dense): each query and key head is normed before it is turned; biases are gone.

Heads have a size of their own, so that all of them may be wider than the hidden state. Layers may
have a window as in Qwen2.
"""

from .decoder import DecoderLayer
from .layer_weights import LayerWeights


def load_qwen3_layer(weights: LayerWeights) -> DecoderLayer:
    """Load a layer. Raises `ModelFolderError` for a missing tensor or a wrong shape."""
    bias = weights.config.attention_bias
    return DecoderLayer(
        attention_norm=weights.norm("input_layernorm"),
        attention=weights.attention(bias=bias, output_bias=bias, head_norms=True),
        mlp_norm=weights.norm("post_attention_layernorm"),
        mlp=weights.gated_mlp("mlp"),
    )
