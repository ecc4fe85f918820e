"""Qwen3 with mixtures of experts (30B-A3B, 235B-A22B): Qwen3's attention, experts for an MLP.

Every layer has a mixture but those that the config names (`mlp_only_layers`) or skips
(`decoder_sparse_step`); all experts of a model are alike. A window, which no published checkpoint
uses, is the same in all layers.
"""

from .decoder import DecoderLayer
from .layer_weights import LayerWeights


def load_qwen3_moe_layer(weights: LayerWeights) -> DecoderLayer:
    """Load a layer. Raises `ModelFolderError` for a missing tensor or a wrong shape."""
    bias = weights.config.attention_bias
    return DecoderLayer(
        attention_norm=weights.norm("input_layernorm"),
        attention=weights.attention(bias=bias, output_bias=bias, head_norms=True),
        mlp_norm=weights.mlp_norm("post_attention_layernorm"),
        mlp=weights.mlp_or_experts("mlp"),
    )
