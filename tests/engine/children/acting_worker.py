"""A worker that misbehaves as `acts.json` in its model folder says: {rank: what it does}.

"die"     is killed by SIGKILL while it loads
"differ"  has numerics of its own
"raise"   raises in every step
"hang"    never answers a step
"""

import json
import os
import pathlib
import signal
from functools import partial

import attrs

from triolet.engine.config import EngineSettings
from triolet.engine.control_messages import BootPhase
from triolet.engine.place_memory import PlaceMemory
from triolet.engine.step_messages import Step, StepResult, WorkerReady
from triolet.engine.worker.executor_interface import Pause, Progress, WaitMask, WorkerExecutor
from triolet.engine.worker.executors import make_executor
from triolet.engine.worker.process import main
from triolet.nurseries.processes.child import run_child

FOREVER_S = 3600.0


@attrs.define(eq=False)
class ActingExecutor:
    """Does as the null executor does, but for its act."""

    inner: WorkerExecutor
    rank: int
    act: str
    pause: Pause
    name: str = "acting"

    def load(self, progress: Progress) -> WorkerReady:
        progress(BootPhase.LOAD_WEIGHTS, 0.5)
        if self.act == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        ready = self.inner.load(progress)
        if self.act == "differ":
            return attrs.evolve(ready, numerics_id=f"numerics of rank {self.rank}")
        return ready

    def execute(self, step: Step, wait_mask: WaitMask) -> StepResult:
        if self.act == "raise":
            raise ZeroDivisionError(f"as rank {self.rank} was told to")
        if self.act == "hang":
            self.pause(FOREVER_S)
        return self.inner.execute(step, wait_mask)


def make_acting_executor(
    settings: EngineSettings, rank: int, pause: Pause, memory: PlaceMemory | None
) -> WorkerExecutor:
    acts = json.loads((pathlib.Path(settings.model) / "acts.json").read_text())
    inner = make_executor(settings, rank, pause, memory)
    return ActingExecutor(inner, rank, acts.get(str(rank), ""), pause)


if __name__ == "__main__":
    run_child(partial(main, make=make_acting_executor))
