"""An engine inside this process, behind the same channel: for tests and tiny offline use.

The same core, server and step loop as in the engine process; steps run in a thread of this process
instead of in workers. Nothing is isolated: what fails here fails its host. The worker's code is
reached by module name, as a process would be. Must not know rings, sockets or handshakes.
"""

import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Any, Protocol, cast

import attrs
import msgspec
import trio

from ..nurseries.task_tree import ProcessTree, task_tree
from ..transports.channel import Channel, Peer
from .config import EngineSettings
from .core.engine_core import EngineCore
from .core.orphan_watch import OrphanWatch
from .errors import StepFailed
from .server import EngineServer
from .services import open_engine_services
from .step_messages import Mask, Step, StepResult, WorkerReady

# By name, not by import: the engine's side never imports the worker's.
_EXECUTORS_MODULE = "triolet.engine.worker.executors"


class _WorkerExecutor(Protocol):
    """What is used of a worker's executor; the worker's own protocol says more."""

    def load(self, progress: Any) -> WorkerReady: ...

    def execute(self, step: Step, wait_mask: Any) -> StepResult: ...


@attrs.define(eq=False)
class InprocExecutor:
    """One worker's executor in a thread; see `step_loop.StepExecutor`."""

    worker: _WorkerExecutor
    _steps: dict[int, Step] = attrs.field(factory=dict, init=False)  # bounded by steps in flight
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(1), init=False
    )

    def submit(self, step: Step) -> None:
        """Keep the step until its result is asked for."""
        self._steps[step.number] = step

    async def result(self, number: int) -> StepResult:
        """Compute step `number` in a thread. Raises `StepFailed` from whatever it raised.

        Cancellation waits for the step in hand: its thread is not abandoned.
        """
        step = self._steps.pop(number)
        try:
            return await trio.to_thread.run_sync(
                self.worker.execute, step, _no_mask, limiter=self._limiter
            )
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError) as error:
            raise StepFailed(number, 0, traceback.format_exc()) from error


@asynccontextmanager
async def open_inproc_engine(
    settings: EngineSettings, channel: Channel, *, name: str = "engine 0"
) -> AsyncIterator[EngineServer]:
    """Load the model and serve the channel's peers for the body of the block.

    The channel's own tasks and connections are the caller's. Raises `ModelFolderError`,
    `InvalidParameter`; what fails later fails the body. `workers` is taken as 1.
    """
    make = vars(import_module(_EXECUTORS_MODULE))["make_executor"]
    worker = cast(_WorkerExecutor, make(attrs.evolve(settings, workers=1), 0, _no_pause))
    ready = await trio.to_thread.run_sync(worker.load, _no_progress)
    core = EngineCore(settings, ready)
    tree = partial(_tree_text, name)
    server = EngineServer(core, channel, OrphanWatch[Peer](settings.orphan_s), tree=tree)
    async with open_engine_services(server, InprocExecutor(worker)):
        yield server


async def _tree_text(name: str) -> str:
    tree = ProcessTree(name, 0, facts={"in process": 1}, tasks=task_tree())
    return msgspec.json.encode(tree).decode()


def _no_progress(phase: str, fraction: float) -> None:
    """Nobody watches an engine load in its own process."""


def _no_pause(seconds: float) -> None:
    """Steps of the null executor take no time here: tests of this engine run under any clock."""


def _no_mask() -> Mask:
    raise AssertionError("nothing submits masked rows yet")
