"""In-process engine: behind the same channel as the engine process, in the caller's process.

The same core, server and step loop; steps run in a thread of this process instead of in workers.
Nothing is isolated: what fails here fails its host. The worker's code is reached by module name, as
a process would be. `runtime.frontend.inproc` makes a runtime of it.
"""

import queue
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Any, NoReturn, Protocol, cast

import attrs
import msgspec
import trio

from ...nurseries.tasks.changes import Changes
from ...nurseries.tasks.service import open_service
from ...nurseries.tasks.task_tree import ProcessTree, task_tree
from ...nurseries.tasks.thread import run_thread
from ...transports.links.channel import Channel
from ..config import EngineSettings
from ..control_messages import EngineReady
from ..core.engine_core import EngineCore
from ..errors import InvalidParameter, StepFailed
from ..step_messages import Mask, Step, StepResult, WorkerReady
from .server import EngineServer
from .services import describe_engine, open_engine_services

# By name, not by import: the engine's side never imports the worker's.
_EXECUTORS_MODULE = "triolet.engine.worker.executors"


class _WorkerExecutor(Protocol):
    """The calls of a worker's executor that are used here; the worker's own protocol says more."""

    def load(self, progress: Any) -> WorkerReady: ...

    def execute(self, step: Step, wait_mask: Any) -> StepResult: ...


class _Stopped(Exception):
    """The executor's thread is to end while it waits for a mask."""


@attrs.define(eq=False)
class InprocExecutor:
    """Executor of a worker in a thread; see `step_loop.StepExecutor`.

    `run` is its background task; what is submitted is computed while it runs.
    """

    worker: _WorkerExecutor
    # The thread's orders, None to end it; bounded by the steps in flight, each with its mask.
    _orders: queue.SimpleQueue[Step | Mask | None] = attrs.field(
        factory=queue.SimpleQueue, init=False
    )
    # {number: what came of it}, not asked for yet; bounded by the steps in flight.
    _answers: dict[int, StepResult | StepFailed] = attrs.field(factory=dict, init=False)
    _answered: Changes = attrs.field(factory=Changes, init=False)

    async def load(self) -> WorkerReady:
        """Load the model, in a thread. Cancellation waits for it."""
        return await trio.to_thread.run_sync(self.worker.load, _no_progress)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `executor`: owns the thread; never returns unless cancelled.

        Cancellation waits for the step in hand: its thread is not abandoned.
        """
        task_status.started()
        thread = partial(self._run_thread, trio.lowlevel.current_trio_token())
        await run_thread(thread, stop=lambda: self._orders.put(None), name="inproc-steps")

    @property
    def pool_number(self) -> int:
        """Always the first: a thread is not lost without this process."""
        return 0

    async def replaced(self, losses: int) -> NoReturn:
        """Not called."""
        raise AssertionError(f"{losses} losses of a thread")

    def submit(self, step: Step) -> None:
        """The thread computes it when it has computed those before."""
        self._orders.put(step)

    def submit_mask(self, mask: Mask) -> None:
        """Submit the mask of the oldest step that has not been answered."""
        self._orders.put(mask)

    async def result(self, number: int) -> StepResult:
        """Wait for what came of step `number`. Raises `StepFailed` from whatever it raised.

        Cancellation leaves the answer where it is.
        """
        await trio.lowlevel.checkpoint()
        while number not in self._answers:
            await self._answered.wait()
        answer = self._answers.pop(number)
        if isinstance(answer, StepFailed):
            raise answer from answer.__cause__
        return answer

    def _run_thread(self, token: trio.lowlevel.TrioToken) -> None:
        try:
            while (order := self._orders.get()) is not None:
                # A mask here is that of a step which failed before it asked for it.
                if isinstance(order, Step):
                    token.run_sync_soon(self._put_answer, order.number, self._answer(order))
        except _Stopped:
            return

    def _answer(self, step: Step) -> StepResult | StepFailed:
        try:
            return self.worker.execute(step, self._wait_mask)
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError) as error:
            failure = StepFailed(step.number, 0, traceback.format_exc())
            failure.__cause__ = error
            return failure

    def _wait_mask(self) -> Mask:
        order = self._orders.get()
        if order is None:
            raise _Stopped
        assert isinstance(order, Mask), "a mask comes before the next step"
        return order

    def _put_answer(self, number: int, answer: StepResult | StepFailed) -> None:
        self._answers[number] = answer
        self._answered.notify()


@attrs.frozen(eq=False)
class InprocEngine:
    """An engine that takes requests, and what frontends get to know of it."""

    server: EngineServer
    ready: EngineReady


@asynccontextmanager
async def open_inproc_engine(
    settings: EngineSettings,
    channel: Channel,
    *,
    name: str = "engine 0",
    wrap: Callable[[Any], Any] = lambda worker: worker,
) -> AsyncIterator[InprocEngine]:
    """Load the model and serve the channel's peers for the body of the block.

    `wrap` may put something around the worker's executor that fails where a test wants it to.
    The channel's own tasks and connections are the caller's. Raises `ModelFolderError`,
    `InvalidParameter`; what fails later fails the body. `workers` is taken as 1.
    """
    if settings.kv_events_endpoint:
        raise InvalidParameter("kv_events_endpoint", "needs an engine that is a process")
    make = vars(import_module(_EXECUTORS_MODULE))["make_executor"]
    made = make(attrs.evolve(settings, workers=1), 0, _no_pause)
    executor = InprocExecutor(cast(_WorkerExecutor, wrap(made)))
    core = EngineCore(settings, await executor.load())
    server = EngineServer(core, channel, partial(_tree_text, name))
    async with (
        open_service(executor.run, name="executor"),
        open_engine_services(server, executor),
    ):
        yield InprocEngine(server, describe_engine(core))


async def _tree_text(name: str) -> str:
    tree = ProcessTree(name, 0, facts={"in process": 1}, tasks=task_tree())
    return msgspec.json.encode(tree).decode()


def _no_progress(phase: str, fraction: float) -> None:
    """Loading is not reported."""


def _no_pause(seconds: float) -> None:
    """Steps of the null executor take no time here: tests of this engine run under any clock."""
