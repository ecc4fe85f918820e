"""Builders of layers from a source's tensors: the words in which a family's file describes itself.

A family names each part as its checkpoints do; sizes come from the config, and the source checks
them.
"""

from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from ..model_config.config import GELU_TANH, ModelConfig
from .decoder import (
    Decoder,
    DecoderLayer,
    GatedMlp,
    Mlp,
    PlaceHeads,
    SelfAttention,
    attention_shape,
    place_heads,
)
from .experts import ExpertsMlp
from .layers import Linear, RmsNorm, gelu_and_multiply, make_linear, silu_and_multiply
from .loader import WeightSource
from .rotary import RotaryTable


@attrs.frozen
class LayerParts:
    """Operators between products: stock ones, or kernels for a GPU."""

    norm: type[RmsNorm]
    silu_and_multiply: Callable[[Tensor], Tensor]
    gelu_and_multiply: Callable[[Tensor], Tensor]
    place_heads: PlaceHeads

    @classmethod
    def of(cls, device: torch.device) -> "LayerParts":
        """The best operators on this device."""
        if device.type != "cuda":
            return cls(RmsNorm, silu_and_multiply, gelu_and_multiply, place_heads)
        # Imports Triton, which comes with a torch for GPUs alone.
        from . import gpu_layers

        return cls(
            gpu_layers.GpuRmsNorm,
            gpu_layers.silu_and_multiply,
            gpu_layers.gelu_and_multiply,
            gpu_layers.place_heads,
        )


@attrs.frozen(eq=False)
class LayerWeights:
    """The weights of one layer: names are under `prefix`. `index` is the layer's.

    All methods raise `ModelFolderError` for what is missing or of another shape.
    """

    config: ModelConfig
    index: int
    source: WeightSource
    prefix: str
    bitwise: bool
    parts: LayerParts

    def norm(self, name: str) -> RmsNorm:
        """A norm over the hidden state, before a product."""
        weight = self._take(name, self.config.hidden_size)
        return make_norm(weight, self.config, weight.dtype, self.parts.norm)

    def end_norm(self, name: str) -> RmsNorm:
        """A norm over what is added to the hidden state."""
        weight = self._take(name, self.config.hidden_size)
        return make_norm(weight, self.config, torch.float32, self.parts.norm)

    def attention(
        self, *, bias: bool, output_bias: bool, head_norms: bool = False
    ) -> SelfAttention:
        """`bias` is of queries, keys and values; `head_norms` norm each query and key head."""
        config, size = self.config, self.config.head_size
        hidden, queries, keys = config.hidden_size, config.heads * size, config.kv_heads * size
        query, key, value, output = (f"self_attn.{part}_proj" for part in "qkvo")
        norm = None
        if head_norms:
            query_HD = self._take("self_attn.q_norm", size).expand(config.heads, size)
            key_KD = self._take("self_attn.k_norm", size).expand(config.kv_heads, size)
            norm = make_norm(torch.cat((query_HD, key_KD)), config, torch.float32)
        return SelfAttention(
            index=self.index,
            window=config.windows[self.index],
            shape=attention_shape(config),
            query_key_value=self.linear(
                (query, queries), (key, keys), (value, keys), inputs=hidden, bias=bias
            ),
            output=self.linear((output, hidden), inputs=queries, bias=output_bias),
            query_key_norm=norm,
            place_heads=self.parts.place_heads,
        )

    def gated_mlp(self, prefix: str, *, bias: bool = False, width: int = 0) -> GatedMlp:
        """A gated MLP, which has `width` channels inside or as many as the config says."""
        width = width or self.config.intermediate_size
        hidden = self.config.hidden_size
        gate, up, down = (f"{prefix}.{part}_proj" for part in ("gate", "up", "down"))
        return GatedMlp(
            gate_up=self.linear((gate, width), (up, width), inputs=hidden, bias=bias),
            down=self.linear((down, hidden), inputs=width, bias=bias),
            activation=self.parts.gelu_and_multiply
            if self.config.activation == GELU_TANH
            else self.parts.silu_and_multiply,
        )

    def mlp_or_experts(self, prefix: str) -> Mlp:
        """The mixture of experts in layers that have it, a gated MLP in the others."""
        experts = self.config.experts
        if experts is None or self.index not in self.config.expert_layers:
            return self.gated_mlp(prefix)
        router = self._take(f"{prefix}.gate", experts.count, self.config.hidden_size)
        return ExpertsMlp(
            # In float32 in any mode: a near tie that falls the other way is another expert.
            router=make_linear(router.float(), bitwise=self.bitwise),
            experts=[
                self.gated_mlp(f"{prefix}.experts.{number}", width=experts.intermediate_size)
                for number in range(experts.count)
            ],
            chosen=experts.chosen,
            normalized=experts.normalized,
            bitwise=self.bitwise,
            dtype=router.dtype,
        )

    def mlp_norm(self, name: str) -> RmsNorm:
        """The norm before it: a router looks at more than what experts are given rounded."""
        routed = self.config.experts is not None and self.index in self.config.expert_layers
        return self.end_norm(name) if routed else self.norm(name)

    def linear(self, *parts: tuple[str, int], inputs: int, bias: bool) -> Linear:
        """Projections of the same `inputs` as one product: (name, outputs) of each."""
        weight = _joined([self._take(name, rows, inputs) for name, rows in parts])
        biases = [self._take(name, rows, kind="bias") for name, rows in parts] if bias else []
        return make_linear(weight, _joined(biases) if bias else None, bitwise=self.bitwise)

    def _take(self, name: str, *shape: int, kind: str = "weight") -> Tensor:
        return self.source.take(f"{self.prefix}{name}.{kind}", shape)


def load_decoder(
    config: ModelConfig, source: WeightSource, load_layer: Callable[[LayerWeights], DecoderLayer],
    *, positions: int, bitwise: bool, dtype: torch.dtype, device: torch.device,
) -> Decoder:  # fmt: skip
    """A whole model whose layers `load_layer` makes; `positions` bounds those ever computed.

    Raises `ModelFolderError` for a missing tensor or a wrong shape.
    """
    size = (config.vocab_size, config.hidden_size)
    embedding = source.take("model.embed_tokens.weight", size)
    head = embedding if config.tied_embeddings else source.take("lm_head.weight", size)
    parts = LayerParts.of(device)
    layers = [
        load_layer(LayerWeights(config, index, source, f"model.layers.{index}.", bitwise, parts))
        for index in range(config.layers)
    ]
    return Decoder(
        config=config,
        bitwise=bitwise,
        dtype=dtype,
        device=device,
        embedding_VN=embedding,
        layers=layers,
        norm=make_norm(source.take("model.norm.weight", size[1:]), config, dtype, parts.norm),
        head=make_linear(head, bitwise=bitwise),
        rotary=_rotary_tables(config, positions, device),
    )


def _rotary_tables(
    config: ModelConfig, positions: int, device: torch.device
) -> dict[int, RotaryTable]:
    """The table of each window; those that turn alike share one."""
    ropes = {window: config.window_rope if window else config.rope for window in config.windows}
    tables = {
        rope: RotaryTable.of(config.head_size, positions, rope, device=device)
        for rope in set(ropes.values())
    }
    return {window: tables[rope] for window, rope in ropes.items()}


def make_norm(
    weight: Tensor, config: ModelConfig, dtype: torch.dtype, kind: type[RmsNorm] = RmsNorm
) -> RmsNorm:
    """A norm by a weight as stored, with results of this dtype."""
    return kind(weight.float() + config.norm_offset, config.norm_epsilon, dtype)


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]
