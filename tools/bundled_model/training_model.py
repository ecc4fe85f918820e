"""The Llama architecture in plain torch, for training the bundled model and measuring it.

The engine has its own forward pass with paged memory and no gradients; this one has gradients and
a plain cache and needs nothing of the engine. Parameter names are those of Hugging Face's Llama, so
the state dict is the weight file.

Shapes: B sequences, T new tokens, S cached and new tokens, D hidden, H query heads, K key/value
heads, C channels of a head, V vocabulary.
"""

from __future__ import annotations

import math

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

# The usual initial spread of a GPT; the embedding is tied, so it also sets the first logits.
INITIAL_DEVIATION = 0.02


@attrs.frozen
class ModelShape:
    """The numbers that fix the architecture; the defaults are the bundled model's."""

    vocabulary: int
    hidden: int = 256
    layers: int = 4
    query_heads: int = 4
    key_value_heads: int = 2
    head_channels: int = 64
    intermediate: int = 768
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5


@attrs.define(eq=False)
class Cache:
    """Keys and values of all layers so far, `[(keys_BKSC, values_BKSC), …]`; grown by `forward`."""

    layers: list[tuple[Tensor, Tensor]] = attrs.field(factory=list)


def rotate(states_BHTC: Tensor, cosines_BTC: Tensor, sines_BTC: Tensor) -> Tensor:
    """Rotary embedding in Hugging Face's layout: channel i is paired with channel i + C/2."""
    first, second = states_BHTC.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return states_BHTC * cosines_BTC[:, None] + turned * sines_BTC[:, None]


def attend(
    queries_BHTC: Tensor, keys_BHSC: Tensor, values_BHSC: Tensor, mask: Tensor | None
) -> Tensor:
    """Attention written out; no `mask` means causal over equally many queries and keys.

    At windows of a few hundred tokens two matrix products and a softmax train a third faster on a
    CPU than torch's fused kernel, whose backward pass was a quarter of a step's time.
    """
    scale = 1 / math.sqrt(queries_BHTC.shape[-1])
    scores_BHTS = (queries_BHTC * scale) @ keys_BHSC.transpose(2, 3)
    if mask is None:
        length = scores_BHTS.shape[-1]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
    bias = torch.zeros(mask.shape, dtype=scores_BHTS.dtype).masked_fill(~mask, -torch.inf)
    return (scores_BHTS + bias).softmax(-1, dtype=values_BHSC.dtype) @ values_BHSC


class Attention(nn.Module):
    """Causal self-attention with grouped key/value heads."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.channels = shape.head_channels
        self.groups = shape.query_heads // shape.key_value_heads
        query_width = shape.query_heads * shape.head_channels
        key_value_width = shape.key_value_heads * shape.head_channels
        self.q_proj = nn.Linear(shape.hidden, query_width, bias=False)
        self.k_proj = nn.Linear(shape.hidden, key_value_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, key_value_width, bias=False)
        self.o_proj = nn.Linear(query_width, shape.hidden, bias=False)

    def forward(
        self,
        hidden_BTD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        past: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The attended states, and the keys and values to keep. No `mask` means plain causal."""
        batch, length, _ = hidden_BTD.shape
        split = (batch, length, -1, self.channels)
        queries_BHTC = rotate(self.q_proj(hidden_BTD).view(split).transpose(1, 2), *rotation)
        keys_BKSC = rotate(self.k_proj(hidden_BTD).view(split).transpose(1, 2), *rotation)
        values_BKSC = self.v_proj(hidden_BTD).view(split).transpose(1, 2)
        if past is not None:
            keys_BKSC = torch.cat((past[0], keys_BKSC), dim=2)
            values_BKSC = torch.cat((past[1], values_BKSC), dim=2)
        attended_BHTC = attend(
            queries_BHTC.to(values_BKSC.dtype),
            keys_BKSC.to(values_BKSC.dtype).repeat_interleave(self.groups, dim=1),
            values_BKSC.repeat_interleave(self.groups, dim=1),
            mask,
        )
        joined_BTD = attended_BHTC.transpose(1, 2).reshape(batch, length, -1)
        return self.o_proj(joined_BTD), (keys_BKSC, values_BKSC)


class Mlp(nn.Module):
    """The gated feed-forward block: `down(silu(gate(x)) * up(x))`."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """The block's output, to be added to its input."""
        gated = functional.silu(self.gate_proj(hidden_BTD)) * self.up_proj(hidden_BTD)
        down: Tensor = self.down_proj(gated)
        return down


class Layer(nn.Module):
    """Transformer layer with the norms before its blocks."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.norm_epsilon)
        self.mlp = Mlp(shape)

    def forward(
        self,
        hidden_BTD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        past: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The states after this layer, and this layer's keys and values."""
        attended, kept = self.self_attn(self.input_layernorm(hidden_BTD), rotation, mask, past)
        hidden_BTD = hidden_BTD + attended
        return hidden_BTD + self.mlp(self.post_attention_layernorm(hidden_BTD)), kept


class Body(nn.Module):
    """Everything but the head; exists so that names start with `model.` as Hugging Face's do."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_epsilon)


class TrainingModel(nn.Module):
    """A Llama with tied embeddings, initialised from torch's current seed."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            # Blocks write into one residual stream; the more layers, the smaller each one's share.
            writes_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            share = 1 / math.sqrt(2 * shape.layers) if writes_residual else 1.0
            nn.init.normal_(parameter, std=INITIAL_DEVIATION * share)

    def forward(
        self,
        tokens_BT: Tensor,
        cache: Cache | None = None,
        *,
        positions_BT: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Logits, `(B, T, V)`.

        Positions default to 0…T-1 and the mask to causal; with a `cache` that holds something both
        have to be given. `mask` is True where attention is allowed and broadcasts to (B, H, T, S).
        """
        if positions_BT is None:
            positions_BT = torch.arange(tokens_BT.shape[1])[None]
        rotation = self._rotation(positions_BT)
        hidden_BTD = self.model.embed_tokens(tokens_BT)
        for index, layer in enumerate(self.model.layers):
            past = cache.layers[index] if cache is not None and index < len(cache.layers) else None
            hidden_BTD, kept = layer(hidden_BTD, rotation, mask, past)
            if cache is not None:
                cache.layers[index : index + 1] = [kept]
        hidden_BTD = self.model.norm(hidden_BTD)
        return functional.linear(hidden_BTD, self.model.embed_tokens.weight)

    def _rotation(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        exponents = torch.arange(0, self.shape.head_channels, 2) / self.shape.head_channels
        angles = positions_BT[..., None].float() * self.shape.rope_theta**-exponents
        angles_BTC = torch.cat((angles, angles), dim=-1)
        return angles_BTC.cos(), angles_BTC.sin()
