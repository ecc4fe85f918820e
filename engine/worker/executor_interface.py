"""The interface of executors, and the outcome of a step, which all of them collect alike.

Implementations are listed in `executors`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs

from ..control_messages import BootPhase
from ..step_messages import Mask, RowLogprobs, Step, StepResult, WorkerReady

# Called with a phase (`control_messages.BootPhase`) and the fraction of it that is done, from the
# loading thread. Phases come in order, and each that is begun is reported as done, with 1.
Progress = Callable[[str, float], None]
# Blocks until the mask of the step in hand is there.
WaitMask = Callable[[], Mask]
# Sleeps so many seconds, or raises as soon as the worker has to stop.
Pause = Callable[[float], None]


def no_pause(_seconds: float) -> None:
    """Not pause: for an executor that no worker stops."""


@contextmanager
def boot_phase(progress: Progress, phase: BootPhase) -> Iterator[None]:
    """Report the phase as begun, and as done unless it fails."""
    progress(phase, 0.0)
    yield
    progress(phase, 1.0)


class WorkerExecutor(Protocol):
    """Holds weights and rows. Both methods block and run in a thread, one call at a time."""

    @property
    def name(self) -> str:
        """Which executor it is, for people."""

    def load(self, progress: Progress) -> WorkerReady:
        """Load the model and take the KV memory.

        Raises `ModelFolderError` or `InvalidParameter`.
        """

    def execute(self, step: Step, wait_mask: WaitMask) -> StepResult:
        """Compute one step. `wait_mask` is called only if the step has masked rows.

        Whatever it raises is reported for this step; the rows are then as if it had computed
        nothing, and only a step that forgets them makes sense.
        """


@attrs.define(eq=False)
class StepOutcome:
    """Logprobs and failures of one step; a row that fails has nothing else in the result."""

    logprobs: list[RowLogprobs] = attrs.field(factory=list, init=False)
    _failed: dict[int, str] = attrs.field(factory=dict, init=False)

    def fail(self, row: int, reason: str) -> None:
        """Note that a row cannot go on; its first reason counts. Reported if it was to sample."""
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
