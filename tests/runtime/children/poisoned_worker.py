"""A worker of the null executor that aborts when it is given a prompt with POISON in it."""

import os
from functools import partial

import attrs

from triolet.engine.config import EngineSettings
from triolet.engine.place_memory import PlaceMemory
from triolet.engine.step_messages import Step, StepResult, WorkerReady
from triolet.engine.worker.executor_interface import Pause, Progress, WaitMask, WorkerExecutor
from triolet.engine.worker.executors import make_executor
from triolet.engine.worker.process import main
from triolet.nurseries.processes.child import run_child

POISON = 13


@attrs.define(eq=False)
class PoisonedExecutor:
    """Does as the null executor does, but for that."""

    inner: WorkerExecutor
    name: str = "poisoned"

    def load(self, progress: Progress) -> WorkerReady:
        return self.inner.load(progress)

    def execute(self, step: Step, wait_mask: WaitMask) -> StepResult:
        if any(POISON in new.token_ids[: new.prompt_tokens] for new in step.new):
            os.abort()
        return self.inner.execute(step, wait_mask)


def make_poisoned(
    settings: EngineSettings, rank: int, pause: Pause, memory: PlaceMemory | None
) -> WorkerExecutor:
    return PoisonedExecutor(make_executor(settings, rank, pause, memory))


if __name__ == "__main__":
    run_child(partial(main, make=make_poisoned))
