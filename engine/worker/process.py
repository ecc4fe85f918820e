"""The worker process: joins its engine, loads its share of the model, then computes steps.

Composition only. Loading runs in a thread, so that the death monitor and the control task live from
the first moment. Imports torch only where the executor needs it.
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import TypeVar

import attrs
import msgspec
import trio

from ...nurseries.processes.child import ChildFds, run_child
from ...nurseries.processes.heap import settle_heap
from ...nurseries.processes.progress_page import ProgressSlot, open_slot, passes_shown
from ...nurseries.processes.title import set_title
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.service import open_service
from ...nurseries.tasks.task_tree import ProcessTree, task_tree
from ...transports.codec import MalformedMessage
from ...transports.control.channel import ControlChannel
from ...transports.control.handshake import ChildHandshake, perform_child_handshake
from ...transports.control.passed_fds import close_fds
from ...transports.rings.ring_memory import READER_FDS, WRITER_FDS
from ...transports.rings.shm_ring import RingReader, RingWriter
from ..config import EngineSettings
from ..control_messages import BootPhase, TreeReply, TreeRequest
from ..errors import EngineError, refusal_of
from ..place_memory import PlaceMemory
from ..step_messages import OUTPUT_RANK, WorkerInit, WorkerReady
from ..step_recorder import open_recorder
from .executor_interface import Pause, WorkerExecutor
from .executors import make_executor
from .step_loop import StepLoop, StopSignal

T = TypeVar("T")
# Descriptors beside INIT: the steps' ring, the results' ring; then the engine's, if it has them:
# the progress page, and the memory.
RING_FDS = READER_FDS + WRITER_FDS
# Between two reports of how far a phase is: each wakes this loop, the engine's and the root's, and
# a small model has a tensor every millisecond. A person sees no more.
REPORT_S = 0.05
# Called with the settings, our rank, a way to pause until the worker is stopped, and memory that
# outlives us, which stays open.
MakeExecutor = Callable[[EngineSettings, int, Pause, PlaceMemory | None], WorkerExecutor]


async def main(child: ChildFds, make: MakeExecutor = make_executor) -> None:
    """Run one worker until a stop is ordered. Whatever fails in it, fails it."""
    with ExitStack() as owned:
        control = ControlChannel(child.control, sends=[TreeReply], receives=[TreeRequest])
        owned.enter_context(control)
        set_title("worker, waiting")
        handshake = await perform_child_handshake(control, "worker")
        owned.callback(close_fds, handshake.fds)
        init = msgspec.msgpack.decode(handshake.init, type=WorkerInit)
        set_title(f"worker {init.rank}")
        fds, engine_fds = handshake.fds[:RING_FDS], handshake.fds[RING_FDS:]
        page_fd = engine_fds[0] if engine_fds else None
        stop = owned.enter_context(closing(StopSignal()))
        # In a thread: importing a tensor library takes seconds, in which the loop must stay free.
        memory = PlaceMemory.of(engine_fds[1:])
        make_ours = partial(make, init.settings, init.rank, stop.pause, memory)
        progress = owned.enter_context(open_slot(page_fd, 1 + init.rank))
        executor = await run_or_refuse(handshake, progress, make_ours, thread_name="import")
        loop = StepLoop(
            executor=executor,
            rank=init.rank,
            output_rank=OUTPUT_RANK,
            steps=owned.enter_context(RingReader.attach(fds[:READER_FDS], init.rank)),
            results=owned.enter_context(RingWriter.attach(fds[READER_FDS:])),
            progress=progress,
            stop=stop,
            recorder=owned.enter_context(open_recorder(init.settings.record_steps, "worker")),
            pool_number=init.pool_number,
        )
        worker = WorkerProcess(init, control, handshake, loop)
        await worker.run(executor)


@attrs.define(eq=False)
class WorkerProcess:
    """Parts of this process, with its account of itself for the task tree."""

    init: WorkerInit
    control: ControlChannel
    handshake: ChildHandshake
    loop: StepLoop
    phase: str = attrs.field(default=str(BootPhase.START), init=False)

    async def run(self, executor: WorkerExecutor) -> None:
        """Load, say READY, then serve until cancelled.

        Both tasks are services: a worker without one of them would be silent, not dead.
        """
        async with open_service(self._run_control, name="control"):
            ready = await self._load(executor)
            async with open_service(self.loop.run, name="step-loop", waits_for="steps"):
                self.phase = "serve"
                settle_heap()
                await self.handshake.ready(msgspec.msgpack.encode(ready))
                await trio.sleep_forever()

    async def _load(self, executor: WorkerExecutor) -> WorkerReady:
        """Read the model, and report how far that is."""
        reported_s = -math.inf

        def report(phase: str, fraction: float) -> None:
            nonlocal reported_s
            now_s = time.monotonic()
            if phase == self.phase and fraction < 1 and now_s < reported_s + REPORT_S:
                return
            self.phase, reported_s = phase, now_s
            trio.from_thread.run(self.handshake.progress, phase, fraction)

        load = partial(executor.load, report)
        return await run_or_refuse(self.handshake, self.loop.progress, load, thread_name="load")

    async def _run_control(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `control`: the engine's questions."""
        task_status.started()
        while True:
            try:
                with waiting_for("questions"):
                    message, fds = await self.control.receive()
                close_fds(fds)
                assert isinstance(message, TreeRequest)
                await self.control.send(TreeReply(message.call_id, self._tree_text()))
            except MalformedMessage:
                continue  # logged by the channel; the asker has a deadline
            except (trio.EndOfChannel, trio.BrokenResourceError):
                await trio.sleep_forever()  # the engine has left: the death monitor's business

    def _tree_text(self) -> str:
        tree = ProcessTree(
            f"worker {self.init.rank}",
            os.getpid(),
            facts={
                "executor": self.loop.executor.name,
                "pool_number": self.init.pool_number,
                "phase": self.phase,
                "step": self.loop.step,
                "rows": self.loop.rows,
            },
            tasks=task_tree(),
        )
        return msgspec.json.encode(tree).decode()


async def run_or_refuse(
    handshake: ChildHandshake, progress: ProgressSlot, boot: Callable[[], T], *, thread_name: str
) -> T:
    """Run a part of booting in a thread; an error that no restart cures refuses for good.

    Meanwhile our slot shows this loop; when we serve, it is the steps'.
    Cancellation waits for what is in hand: the thread is not abandoned.
    """
    try:
        with passes_shown(progress):
            return await trio.to_thread.run_sync(boot, thread_name=thread_name)
    except EngineError as error:
        await handshake.refuse(*refusal_of(error))


if __name__ == "__main__":
    run_child(main)
