"""Decode streak: the same rows, each computing the token that it sampled last, step after step.

Sans-IO: what a step needs lies in arrays that are made once and counted on, so that a step costs
next to no Python whatever the number of rows. The rows held stay the truth: they get what was
sampled now and then, and a streak may end after any step. `NativeRunner` makes the calls of a
streak once, too, since they only point to its arrays.
"""

import attrs
import numpy

from ...kernels.model import Integers, int32s
from ...step_messages import Step
from ..input_batch import HeldRow, InputBatch, StepInconsistent

# Steps whose tokens wait for the rows held: 64 rows of them are 16 KiB.
UNSETTLED_MAX = 32
_NONE: frozenset[int] = frozenset()


def decodes_only(step: Step) -> bool:
    """Whether every row looks up and computes one token, and samples the next one."""
    counts = step.token_counts
    only_one = bool(counts) and counts.count(1) == len(counts)
    return only_one and all(step.samples) and not step.embeds


@attrs.define(eq=False)
class DecodeStreak:
    """Rows in their order, and of each the values for the next step of the streak.

    `token_ids` are the rows' last tokens: sampling writes there. `begins` are their places in
    their sequences, and `outputs` how many tokens of output each row has. The rows held lag behind
    until `settle`, because to touch each of them is what would cost most of a step; but where one
    of them looks at its tokens (`lags` is false), each step settles.
    """

    rows: list[int]
    token_ids: Integers
    begins: Integers
    outputs: Integers
    lags: bool
    # Both, and as many ones.
    _counters: Integers
    _ones: Integers
    _held: list[HeldRow]
    _counts: list[int]
    _samples: list[bool]
    # Steps since the beginning, and {row: at how many its blocks will be full}, also by that.
    _steps: int
    _full_at: dict[int, int]
    _full: dict[int, set[int]]
    # Tokens sampled in the steps that are not settled; at most UNSETTLED_MAX.
    _unsettled: list[list[int]] = attrs.field(factory=list, init=False)

    @classmethod
    def of(cls, step: Step, batch: InputBatch, *, lags: bool = True) -> "DecodeStreak":
        """Begin with a step that decodes only, whose differences `batch` has applied."""
        held = [batch.rows[row] for row in step.rows]
        full_at = {
            row: len(each.block_ids) * batch.block_tokens - each.computed
            for row, each in zip(step.rows, held, strict=True)
        }
        full: dict[int, set[int]] = {}
        for row, at in full_at.items():
            full.setdefault(at, set()).add(row)
        counters = numpy.array(
            [[row.computed for row in held], [row.output_tokens for row in held]], numpy.int32
        )
        return cls(
            rows=step.rows,
            token_ids=int32s([row.token_ids[-1] for row in held]),
            begins=counters[0],
            outputs=counters[1],
            lags=lags,
            counters=counters,
            ones=numpy.ones_like(counters),
            held=held,
            counts=step.token_counts,
            samples=step.samples,
            steps=0,
            full_at=full_at,
            full=full,
        )

    def goes_on(self, step: Step) -> bool:
        """Whether this step is the same again; rows may have grown."""
        return (
            step.rows == self.rows
            and step.token_counts == self._counts
            and step.samples == self._samples
            and not step.finished
            and not step.new
            and not step.embeds
        )

    def take_step(self, step: Step, batch: InputBatch) -> None:
        """Apply a step that goes on. Raises `StepInconsistent` and changes nothing."""
        batch.check_grown(step)
        full = self._full.get(self._steps, _NONE)
        if full and (stuck := full.difference(row for row, ids in step.grown if ids)):
            raise StepInconsistent(step.number, f"row {min(stuck)}: its tokens exceed its blocks")
        for row, block_ids in step.grown:
            if row in self._full_at:
                self._move(row, len(block_ids) * batch.block_tokens)
        batch.grow(step)
        self._full.pop(self._steps, None)

    def _move(self, row: int, tokens: int) -> None:
        before = self._full_at[row]
        self._full[before].discard(row)
        if not self._full[before]:
            del self._full[before]
        self._full_at[row] = before + tokens
        self._full.setdefault(before + tokens, set()).add(row)

    def finish_step(self, tokens: list[int]) -> None:
        """Note what was sampled; the same values are in `token_ids`."""
        self._unsettled.append(tokens)
        if not self.lags or len(self._unsettled) == UNSETTLED_MAX:
            self.settle()
        self._steps += 1
        # An addition of equal types: half of what costs most here.
        numpy.add(self._counters, self._ones, out=self._counters)

    def settle(self) -> None:
        """Let the rows held have all tokens; before anything else looks at them."""
        if not self._unsettled:
            return
        for held, tokens in zip(self._held, zip(*self._unsettled, strict=True), strict=True):
            held.computed += len(tokens)
            held.extend(tokens)
        self._unsettled.clear()

    def check_invariants(self) -> None:
        """Raise `AssertionError` where the arrays are not what the rows held say."""
        assert {row: at for at, rows in self._full.items() for row in rows} == self._full_at
        assert len(self._unsettled) < UNSETTLED_MAX
        lag = len(self._unsettled)
        last = self._unsettled[-1] if lag else [held.token_ids[-1] for held in self._held]
        assert self.token_ids.tolist() == last
        for index, held in enumerate(self._held):
            assert self.begins[index] == held.computed + lag == len(held.token_ids) - 1 + lag
            assert self.outputs[index] == held.output_tokens + lag
