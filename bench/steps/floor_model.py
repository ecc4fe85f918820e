"""The least time in which a machine can compute a step: what must be read, what must be multiplied.

Sans-IO: sizes of a model and rates of a machine in, seconds out. Every weight is read once a step,
and every block of a row's KV once; a product and an addition are two operations. Of a token that
samples nothing the last layer's keys and values are all that is needed of it. The floor is the
longer one of reading the weights and multiplying, plus reading KV, which no other work hides at
batch 1. Of experts those are read that tokens go to which choose evenly. Must not know how a step
is computed.
"""

from collections.abc import Sequence

import attrs

from ...engine.model_config.config import ModelConfig
from ...engine.model_config.experts import Experts

# Of weights and KV: bf16.
VALUE_BYTES = 2


@attrs.frozen(kw_only=True)
class ModelSizes:
    """The sizes of a decoder, numbers of values; `expert_layers` have a mixture for an MLP."""

    layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    heads: int
    kv_heads: int
    head_size: int
    experts: Experts | None = None
    expert_layers: int = 0

    @classmethod
    def of(cls, config: ModelConfig) -> "ModelSizes":
        """Of a model folder's config."""
        return cls(
            layers=config.layers,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_size=config.head_size,
            experts=config.experts,
            expert_layers=len(config.expert_layers),
        )

    def layer_values(self, experts_of_layer: float) -> float:
        """Weights of all layers, so many experts of each that has them."""
        attention, keys = self.head_size * self.heads, self.head_size * self.kv_heads
        values: float = self.layers * self.hidden_size * 2 * (attention + keys)
        dense = self.layers - self.expert_layers
        values += dense * 3 * self.hidden_size * self.intermediate_size
        if self.experts is not None:
            expert = 3 * self.hidden_size * self.experts.intermediate_size
            router = self.hidden_size * self.experts.count
            values += self.expert_layers * (router + experts_of_layer * expert)
        return values

    def sampled_values(self, experts_of_layer: float) -> float:
        """Weights of the last layer that only tokens which sample go through.

        Where there are mixtures it is taken for one.
        """
        attention = self.head_size * self.heads
        inner: float = self.intermediate_size
        router = 0
        if self.experts is not None and self.expert_layers:
            inner = experts_of_layer * self.experts.intermediate_size
            router = self.experts.count
        return self.hidden_size * (2 * attention + router + 3 * inner)

    def experts_met(self, tokens: int) -> float:
        """How many experts of a layer so many tokens go to, on average."""
        if self.experts is None:
            return 0.0
        missed = 1 - self.experts.chosen / self.experts.count
        return self.experts.count * (1 - missed**tokens)


@attrs.frozen(kw_only=True)
class RowWork:
    """One row of a step: it computes `new` tokens, the last of which is token number `context`."""

    new: int
    context: int
    samples: bool = True


@attrs.frozen(kw_only=True)
class StepWork:
    """What a step cannot do without."""

    weight_bytes: int
    kv_bytes: int
    operations: int

    @classmethod
    def of(cls, sizes: ModelSizes, rows: Sequence[RowWork]) -> "StepWork":
        """Of a step over these rows."""
        attention = sizes.head_size * sizes.heads
        kv_values = 2 * sizes.head_size * sizes.kv_heads
        output = sizes.hidden_size * sizes.vocab_size
        tokens = sum(row.new for row in rows)
        sampled = sum(row.samples for row in rows)
        chosen = sizes.experts.chosen if sizes.experts else 0
        # Of each new token: scores against all before it and itself, and their weighted sum.
        seen = sum(row.new * (row.context - row.new) + row.new * (row.new + 1) // 2 for row in rows)
        seen_last = sum(row.context for row in rows if row.samples)
        last_values = sizes.sampled_values(chosen)
        return cls(
            weight_bytes=round(
                VALUE_BYTES * (sizes.layer_values(sizes.experts_met(tokens)) + output)
            ),
            kv_bytes=VALUE_BYTES * sizes.layers * kv_values * sum(row.context for row in rows),
            operations=round(2 * tokens * (sizes.layer_values(chosen) - last_values))
            + round(2 * sampled * (last_values + output))
            + 4 * (seen * (sizes.layers - 1) + seen_last) * attention,
        )

    def floor_s(self, *, read_gb_s: float, multiply_gflop_s: float) -> float:
        """The least time, seconds; NaN if a rate is not known."""
        read_s = self.weight_bytes / read_gb_s / 1e9
        multiply_s = self.operations / multiply_gflop_s / 1e9
        if multiply_s != multiply_s:
            return multiply_s
        return max(read_s, multiply_s) + self.kv_bytes / read_gb_s / 1e9


def decode_rows(batch: int, context: int) -> list[RowWork]:
    """So many rows that compute one token each."""
    return [RowWork(new=1, context=context)] * batch


def prefill_rows(tokens: int) -> list[RowWork]:
    """One prompt in one step."""
    return [RowWork(new=tokens, context=tokens)]
