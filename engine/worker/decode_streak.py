"""The same rows, each computing the token that it sampled last, step after step: the usual case.

Sans-IO: what a step needs lies in arrays that are made once and counted on, so that a step costs
next to no Python whatever the number of rows. The rows held stay the truth: they take every token
as it comes, and a streak may end after any step. Must not know kernels, masks or messages' frames.
"""

from collections.abc import Sequence

import attrs
import numpy

from ..native.model import Integers, int32s
from ..step_messages import Step
from .input_batch import HeldRow, InputBatch, StepInconsistent


def decodes_only(step: Step) -> bool:
    """Whether every row computes one token and samples the next one."""
    counts = step.token_counts
    return bool(counts) and counts.count(1) == len(counts) and all(step.samples)


@attrs.define(eq=False)
class DecodeStreak:
    """Rows in their order, and of each the values for the next step of the streak.

    `token_ids` are the rows' last tokens: whoever samples writes there. `begins` are their places
    in their sequences, and `outputs` how many tokens of output each row has.
    """

    rows: list[int]
    token_ids: Integers
    begins: Integers
    outputs: Integers
    _held: list[HeldRow]
    _counts: list[int]
    _samples: list[bool]
    # Tokens that each row's blocks hold.
    _room: Integers
    _index: dict[int, int]

    @classmethod
    def of(cls, step: Step, batch: InputBatch) -> "DecodeStreak":
        """Of a step that decodes only, whose differences `batch` has applied."""
        held = [batch.rows[row] for row in step.rows]
        room = [len(row.block_ids) * batch.block_tokens for row in held]
        return cls(
            rows=step.rows,
            token_ids=int32s([row.token_ids[-1] for row in held]),
            begins=int32s([row.computed for row in held]),
            outputs=int32s([row.output_tokens for row in held]),
            held=held,
            counts=step.token_counts,
            samples=step.samples,
            room=int32s(room),
            index={row: index for index, row in enumerate(step.rows)},
        )

    def goes_on(self, step: Step) -> bool:
        """Whether this step is the same again; rows may have grown."""
        return (
            step.rows == self.rows
            and step.token_counts == self._counts
            and step.samples == self._samples
            and not step.finished
            and not step.new
        )

    def take_step(self, step: Step, batch: InputBatch) -> None:
        """Apply a step that goes on. Raises `StepInconsistent` and changes nothing."""
        room = self._room
        if step.grown:
            batch.check_grown(step)
            room = room.copy()
            for row, block_ids in step.grown:
                if (index := self._index.get(row)) is not None:
                    room[index] += len(block_ids) * batch.block_tokens
        if (self.begins >= room).any():
            row = self.rows[int(numpy.argmax(self.begins >= room))]
            raise StepInconsistent(step.number, f"row {row}: its tokens exceed its blocks")
        self._room = room
        batch.grow(step)

    def finish_step(self, tokens: Sequence[int]) -> None:
        """Note what was sampled; the same values are in `token_ids`."""
        for held, token in zip(self._held, tokens, strict=True):
            held.computed += 1
            held.append(token)
        self.begins += 1
        self.outputs += 1

    def check_invariants(self) -> None:
        """Raise `AssertionError` where the arrays are not what the rows held say."""
        for index, held in enumerate(self._held):
            assert self.token_ids[index] == held.token_ids[-1]
            assert self.begins[index] == held.computed == len(held.token_ids) - 1
            assert self.outputs[index] == held.output_tokens
            assert held.computed <= self._room[index]
