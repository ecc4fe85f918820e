"""Executor: the engine core's side of its workers, a ranked pool of processes with their rings.

A worker that dies takes the pool down, and with it the engine; so does a step that fails or is
late, because the workers' state is then unknown. Workers are reached by module name.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import msgspec
import trio

from ...nurseries.processes.process import Process, ProcessSpec
from ...nurseries.processes.process_pool import run_process_pool
from ...nurseries.processes.spawned import Spawned
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.service import single_errors_unwrapped, start_service
from ...nurseries.tasks.task_tree import ProcessTree
from ...transports.control.channel import ControlChannel
from ...transports.control.handshake import PeerRefused, perform_parent_handshake
from ...transports.control.passed_fds import close_fds
from ..config import WORKER_MODULE, EngineSettings
from ..errors import BootRefused, StepTimeout, WorkersDisagree
from ..messages import TreeReply, TreeRequest
from ..step_messages import OUTPUT_RANK, WorkerInit, WorkerReady
from ..step_recorder import NO_RECORDER, StepRecorder
from .step_rings import StepRings, open_step_rings

OnProgress = Callable[[int, str, float], None]
OnWorkers = Callable[[Sequence[Process]], Awaitable[None]]
# A worker in a long native call answers its control task all the same: the loop is free.
TREE_TIMEOUT_S = 1.5


@attrs.define(eq=False)
class Worker:
    """One worker that is ready. Its control channel carries task trees and nothing else."""

    name: str
    ready: WorkerReady
    control: ControlChannel
    # Any number of tasks may ask, but only one may receive.
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _asked: int = attrs.field(default=0, init=False)

    async def task_tree(self) -> ProcessTree | None:
        """Its live task tree; None without an answer within `TREE_TIMEOUT_S`, or if it has died.

        Cancellation: the next caller drops an answer that comes later.
        """
        with trio.move_on_after(TREE_TIMEOUT_S), waiting_for(f"the task tree of {self.name}"):
            async with self._turn:
                try:
                    return await self._ask()
                except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
                    return None  # dead; the pool raises how
        return None

    async def _ask(self) -> ProcessTree:
        self._asked += 1
        await self.control.send(TreeRequest(self._asked))
        while True:
            reply, fds = await self.control.receive()
            close_fds(fds)
            assert isinstance(reply, TreeReply)
            if reply.call_id == self._asked:
                return msgspec.json.decode(reply.tree, type=ProcessTree)


@attrs.define(eq=False)
class Executor:
    """A pool of workers; `run` is its background task, once.

    `on_workers` is awaited with all workers so far whenever one was spawned, before that one gets
    its INIT: who must outwait it knows it before it takes a device. `on_progress` gets each rank's
    reports: rank, phase and fraction. `on_failing` gets what will end `run`, before the workers are
    ended for it, which takes the ladder's time where one does not listen.
    """

    settings: EngineSettings
    epoch: int
    on_progress: OnProgress
    on_workers: OnWorkers
    worker_module: str = WORKER_MODULE
    # The first workers, where they were started with this process.
    ahead: Sequence[Spawned] = ()
    on_failing: Callable[[Exception], None] = lambda error: None
    # This engine's progress page; each worker has a slot on it.
    page_fd: int | None = None
    recorder: StepRecorder = NO_RECORDER
    # What the step loop computes with, while `run` runs: a worker's death or silence cancels it.
    rings: StepRings = attrs.field(init=False)
    _workers: list[Worker] = attrs.field(factory=list, init=False)
    _spawned: list[Process] = attrs.field(factory=list, init=False)

    async def run(
        self, *, task_status: trio.TaskStatus[WorkerReady] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `executor`: rings and workers, until it is cancelled.

        Starts with what all workers agree on. Raises `ProcessDied` of the worker that died first,
        `HandshakeError`, `BootRefused` (of several ranks in a group), `WorkersDisagree`, or
        `StepTimeout` of a step that is late.
        Resource handling: workers, rings and their descriptors are gone afterwards.
        Cancellation: the workers get the ladder, side by side; that bounds the cleanup.
        """
        workers = self.settings.workers
        ahead = dict(enumerate(self.ahead))
        specs = [
            ProcessSpec(f"worker-{rank}", self.worker_module, rank=rank, spawned=ahead.get(rank))
            for rank in range(workers)
        ]
        rings = open_step_rings(workers, self.settings.step_timeout_s, self.recorder)
        with rings as self.rings, single_errors_unwrapped():
            async with trio.open_nursery() as nursery:
                run_pool = partial(
                    run_process_pool, specs, ready=self._ready, on_death=self.on_failing
                )
                pool = await start_service(nursery, run_pool, name="worker-pool")
                self.rings.close_workers_ends()
                await start_service(nursery, self._run_deadline, name="step-deadline")
                self._workers = [worker for _, worker in pool.value]
                task_status.started(self._agreed())

    async def _run_deadline(self, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            await self.rings.run_deadline(task_status=task_status)
        except StepTimeout as error:
            self.on_failing(error)
            raise

    async def _ready(self, process: Process) -> Worker:
        self._spawned.append(process)
        await self.on_workers(list(self._spawned))
        rank = process.spec.rank
        control = ControlChannel(process.control, sends=[TreeRequest], receives=[TreeReply])
        fds = [*self.rings.worker_fds(rank), *([] if self.page_fd is None else [self.page_fd])]
        init = WorkerInit(rank=rank, epoch=self.epoch, settings=self.settings)
        try:
            payload = await perform_parent_handshake(
                control,
                msgspec.msgpack.encode(init),
                who=process.spec.name,
                role="worker",
                fds=fds,
                pid=process.pid,
                boot_timeout_s=self.settings.boot_timeout_s,
                on_progress=partial(self.on_progress, rank),
            )
        except PeerRefused as refusal:
            raise BootRefused(refusal.who, refusal.reason) from refusal
        ready = msgspec.msgpack.decode(payload, type=WorkerReady)
        return Worker(process.spec.name, ready, control)

    def _agreed(self) -> WorkerReady:
        """The least of all limits. Raises `WorkersDisagree`."""
        all_ready = [worker.ready for worker in self._workers]
        if len({(ready.numerics_id, ready.vocab_size) for ready in all_ready}) > 1:
            raise WorkersDisagree(tuple(ready.numerics_id for ready in all_ready))
        return attrs.evolve(
            all_ready[OUTPUT_RANK],
            kv_blocks=min(ready.kv_blocks for ready in all_ready),
            max_model_len=min(ready.max_model_len for ready in all_ready),
            bitwise=all(ready.bitwise for ready in all_ready),
        )

    async def trees(self) -> list[ProcessTree]:
        """The live task tree of every worker that answers in time, by rank. Any task may ask."""
        found: dict[int, ProcessTree] = {}

        async def ask(rank: int, worker: Worker) -> None:
            tree = await worker.task_tree()
            if tree is not None:
                found[rank] = tree

        async with trio.open_nursery() as nursery:
            for rank, worker in enumerate(self._workers):
                nursery.start_soon(ask, rank, worker, name=f"tree-{rank}")
        return [found[rank] for rank in sorted(found)]
