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
from .attention import AttentionPlan, AttentionShape, KvCache, plan_attention, write_cache
from .layers import Linear, RmsNorm, padded_rows, silu_and_multiply, softcap_
from .plain_attention import plan_plain_attention
from .rotary import RotaryTable, rotate


@attrs.frozen(eq=False)
class ForwardBatch:
    """One step's tokens, one after another. All tensors are on the model's device."""

    token_ids_T: Tensor
    positions_T: Tensor
    attention: AttentionPlan
    # (first token, its and the following tokens' hidden states (k, N)), instead of a look-up.
    embeds: Sequence[tuple[int, Tensor]] = ()


@attrs.frozen(eq=False)
class StepContext:
    """What every layer of one pass is given beside the hidden state."""

    rotations: Mapping[int, tuple[Tensor, Tensor]]  # by window
    plan: AttentionPlan
    cache: KvCache

    @property
    def tokens(self) -> int:
        """How many rows of the hidden state are tokens; the rest is padding."""
        return len(self.plan.slots)


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

    def __call__(self, x_TN: Tensor, step: StepContext) -> Tensor:
        """Keep the step's keys and values, then attend; rows beyond its tokens are padding."""
        heads, turned = self.shape.heads, self.shape.heads + self.shape.kv_heads
        tokens, rows = step.tokens, len(x_TN)
        heads_THD = self.query_key_value(x_TN).view(rows, -1, self.shape.size)
        query_key = heads_THD[:, :turned]
        if self.query_key_norm is not None:
            query_key = self.query_key_norm(query_key)
        query_key = rotate(query_key, step.rotations[self.window])[:tokens]
        values_TKD = heads_THD[:tokens, turned:]
        keys_TKD = query_key[:, heads:]
        write_cache(step.cache, self.index, step.plan, keys_TKD=keys_TKD, values_TKD=values_TKD)
        query_THD = query_key[:, :heads].contiguous()
        reads = step.plan.reads[self.window]
        attended_THD = reads.attend(query_THD, step.cache, self.index, scale=self.shape.scale)
        padding = (0, 0, 0, rows - tokens)
        return self.output(functional.pad(attended_THD.reshape(tokens, -1), padding).to(x_TN.dtype))


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
    """One layer, norms before its parts; for families that have them, norms after them, too."""

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
        """What the cache and the attention plan are made for."""
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
        padding = (0, padded_rows(tokens, bitwise=self.bitwise) - tokens)
        token_ids, positions = (
            functional.pad(x, padding) for x in (batch.token_ids_T, batch.positions_T)
        )
        hidden = functional.embedding(token_ids, self._embedding_VN).float()
        if self.config.embedding_scale != 1.0:
            hidden = hidden * torch.tensor(self.config.embedding_scale, dtype=self.dtype).item()
        for begin, rows_KN in batch.embeds:
            hidden[begin : begin + len(rows_KN)] = rows_KN
        rotations = {window: table.at(positions) for window, table in self._rotary.items()}
        step = StepContext(rotations, batch.attention, cache)
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
        rows = padded_rows(wanted, bitwise=self.bitwise)
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
