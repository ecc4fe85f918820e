"""Collects what one step found, and makes its `StepResult`: the same for every executor.

Sans-IO: plain values; arrays come as bytes, so that an executor without torch can use it, too.
Must not know logits, rings or why rows fail.
"""

import attrs

from ..step_messages import RowLogprobs, StepResult
from .input_batch import StepInputs

# Why a row fails.
NOT_NUMBERS = "a logit is not a finite number"
ALL_FORBIDDEN = "every token is forbidden"


@attrs.define(eq=False)
class StepOutcome:
    """Logprobs and failures of one step; of a row that fails nothing else is told."""

    logprobs: list[RowLogprobs] = attrs.field(factory=list, init=False)
    _failed: dict[int, str] = attrs.field(factory=dict, init=False)

    def fail(self, row: int, reason: str) -> None:
        """Note that a row cannot go on; its first reason counts. Told if it was to sample."""
        self._failed.setdefault(row, reason)

    def result(self, number: int, inputs: StepInputs, tokens: list[int]) -> StepResult:
        """`tokens` are of `inputs.samplings`."""
        rows = [sampling.row for sampling in inputs.samplings]
        if not self._failed:
            return StepResult(number, rows, tokens, logprobs=self.logprobs)
        kept = [index for index, row in enumerate(rows) if row not in self._failed]
        return StepResult(
            number,
            [rows[index] for index in kept],
            [tokens[index] for index in kept],
            logprobs=[item for item in self.logprobs if item.row not in self._failed],
            failed_rows=[(row, self._failed[row]) for row in rows if row in self._failed],
        )
