"""What a worker's step loop needs of whatever computes: the seam between executors.

Implementations are listed in `executors`. Must not know rings, tasks or processes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..messages import BootPhase
from ..step_messages import Mask, Step, StepResult, WorkerReady

# Called with a phase (`messages.BootPhase`) and the fraction of it that is done, from the loading
# thread. Phases come in order, and each that is begun is reported as done, with 1.
Progress = Callable[[str, float], None]
# Blocks until the mask of the step in hand is there.
WaitMask = Callable[[], Mask]
# Sleeps so many seconds, or raises as soon as the worker is told to stop.
Pause = Callable[[float], None]


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
