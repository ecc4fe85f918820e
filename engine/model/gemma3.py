"""Gemma 3: norms before and after each part, and windows in five layers of six.

Norms are stored less 1, embeddings are scaled up, the gate is a GELU, and layers with a window turn
their heads by another base than those that see all; the config says so (`model_config`), and the
frame does it. Of models that also see (4B and up) the text part is served, whose tensors have
another prefix: `weight_folder` finds them.
"""

from .decoder import DecoderLayer
from .layer_weights import LayerWeights


def load_gemma3_layer(weights: LayerWeights) -> DecoderLayer:
    """Load a layer. Raises `ModelFolderError` for a missing tensor or a wrong shape."""
    bias = weights.config.attention_bias
    return DecoderLayer(
        attention_norm=weights.norm("input_layernorm"),
        attention=weights.attention(bias=bias, output_bias=bias, head_norms=True),
        attention_end_norm=weights.end_norm("post_attention_layernorm"),
        mlp_norm=weights.norm("pre_feedforward_layernorm"),
        mlp=weights.gated_mlp("mlp"),
        mlp_end_norm=weights.end_norm("post_feedforward_layernorm"),
    )
