"""A worker some of whose rows fail: those of requests whose seed says after how many tokens.

Wraps an executor in this process. A row fails as it does where its logits are no numbers: alone,
told in the result. By the output index and not by steps, so that preemption changes nothing. Must
not know which executor computes.
"""

from typing import Any, Protocol

import attrs

from ...engine.step_messages import Step, StepResult, WorkerReady

# A request with seed `DOOMED + n` fails in the place of its output token n; other seeds are below.
DOOMED = 2**40
REASON = "this row fails on order"


class Computes(Protocol):
    """What is used of an executor."""

    def load(self, progress: Any) -> WorkerReady:
        """See `WorkerExecutor`."""

    def execute(self, step: Step, wait_mask: Any) -> StepResult:
        """See `WorkerExecutor`."""


@attrs.define(eq=False)
class FailingRows:
    """Like `worker`, but for its doomed rows."""

    worker: Computes
    # {row that is held and doomed: how many tokens it samples before it fails}.
    _left: dict[int, int] = attrs.field(factory=dict, init=False)

    def load(self, progress: Any) -> WorkerReady:
        """As the worker's."""
        return self.worker.load(progress)

    def execute(self, step: Step, wait_mask: Any) -> StepResult:
        """As the worker's; the tokens of rows that fail are left out."""
        for row in step.finished:
            self._left.pop(row, None)
        for new in step.new:
            if new.sampling.seed >= DOOMED:
                output = len(new.token_ids) - new.prompt_tokens
                self._left[new.row] = new.sampling.seed - DOOMED - output
        result = self.worker.execute(step, wait_mask)
        failed = [row for row in result.rows if self._left.get(row, 1) <= 0]
        for row in result.rows:
            if row in self._left:
                self._left[row] -= 1
        kept = [index for index, row in enumerate(result.rows) if row not in failed]
        return attrs.evolve(
            result,
            rows=[result.rows[index] for index in kept],
            token_ids=[result.token_ids[index] for index in kept],
            failed_rows=[*result.failed_rows, *((row, REASON) for row in failed)],
        )
