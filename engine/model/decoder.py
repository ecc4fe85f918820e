"""The frame that all decoder families share, over paged keys and values.

One forward pass takes the new tokens of all rows of a step, one after another, whatever mixture of
prefill and decode that is: embedding, layers (attention, then MLP, each added to what it read),
last norm, head. A family's own file says of what its layers are made. What makes a pass bitwise or
plain is in `layers` and `attention`.

Letters as in `layers`; R rows of logits, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from ..model_config.config import ModelConfig
from .attention import AttentionPlan, AttentionShape, KvCache, plan_attention, write_slots
from .layers import Linear, RmsNorm, padded_rows, silu_and_multiply, softcap_
from .plain_attention import plan_plain_attention
from .rotary import RotaryTable, rotate

# (First token, its and the following tokens' hidden states (k, N)), instead of a look-up.
Embeds = Sequence[tuple[int, Tensor]]


@attrs.frozen(eq=False)
class ForwardBatch:
    """A step's tokens, one after another. All tensors are on the model's device."""

    token_ids_T: Tensor
    positions_T: Tensor
    attention: AttentionPlan
    embeds: Embeds = ()


@attrs.frozen(eq=False)
class StepContext:
    """Arguments of every layer of one pass beside the hidden state."""

    rotations: Mapping[int, tuple[Tensor, Tensor]]  # by window
    plan: AttentionPlan
    cache: KvCache

    @property
    def tokens(self) -> int:
        """How many rows of the hidden state are tokens; the rest is padding."""
        return len(self.plan.slots)


@attrs.frozen(eq=False)
class Destination:
    """Destination of a step's keys and values in one layer."""

    keys_KSD: Tensor
    values_KSD: Tensor
    slots_T: Tensor


# Function of each token's queries, keys and values, (T, H, D): norm queries and keys if there is a
# norm, rotate them by cosines and sines, keep keys and values; returns the queries, contiguous.
# Tokens beyond the slots are padding.
PlaceHeads = Callable[[Tensor, RmsNorm | None, tuple[Tensor, Tensor], Destination], Tensor]


def place_heads(
    heads_THD: Tensor, norm: RmsNorm | None, rotation: tuple[Tensor, Tensor], into: Destination
) -> Tensor:
    """`PlaceHeads` with stock operators; queries are float32."""
    tokens, kv_heads = len(into.slots_T), len(into.keys_KSD)
    turned = heads_THD[:, :-kv_heads]
    if norm is not None:
        turned = norm(turned)
    turned = rotate(turned, rotation)[:tokens]
    write_slots(into.keys_KSD, into.slots_T, turned[:, -kv_heads:])
    write_slots(into.values_KSD, into.slots_T, heads_THD[:tokens, -kv_heads:])
    return turned[:, :-kv_heads].contiguous()


@attrs.frozen(eq=False)
class SelfAttention:
    """Attention of one layer; `index` is the layer's in the cache.

    `query_key_value` is three projections in one product. `query_key_norm`, for families that have
    it, is of each head by itself, queries' and keys' side by side.
    """

    index: int
    window: int
    shape: AttentionShape
    query_key_value: Linear
    output: Linear
    query_key_norm: RmsNorm | None = None
    place_heads: PlaceHeads = place_heads

    def __call__(self, x_TN: Tensor, step: StepContext) -> Tensor:
        """Keep the step's keys and values, then attend; rows beyond its tokens are padding."""
        tokens, rows = step.tokens, len(x_TN)
        keys, values = step.cache.keys[self.index], step.cache.values[self.index]
        query_THD = self.place_heads(
            self.query_key_value(x_TN).view(rows, -1, self.shape.size),
            self.query_key_norm,
            step.rotations[self.window],
            Destination(keys, values, step.plan.slots),
        )
        reads = step.plan.reads[self.window]
        attended_THD = reads.attend(query_THD, step.cache, self.index, scale=self.shape.scale)
        attended_TN = attended_THD.reshape(tokens, -1).to(x_TN.dtype)
        if rows > tokens:
            attended_TN = functional.pad(attended_TN, (0, 0, 0, rows - tokens))
        return self.output(attended_TN)


# The MLP of rows, of which only so many first ones are tokens.
Mlp = Callable[[Tensor, int], Tensor]


@attrs.frozen(eq=False)
class GatedMlp:
    """`down(activation(gate(x)) * up(x))`; gate and up are one product."""

    gate_up: Linear
    down: Linear
    activation: Callable[[Tensor], Tensor] = silu_and_multiply

    def __call__(self, x_TN: Tensor, tokens: int) -> Tensor:
        """The MLP of each row, padding or not: a row alone costs as much as a tile of them."""
        return self.down(self.activation(self.gate_up(x_TN)))


@attrs.frozen(eq=False)
class DecoderLayer:
    """Layer with norms before its parts; for families that have them, norms after them, too."""

    attention_norm: RmsNorm
    attention: SelfAttention
    mlp_norm: RmsNorm
    mlp: Mlp
    attention_end_norm: RmsNorm | None = None
    mlp_end_norm: RmsNorm | None = None

    def __call__(self, hidden: Tensor, step: StepContext) -> Tensor:
        """The hidden state after this layer."""
        attended = self.attention(self.attention_norm(hidden), step)
        if self.attention_end_norm is not None:
            attended = self.attention_end_norm(attended)
        hidden = hidden + attended
        added = self.mlp(self.mlp_norm(hidden), step.tokens)
        if self.mlp_end_norm is not None:
            added = self.mlp_end_norm(added)
        return hidden + added


@attrs.frozen(eq=False)
class Decoder:
    """A loaded model. Immutable; the cache is given with each pass.

    The hidden state is float32 in any mode: what layers add to it is not rounded away.
    """

    config: ModelConfig
    bitwise: bool
    dtype: torch.dtype
    device: torch.device
    _embedding_VN: Tensor
    _layers: list[DecoderLayer]
    _norm: RmsNorm
    _head: Linear
    _rotary: Mapping[int, RotaryTable]  # by window

    @property
    def attention_shape(self) -> AttentionShape:
        """Shape that the cache and the attention plan are made for."""
        return attention_shape(self.config)

    def plan_attention(
        self, block_tables: Tensor, rows: Sequence[int], positions: Sequence[int], *,
        block_tokens: int,
    ) -> AttentionPlan:  # fmt: skip
        """Plan one step: token i belongs to row `rows[i]` of `block_tables`, at `positions[i]`.

        `block_tables` is (rows, blocks) on the CPU, of int64; entries beyond a row's own positions
        are without meaning. The tokens of a row follow one another.
        """
        plan = plan_attention if self.bitwise else partial(plan_plain_attention, dtype=self.dtype)
        return plan(
            block_tables,
            rows,
            positions,
            block_tokens=block_tokens,
            shape=self.attention_shape,
            device=self.device,
        )

    def hidden(self, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """Write the keys and values of these tokens; return the last layer's state of each.

        Rows beyond the tokens are padding.
        """
        tokens = len(batch.token_ids_T)
        padding = (0, padded_rows(tokens, self.device, bitwise=self.bitwise) - tokens)
        token_ids, positions = (
            functional.pad(x, padding) for x in (batch.token_ids_T, batch.positions_T)
        )
        embedded = self.embed(token_ids, batch.embeds)
        return self.through_layers(embedded, positions, batch.attention, cache)

    def embed(self, token_ids_T: Tensor, embeds: Embeds = ()) -> Tensor:
        """The first layer's input, (T, N) float32."""
        hidden = functional.embedding(token_ids_T, self._embedding_VN).float()
        if self.config.embedding_scale != 1.0:
            hidden = hidden * torch.tensor(self.config.embedding_scale, dtype=self.dtype).item()
        for begin, rows_KN in embeds:
            hidden[begin : begin + len(rows_KN)] = rows_KN
        return hidden

    def through_layers(
        self, hidden: Tensor, positions_T: Tensor, plan: AttentionPlan, cache: KvCache
    ) -> Tensor:
        """The last layer's state of each row; those beyond the plan's tokens are padding."""
        rotations = {window: table.at(positions_T) for window, table in self._rotary.items()}
        step = StepContext(rotations, plan, cache)
        for layer in self._layers:
            hidden = layer(hidden, step)
        return hidden

    def logits(self, hidden: Tensor, tokens_R: Tensor) -> Tensor:
        """The logits, (R, V) float32, of some tokens of a step, as indices into `hidden`.

        A row does not depend on which others are asked for. For none, nothing is computed.
        """
        wanted = len(tokens_R)
        if wanted == 0:
            return hidden.new_empty((0, self.config.vocab_size), dtype=torch.float32)
        rows = padded_rows(wanted, self.device, bitwise=self.bitwise)
        last = hidden.new_zeros((rows, self.config.hidden_size))
        last[:wanted] = hidden[tokens_R]
        logits = self._head(self._norm(last))[:wanted].float()
        softcap = self.config.logit_softcap
        return logits if softcap is None else softcap_(logits, softcap)


def attention_shape(config: ModelConfig) -> AttentionShape:
    """Sizes of heads, and the windows that layers have."""
    return AttentionShape(
        heads=config.heads,
        kv_heads=config.kv_heads,
        size=config.head_size,
        windows=tuple(sorted(set(config.windows))),
        scale=config.query_scale,
    )
