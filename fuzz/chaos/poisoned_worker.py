"""A worker as any other, but that it aborts at the step of a poison.

The server of a campaign that has poisons runs it (`chaos_server`). A poison is known by its seed,
which also says at which token it acts: whoever computes that one ends, each time.
"""

import os
from functools import partial

import attrs

from ...engine.config import EngineSettings
from ...engine.kernels.library import native_fault
from ...engine.place_memory import PlaceMemory
from ...engine.step_messages import Step, StepResult, WorkerReady
from ...engine.worker.executor_interface import Pause, Progress, WaitMask, WorkerExecutor
from ...engine.worker.executors import make_executor
from ...engine.worker.process import main
from ...nurseries.processes.child import run_child
from .fault_plan import LATE_TOKENS_MAX, POISON_SEED


def tokens_till(seed: int) -> int | None:
    """After how many tokens of its output a request with this seed is to act; None: it is none."""
    tokens = seed - POISON_SEED
    return tokens if 0 <= tokens <= LATE_TOKENS_MAX else None


@attrs.define(eq=False)
class PoisonedExecutor:
    """Does as another executor does, but for poisons."""

    inner: WorkerExecutor
    name: str = attrs.Factory(lambda self: self.inner.name, takes_self=True)
    # {row of a poison: so many tokens it may sample}
    _left: dict[int, int] = attrs.field(factory=dict, init=False)

    def load(self, progress: Progress) -> WorkerReady:
        """As the other does."""
        return self.inner.load(progress)

    def execute(self, step: Step, wait_mask: WaitMask) -> StepResult:
        """As the other does; or it aborts."""
        if self.is_deadly(step):
            os.abort()
        return self.inner.execute(step, wait_mask)

    def is_deadly(self, step: Step) -> bool:
        """Whether this step samples the token at which a poison acts."""
        for row in step.finished:
            self._left.pop(row, None)
        for new in step.new:
            if (tokens := tokens_till(new.sampling.seed)) is not None:
                self._left[new.row] = tokens - (len(new.token_ids) - new.prompt_tokens)
        if not self._left:
            return False
        for row, samples in zip(step.rows, step.samples, strict=True):
            if samples and row in self._left:
                self._left[row] -= 1
        return any(left < 0 for left in self._left.values())


def make_poisoned(
    settings: EngineSettings, rank: int, pause: Pause, memory: PlaceMemory | None
) -> WorkerExecutor:
    """The executor that the settings name, with that."""
    return PoisonedExecutor(make_executor(settings, rank, pause, memory))


if __name__ == "__main__":
    native_fault()  # as the workers of a server do before they have their settings
    run_child(partial(main, make=make_poisoned))
