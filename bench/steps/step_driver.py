"""Drives an executor of a worker by steps of chosen shapes, without an engine around it.

For figures of the kernels alone. Rows claim that the tokens before those they compute are in KV
blocks already: what is in the blocks does not change how long a step takes, but for memory that
nobody has written yet, which is read from one page of zeros; so `touch` comes first. Must not know
clocks or which executor it is.
"""

from collections.abc import Sequence

import attrs

from ...engine.step_messages import Mask, NewRow, RowSampling, Step, StepResult
from ...engine.worker.executor_interface import WorkerExecutor
from .floor_model import RowWork

# Tokens that a row may grow by before it needs another block than those it was given.
GROWTH_TOKENS = 64
GREEDY = RowSampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)


@attrs.define(eq=False)
class StepDriver:
    """One executor, loaded. Rows that decode stay; those that prefill are new in each step.

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
