"""Steps of chosen shapes for one executor, and the least time that a machine needs for them.

For figures of the kernels alone, without an engine. Rows claim that the tokens before those they
compute are in KV blocks already: what is in the blocks does not change how long a step takes, but
for memory that was never written, which is read from one page of zeros; so `touch` comes first. The
floor of a step counts what must be read and what must be multiplied, whatever the executor does.
"""

from collections.abc import Sequence

import attrs

from ...engine.model_config.config import ModelConfig
from ...engine.model_config.experts import Experts
from ...engine.step_messages import Mask, NewRow, RowSampling, Step, StepResult
from ...engine.worker.executor_interface import WorkerExecutor

# Bytes of a weight or KV value: bf16.
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
        """Sizes by a model folder's config."""
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
    """Row of a step: it computes `new` tokens, the last of which is token number `context`."""

    new: int
    context: int
    samples: bool = True


@attrs.frozen(kw_only=True)
class StepWork:
    """Least work of a step."""

    weight_bytes: int
    kv_bytes: int
    operations: int

    @classmethod
    def of(cls, sizes: ModelSizes, rows: Sequence[RowWork]) -> "StepWork":
        """Work of a step over these rows."""
        attention = sizes.head_size * sizes.heads
        kv_values = 2 * sizes.head_size * sizes.kv_heads
        output = sizes.hidden_size * sizes.vocab_size
        tokens = sum(row.new for row in rows)
        sampled = sum(row.samples for row in rows)
        chosen = sizes.experts.chosen if sizes.experts else 0
        # Scores of each new token against all before it and itself, and their weighted sum.
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
    """Rows that compute one token each."""
    return [RowWork(new=1, context=context)] * batch


def prefill_rows(tokens: int) -> list[RowWork]:
    """Row of one prompt in one step."""
    return [RowWork(new=tokens, context=tokens)]


# Tokens that a row may grow by before it needs another block than those it was given.
GROWTH_TOKENS = 64
GREEDY = RowSampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)


@attrs.define(eq=False)
class StepDriver:
    """Driver of a loaded executor. Rows that decode stay; those that prefill are new in each step.

    `vocab_size` and `blocks` are the executor's. Asserts that the blocks suffice.
    """

    executor: WorkerExecutor
    vocab_size: int
    blocks: int
    block_tokens: int
    sampling: RowSampling = GREEDY
    # {row: tokens it may still grow by}, of those that decode.
    _decoding: dict[int, int] = attrs.field(factory=dict, init=False)
    # Rows of the last step that are not wanted any more.
    _over: list[int] = attrs.field(factory=list, init=False)
    _number: int = attrs.field(default=0, init=False)
    _next_block: int = attrs.field(default=0, init=False)

    def touch(self, rows_max: int) -> None:
        """Compute one token in every KV block, so many rows in a step."""
        for begin in range(0, self.blocks, rows_max):
            news = [
                NewRow(
                    row=row,
                    token_ids=[row % self.vocab_size],
                    prompt_tokens=1,
                    computed_tokens=0,
                    block_ids=[begin + row],
                    sampling=self.sampling,
                )
                for row in range(min(rows_max, self.blocks - begin))
            ]
            self._step(news, [])
            self._over += [new.row for new in news]

    def begin(self, decoding: Sequence[RowWork]) -> None:
        """Forget all rows; these decode from the next step on."""
        self._over += list(self._decoding)
        self._decoding, self._next_block = {}, 0
        news = [self._new(row, work) for row, work in enumerate(decoding)]
        self._step(news, [])
        self._decoding = dict.fromkeys(range(len(decoding)), GROWTH_TOKENS - 1)

    def step(self, prefills: Sequence[RowWork] = ()) -> StepResult:
        """Every decoding row computes a token, and these prompts beside them are computed whole."""
        assert all(left > 0 for left in self._decoding.values()), "rows have outgrown their blocks"
        first = len(self._decoding)
        next_block = self._next_block
        news = [self._new(first + place, work) for place, work in enumerate(prefills)]
        self._next_block = next_block  # their blocks are free again after this step
        result = self._step(news, list(self._decoding))
        self._over += [new.row for new in news]
        for row in self._decoding:
            self._decoding[row] -= 1
        return result

    def _new(self, row: int, work: RowWork) -> NewRow:
        blocks = -(-(work.context + GROWTH_TOKENS) // self.block_tokens)
        begin, self._next_block = self._next_block, self._next_block + blocks
        assert self._next_block <= self.blocks, "the executor has too few KV blocks"
        return NewRow(
            row=row,
            token_ids=[(row * 7 + place) % self.vocab_size for place in range(work.context)],
            prompt_tokens=work.context,
            computed_tokens=work.context - work.new,
            block_ids=list(range(begin, begin + blocks)),
            sampling=self.sampling,
        )

    def _step(self, news: list[NewRow], decoding: list[int]) -> StepResult:
        self._number += 1
        finished, self._over = self._over, []
        counts = [1] * len(decoding)
        counts += [len(new.token_ids) - new.computed_tokens for new in news]
        step = Step(
            number=self._number,
            finished=finished,
            new=news,
            rows=[*decoding, *(new.row for new in news)],
            token_counts=counts,
            samples=[True] * len(counts),
        )
        return self.executor.execute(step, _no_mask)


def blocks_for(rows: Sequence[RowWork], block_tokens: int) -> int:
    """How many KV blocks these rows take."""
    return sum(-(-(row.context + GROWTH_TOKENS) // block_tokens) for row in rows)


def _no_mask() -> Mask:
    raise AssertionError("no row is masked")
