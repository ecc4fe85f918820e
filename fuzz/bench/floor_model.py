"""The least time in which a machine can compute a step: what must be read, what must be multiplied.

Sans-IO: sizes of a model and rates of a machine in, seconds out. Every weight is read once a step,
and every block of a row's KV once; a product and an addition are two operations. The floor is the
longer one of reading the weights and multiplying, plus reading KV, which no other work hides at
batch 1. Of dense models; must not know how a step is computed.
"""

from collections.abc import Sequence

import attrs

from ...engine.errors import InvalidParameter
from ...engine.model_config import ModelConfig

# Of weights and KV: bf16.
VALUE_BYTES = 2


@attrs.frozen(kw_only=True)
class ModelSizes:
    """The sizes of a dense decoder, numbers of values."""

    layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    heads: int
    kv_heads: int
    head_size: int

    @classmethod
    def of(cls, config: ModelConfig) -> "ModelSizes":
        """Of a model folder's config. Raises `InvalidParameter` for a mixture of experts."""
        if config.experts is not None:
            raise InvalidParameter("model", "is a mixture of experts; floors are of dense models")
        return cls(
            layers=config.layers,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_size=config.head_size,
        )


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
        layer = sizes.hidden_size * (2 * attention + kv_values)
        layer += 3 * sizes.hidden_size * sizes.intermediate_size
        output = sizes.hidden_size * sizes.vocab_size
        tokens = sum(row.new for row in rows)
        sampled = sum(row.samples for row in rows)
        # Of each new token: scores against all before it and itself, and their weighted sum.
        seen = sum(row.new * (row.context - row.new) + row.new * (row.new + 1) // 2 for row in rows)
        return cls(
            weight_bytes=VALUE_BYTES * (sizes.layers * layer + output),
            kv_bytes=VALUE_BYTES * sizes.layers * kv_values * sum(row.context for row in rows),
            operations=2 * tokens * sizes.layers * layer
            + 2 * sampled * output
            + 4 * seen * attention * sizes.layers,
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
