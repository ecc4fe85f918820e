"""Collects what one step found, and makes its `StepResult`: the same for every executor.

Sans-IO: plain values; arrays come as bytes, so that an executor without torch can use it, too.
Must not know logits, rings or why rows fail.
"""

import attrs

from ..step_messages import RowLogprobs, StepResult

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

    def result(
        self, number: int, rows: list[int], tokens: list[int], *, compute_s: float = 0.0,
        sample_s: float = 0.0,
    ) -> StepResult:  # fmt: skip
        """`tokens` are of `rows`, those that sampled."""
        if not self._failed:
            return StepResult(
                number, rows, tokens, compute_s, logprobs=self.logprobs, sample_s=sample_s
            )
        kept = [index for index, row in enumerate(rows) if row not in self._failed]
        return StepResult(
            number,
            [rows[index] for index in kept],
            [tokens[index] for index in kept],
            compute_s,
            logprobs=[item for item in self.logprobs if item.row not in self._failed],
            failed_rows=[(row, self._failed[row]) for row in rows if row in self._failed],
            sample_s=sample_s,
        )
