"""The engine core's side of its workers: a ranked pool of processes, rings to and from them.

    core  --STEP, MASK-->  broadcast ring  -->  every worker
    core  <--result, failure--  one ring for each worker

Every worker acknowledges every step; the tokens come from the output rank. A worker that dies takes
the pool down, and with it the engine; so does a step that fails or is late, because the workers'
state is then unknown. Must not know requests or models: workers are reached by module name.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import attrs
import msgspec
import trio

from ..nurseries.process import Process, ProcessSpec
from ..nurseries.process_pool import run_process_pool
from ..nurseries.task_tree import ProcessTree
from ..nurseries.waiting import waiting_for
from ..transports.codec import Codec
from ..transports.control_channel import ControlChannel
from ..transports.control_handshake import perform_parent_handshake
from ..transports.passed_fds import close_fds
from ..transports.ring_memory import create_ring
from ..transports.shm_ring import RingReader, RingWriter
from .config import EngineSettings
from .errors import EngineError, StepFailed
from .messages import TreeReply, TreeRequest
from .step_messages import (
    CORE_TO_WORKER,
    WORKER_TO_CORE,
    Mask,
    Step,
    StepFailure,
    StepResult,
    WorkerInit,
    WorkerReady,
)

# By name, not by import: a process boundary is an import boundary.
WORKER_MODULE = "triolet.engine.worker.process"
# One step computes, one waits behind it, each with its mask.
RING_SLOTS = 4
# A step with one prompt of 16 k tokens fits a slot; a longer one goes in a memfd beside it.
STEP_SLOT_BYTES = 1 << 17
# A result is a few numbers a row; 1024 rows fit.
RESULT_SLOT_BYTES = 1 << 15
# The rank whose tokens count; with pipeline ranks it would be the last stage's first.
OUTPUT_RANK = 0
# A worker in a long native call answers its control task all the same: the loop is free.
TREE_TIMEOUT_S = 1.5

OnProgress = Callable[[str, float], None]
OnWorkers = Callable[[list[Process]], None]


class StepTimeout(EngineError):
    """No result in time. `step`, `timeout_s`, and the ranks that had not answered."""

    code = "step_timeout"
    retryable = True

    def __init__(self, step: int, timeout_s: float, ranks: tuple[int, ...]) -> None:
        super().__init__(step, timeout_s, ranks)
        self.step, self.timeout_s, self.ranks = step, timeout_s, ranks

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.ranks))
        return f"step {self.step} had no answer within {self.timeout_s:g} s from worker {ranks}"


@attrs.define(eq=False)
class _Worker:
    """One worker as the core sees it; `control` carries task trees and nothing of a step."""

    process: Process
    control: ControlChannel
    ready: WorkerReady


@attrs.define(eq=False)
class Executor:
    """A pool of workers; `run` is its background task. See `step_loop.StepExecutor`.

    `on_workers` hears of every spawned worker at once, so that the root learns whom to wait for.
    """

    settings: EngineSettings
    epoch: int
    on_progress: OnProgress
    on_workers: OnWorkers
    _steps: RingWriter = attrs.field(init=False)
    _results: list[RingReader] = attrs.field(factory=list, init=False)
    _workers: list[_Worker] = attrs.field(factory=list, init=False)
    _spawned: list[Process] = attrs.field(factory=list, init=False)
    _steps_codec: Codec = attrs.field(factory=lambda: Codec(*CORE_TO_WORKER), init=False)
    _results_codec: Codec = attrs.field(factory=lambda: Codec(*WORKER_TO_CORE), init=False)

    async def run(
        self, *, task_status: trio.TaskStatus[WorkerReady] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `executor`: rings and workers, until it is cancelled.

        Starts with what all workers agree on. Raises `ProcessDied` of the worker that died first,
        `HandshakeError`, or `EngineError` if the workers disagree.
        Resource handling: workers, rings and their descriptors are gone afterwards.
        """
        ranks = range(self.settings.workers)
        with ExitStack() as rings:
            inits = self._make_rings(rings)
            specs = [ProcessSpec(f"worker-{rank}", WORKER_MODULE, rank=rank) for rank in ranks]
            async with trio.open_nursery() as nursery:
                pool = await nursery.start(
                    partial(run_process_pool, specs, ready=partial(self._ready, inits)),
                    name="worker-pool",
                )
                self._workers = [worker for _, worker in pool]
                task_status.started(self._agreed())

    def _make_rings(self, owned: ExitStack) -> list[list[int]]:
        """Our sides, and for each worker the descriptors of its sides; `owned` closes all."""
        workers = self.settings.workers
        steps = owned.enter_context(
            create_ring(readers=workers, slots=RING_SLOTS, slot_bytes=STEP_SLOT_BYTES)
        )
        self._steps = owned.enter_context(RingWriter.attach(steps.writer_fds()))
        inits = []
        for rank in range(workers):
            results = owned.enter_context(
                create_ring(readers=1, slots=RING_SLOTS, slot_bytes=RESULT_SLOT_BYTES)
            )
            self._results.append(owned.enter_context(RingReader.attach(results.reader_fds(0), 0)))
            inits.append([*steps.reader_fds(rank), *results.writer_fds()])
        return inits

    async def _ready(self, inits: list[list[int]], process: Process) -> _Worker:
        self._spawned.append(process)
        self.on_workers(self._spawned)
        rank = process.spec.rank
        control = ControlChannel(process.control, sends=[TreeRequest], receives=[TreeReply])
        init = WorkerInit(rank=rank, epoch=self.epoch, settings=self.settings)
        payload = await perform_parent_handshake(
            control,
            msgspec.msgpack.encode(init),
            who=process.spec.name,
            role="worker",
            fds=inits[rank],
            epoch=self.epoch,
            pid=process.pid,
            boot_timeout_s=self.settings.boot_timeout_s,
            on_progress=lambda phase, fraction: self._progress(rank, phase, fraction),
        )
        return _Worker(process, control, msgspec.msgpack.decode(payload, type=WorkerReady))

    def _progress(self, rank: int, phase: str, fraction: float) -> None:
        if rank == OUTPUT_RANK:  # ranks load side by side; one bar tells enough
            self.on_progress(phase, fraction)

    def _agreed(self) -> WorkerReady:
        """The least of all limits. Raises `WorkersDisagree`."""
        first = self._workers[0].ready
        if any(worker.ready.numerics_id != first.numerics_id for worker in self._workers):
            raise WorkersDisagree(tuple(worker.ready.numerics_id for worker in self._workers))
        return attrs.evolve(first, kv_blocks=min(w.ready.kv_blocks for w in self._workers))

    # ---- steps

    def submit(self, step: Step) -> None:
        """Hand a step to every worker. Raises `RingFull`, which the steps in flight rule out."""
        self._steps.write(self._steps_codec.encode(step))

    def submit_mask(self, mask: Mask) -> None:
        """Hand the mask of a submitted step to every worker; it may be computing already."""
        self._steps.write(self._steps_codec.encode(mask))

    async def result(self, number: int) -> StepResult:
        """Wait until every rank has answered step `number`; the output rank's tokens.

        Raises `StepFailed` with the first traceback, `StepTimeout`. Cancellation leaves answers in
        the rings; the pool is being stopped then.
        """
        tokens: StepResult | None = None
        silent = set(range(len(self._results)))
        with trio.move_on_after(self.settings.step_timeout_s):
            for rank, ring in enumerate(self._results):
                answer = self._results_codec.decode(await ring.wait_read())
                silent.discard(rank)
                if isinstance(answer, StepFailure):
                    raise StepFailed(answer.number, answer.rank, answer.traceback)
                assert isinstance(answer, StepResult)
                assert answer.number == number, "every worker answers every step in order"
                if rank == OUTPUT_RANK:
                    tokens = answer
        if silent or tokens is None:
            raise StepTimeout(number, self.settings.step_timeout_s, tuple(sorted(silent)))
        return tokens

    # ---- looking on

    async def trees(self) -> list[ProcessTree]:
        """The live task tree of every worker that answers in time."""
        trees: list[ProcessTree] = []
        for worker in self._workers:
            with trio.move_on_after(TREE_TIMEOUT_S), waiting_for("a worker's task tree"):
                await worker.control.send(TreeRequest(0))
                reply, fds = await worker.control.receive()
                close_fds(fds)
                assert isinstance(reply, TreeReply)
                trees.append(msgspec.json.decode(reply.tree, type=ProcessTree))
        return trees


class WorkersDisagree(EngineError):
    """Workers of one pool would compute differently: other files, code or machine."""

    code = "workers_disagree"

    def __init__(self, numerics_ids: tuple[str, ...]) -> None:
        super().__init__(numerics_ids)
        self.numerics_ids = numerics_ids

    def __str__(self) -> str:
        return f"the workers have different numerics: {', '.join(self.numerics_ids)}"
