"""Executor: the engine core's side of its workers, a ranked pool of processes with their rings.

A worker that dies takes the pool down, and a new one takes its place, with the next *pool number*
and rings of its own, begun when every process of the last one is gone. The step loop then undoes
what was in flight. The engine ends where that does not help: when the workers cannot be ended, or
begun again with what READY has promised, or die again and again, or by their own fault: the root
then decides whether it was a request's. A step that fails or is late ends it, too, because the
workers' state is then unknown. Workers are reached by module name.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import msgspec
import trio

from ...nurseries.processes.process import Process, ProcessSpec
from ...nurseries.processes.process_exit import ProcessDied
from ...nurseries.processes.process_pool import run_process_pool
from ...nurseries.processes.spares import Spares
from ...nurseries.processes.spawned import Spawned
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.service import single_errors_unwrapped, start_service
from ...nurseries.tasks.task_tree import ProcessTree
from ...transports.control.channel import ControlChannel
from ...transports.control.handshake import PeerRefused, perform_parent_handshake
from ...transports.control.passed_fds import close_fds
from ..config import WORKER_MODULE, EngineSettings
from ..control_messages import TreeReply, TreeRequest
from ..errors import BootRefused, PromiseBroken, StepTimeout, WorkersDisagree
from ..step_messages import OUTPUT_RANK, KVMemory, Mask, Step, StepResult, WorkerInit, WorkerReady
from ..step_recorder import NO_RECORDER, StepRecorder
from .step_rings import StepRings, open_step_rings

OnProgress = Callable[[int, str, float], None]
OnWorkers = Callable[[Sequence[Process]], Awaitable[None]]
# A worker in a long native call answers its control task all the same: the loop is free.
TREE_TIMEOUT_S = 1.5
# Name of an engine's workers together, for `Spares.readiness`.
WORKERS = "workers"
# Pools in a row that may end before a step is complete, and losses that one request may be in
# before its next token. One more, and the root decides: another machine state, or this request.
LOSSES_MAX = 3

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class Worker:
    """Worker that is ready. Its control channel carries task trees and nothing else."""

    name: str
    ready: WorkerReady
    control: ControlChannel
    # Any number of tasks may ask, but only one may receive.
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _asked: int = attrs.field(default=0, init=False)

    async def task_tree(self) -> ProcessTree | None:
        """Live task tree; None without an answer within `TREE_TIMEOUT_S`, or if it has died.

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
    """Pools of workers, one after the other; `run` is its background task, once.

    It computes steps (`step_loop.StepExecutor`) while `run` runs. `on_workers` is awaited with all
    workers so far whenever one was spawned, before that one gets its INIT: who must outwait it
    knows it before it takes a device. `on_progress` gets each rank's reports: rank, phase and
    fraction. `on_failing` gets what will end `run`, before the workers are ended for it, which
    takes the ladder's time where one does not listen. `on_loss` is called at each loss.
    """

    settings: EngineSettings
    epoch: int
    on_progress: OnProgress
    on_workers: OnWorkers
    worker_module: str = WORKER_MODULE
    # The first workers, where they were started with this process.
    ahead: Sequence[Spawned] = ()
    on_failing: Callable[[Exception], None] = lambda error: None
    on_loss: Callable[[], None] = lambda: None
    recorder: StepRecorder = NO_RECORDER
    # Descriptors for each worker, which its engine was given: the progress page, on which it has a
    # slot, and the memory of its place.
    engine_fds: Sequence[int] = ()
    # Whose readiness hears of the workers'; a worker is one of these where it can be.
    spares: Spares | None = None
    # Losses so far.
    pool_number: int = attrs.field(default=0, init=False)
    # How the workers of the last loss ended.
    death: ProcessDied | None = attrs.field(default=None, init=False)
    # Agreed on first, and promised by READY.
    _promised: WorkerReady | None = attrs.field(default=None, init=False)
    # Losses since a step was complete.
    _losses: int = attrs.field(default=0, init=False)
    # Answer of the workers that were ready last.
    _latest: WorkerReady | None = attrs.field(default=None, init=False)
    # Whether the KV memory is what it was when `replaced` returned last.
    _is_kept: bool = attrs.field(default=True, init=False)
    # Set when workers are ready; a new one after each loss.
    _ready: trio.Event = attrs.field(factory=trio.Event, init=False)
    _rings: StepRings = attrs.field(init=False)
    _workers: list[Worker] = attrs.field(factory=list, init=False)
    _spawned: list[Process] = attrs.field(factory=list, init=False)

    async def run(
        self, *, task_status: trio.TaskStatus[WorkerReady] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `executor`: workers and the rings to them, until it is cancelled.

        Starts with what all workers agree on. Raises `ProcessDied` of the worker that died first,
        before the start or too often; `ProcessStuck` of one that cannot be ended; `HandshakeError`,
        `BootRefused` (of several ranks in a group), `WorkersDisagree`, `PromiseBroken`, or
        `StepTimeout` of a step that is late.
        Resource handling: workers, rings and their descriptors are gone afterwards, and those of
        one pool before the next one begins.
        Cancellation: the workers get the ladder, side by side; that bounds the cleanup.
        """
        while True:
            try:
                await self._run_pool(task_status)
            except ProcessDied as death:
                self._note_loss(death)
            await trio.lowlevel.checkpoint_if_cancelled()

    async def _run_pool(self, task_status: trio.TaskStatus[WorkerReady]) -> None:
        """Run one pool, until one of its workers dies."""
        opened = open_step_rings(
            self.settings.workers, self.settings.step_timeout_s, self.recorder, self.pool_number
        )
        try:
            with opened as rings, single_errors_unwrapped():
                specs = await self._specs()  # behind what may fail: a spare has to be owned now
                async with trio.open_nursery() as nursery:
                    begin = partial(self._begin_worker, rings)
                    run_pool = partial(run_process_pool, specs, ready=begin)
                    pool = await start_service(nursery, run_pool, name="worker-pool")
                    rings.close_workers_ends()
                    watch = partial(self._run_deadline, rings)
                    await start_service(nursery, watch, name="step-deadline")
                    self._workers = [worker for _, worker in pool.value]
                    self._take_over(rings, task_status)
        finally:
            # Whatever the cause: the step loop waits for others, until they come or it is ended.
            self.pool_number += 1
            if self._ready.is_set():
                self._ready = trio.Event()
            self._workers, self._spawned = [], []

    async def _specs(self) -> list[ProcessSpec]:
        """Specifications of all workers; the first may be there already, started ahead or a
        spare."""
        ahead = dict(enumerate(self.ahead))
        self.ahead = ()
        if self.spares is not None:
            self.spares.readiness.handle_starting(WORKERS)
            if not ahead and (spare := await self.spares.take()) is not None:
                ahead = {0: spare}
        return [
            ProcessSpec(f"worker-{rank}", self.worker_module, rank=rank, spawned=ahead.get(rank))
            for rank in range(self.settings.workers)
        ]

    async def _run_deadline(
        self, rings: StepRings, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await rings.run_deadline(task_status=task_status)
        except StepTimeout as error:
            self.on_failing(error)
            raise

    def _take_over(self, rings: StepRings, task_status: trio.TaskStatus[WorkerReady]) -> None:
        """Send steps to the workers from now on, which are ready. Raises `PromiseBroken`."""
        agreed = self._agreed()
        self._rings = rings
        if self._promised is None:
            self._promised = agreed
            task_status.started(agreed)
        else:
            try:
                _check_promise(self._promised, agreed)
            except PromiseBroken as error:
                self.on_failing(error)
                raise
            self._is_kept &= _keeps_memory(self._latest, agreed)
            logger.info("workers of pool %d are ready", self.pool_number)
        self._latest = agreed
        self._ready.set()
        if self.spares is not None:
            self.spares.readiness.handle_ready(WORKERS)

    def _note_loss(self, death: ProcessDied) -> None:
        """The pool is gone; raises the death where no other one shall take its place."""
        self.death = death
        self._losses += 1
        if self._promised is None or self._losses > LOSSES_MAX or death.exit.is_own_fault:
            self.on_failing(death)
            raise death
        logger.warning("%s; others take the place of all workers", str(death).partition("\n")[0])
        self.on_loss()

    # ---- steps

    def submit(self, step: Step) -> None:
        """Submit a step to `StepRings`; dropped after a loss."""
        self._rings.submit(step)

    def submit_mask(self, mask: Mask) -> None:
        self._rings.submit_mask(mask)

    async def result(self, number: int) -> StepResult | None:
        result = await self._rings.result(number)
        if result is not None:
            self._losses = 0
        return result

    async def replaced(self, losses: int) -> bool:
        """Wait for workers that are ready; returns whether the KV memory is as it was.

        Raises the last death after more than `LOSSES_MAX`.
        """
        if losses > LOSSES_MAX and self.death is not None:
            raise self.death
        await self._ready.wait()
        is_kept, self._is_kept = self._is_kept, True
        return is_kept

    # ---- workers

    async def _begin_worker(self, rings: StepRings, process: Process) -> Worker:
        self._spawned.append(process)
        await self.on_workers(list(self._spawned))
        rank = process.spec.rank
        control = ControlChannel(process.control, sends=[TreeRequest], receives=[TreeReply])
        init = WorkerInit(
            rank=rank, epoch=self.epoch, settings=self.settings, pool_number=self.pool_number
        )
        try:
            payload = await perform_parent_handshake(
                control,
                msgspec.msgpack.encode(init),
                who=process.spec.name,
                role="worker",
                fds=[*rings.worker_fds(rank), *self.engine_fds],
                pid=process.pid,
                boot_timeout_s=self.settings.boot_timeout_s,
                on_progress=partial(self.on_progress, rank),
            )
        except PeerRefused as refusal:
            raise BootRefused(refusal.who, refusal.reason, refusal.parameter) from refusal
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
            kv_memory=all_ready[OUTPUT_RANK].kv_memory if len(all_ready) == 1 else KVMemory.OWN,
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


def _keeps_memory(before: WorkerReady | None, ready: WorkerReady) -> bool:
    """Whether the keys and values of the workers before are where they were."""
    if before is None or before.kv_memory is KVMemory.OWN:
        return False
    return ready.kv_memory is KVMemory.FOUND and ready.kv_blocks == before.kv_blocks


def _check_promise(promised: WorkerReady, ready: WorkerReady) -> None:
    """Raises `PromiseBroken` unless all else is equal, and there are as many blocks or more."""
    blocks = min(promised.kv_blocks, ready.kv_blocks)
    ready = attrs.evolve(ready, kv_blocks=blocks, kv_memory=promised.kv_memory)
    before, now = attrs.asdict(promised), attrs.asdict(ready)
    names = [name for name in before if before[name] != now[name]]
    changed = [f"{name} was {before[name]} and is {now[name]}" for name in names]
    if changed:
        raise PromiseBroken(tuple(changed))
