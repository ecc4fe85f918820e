"""The engine core's side of its workers: a ranked pool of processes, rings to and from them.

    core  --STEP, MASK-->  broadcast ring  -->  every worker
    core  <--result, failure--  one ring for each worker

Every worker acknowledges every step; the tokens come from the output rank. A worker that dies takes
the pool down, and with it the engine; so does a step that fails or is late, because the workers'
state is then unknown. Must not know requests or models: workers are reached by module name.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial

import attrs
import msgspec
import trio

from ..nurseries.background import start_background_task
from ..nurseries.error_groups import single_errors_unwrapped
from ..nurseries.process import Process, ProcessSpec
from ..nurseries.process_pool import run_process_pool
from ..nurseries.task_tree import ProcessTree
from ..nurseries.waiting import waiting_for
from ..transports.codec import Codec
from ..transports.control_channel import ControlChannel
from ..transports.control_handshake import perform_parent_handshake
from ..transports.passed_fds import close_fds
from ..transports.ring_memory import RingParts, create_ring
from ..transports.shm_ring import RingReader, RingWriter
from .config import EngineSettings
from .errors import StepFailed, StepTimeout, WorkersDisagree
from .messages import TreeReply, TreeRequest
from .step_messages import (
    CORE_TO_WORKER,
    OUTPUT_RANK,
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
# A worker in a long native call answers its control task all the same: the loop is free.
TREE_TIMEOUT_S = 1.5

OnProgress = Callable[[str, float], None]
OnWorkers = Callable[[Sequence[Process]], Awaitable[None]]


@attrs.define(eq=False)
class _Worker:
    """One worker as the core sees it; `control` carries task trees and nothing of a step."""

    process: Process
    control: ControlChannel
    ready: WorkerReady
    # One question at a time: only one task may receive.
    _asking: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _calls: int = attrs.field(default=0, init=False)

    async def tree(self) -> ProcessTree | None:
        """Its live task tree; None if it does not tell within `TREE_TIMEOUT_S`, or has died."""
        with trio.move_on_after(TREE_TIMEOUT_S), waiting_for(f"{self.process.spec.name}'s tree"):
            async with self._asking:
                try:
                    return await self._ask()
                except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
                    return None  # dead; the pool tells how
        return None

    async def _ask(self) -> ProcessTree:
        self._calls += 1
        await self.control.send(TreeRequest(self._calls))
        while True:
            reply, fds = await self.control.receive()
            close_fds(fds)
            assert isinstance(reply, TreeReply)
            if reply.call_id == self._calls:  # an earlier one answers whoever did not wait for it
                return msgspec.json.decode(reply.tree, type=ProcessTree)


@attrs.define(eq=False)
class Executor:
    """A pool of workers; `run` is its background task, once. See `step_loop.StepExecutor`.

    `on_workers` is awaited with all workers so far whenever one was spawned, before that one is
    told what to do: whoever must outwait it knows it before it takes a device. `on_progress` gets
    the phase that was reported and the fraction of the rank that is furthest behind.
    """

    settings: EngineSettings
    epoch: int
    on_progress: OnProgress
    on_workers: OnWorkers
    _steps: RingWriter = attrs.field(init=False)
    _results: list[RingReader] = attrs.field(factory=list, init=False)
    _workers: list[_Worker] = attrs.field(factory=list, init=False)
    _spawned: list[Process] = attrs.field(factory=list, init=False)
    _fractions: list[float] = attrs.field(factory=list, init=False)
    _steps_codec: Codec = attrs.field(factory=lambda: Codec(*CORE_TO_WORKER), init=False)
    _results_codec: Codec = attrs.field(factory=lambda: Codec(*WORKER_TO_CORE), init=False)

    async def run(
        self, *, task_status: trio.TaskStatus[WorkerReady] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `executor`: rings and workers, until it is cancelled.

        Starts with what all workers agree on. Raises `ProcessDied` of the worker that died first,
        `HandshakeError`, or `WorkersDisagree`.
        Resource handling: workers, rings and their descriptors are gone afterwards.
        Cancellation: the workers get the ladder, side by side; that bounds the cleanup.
        """
        ranks = range(self.settings.workers)
        self._fractions = [0.0 for _ in ranks]
        specs = [ProcessSpec(f"worker-{rank}", WORKER_MODULE, rank=rank) for rank in ranks]
        with ExitStack() as ours, ExitStack() as theirs, single_errors_unwrapped():
            ready = partial(self._ready, self._make_rings(ours, theirs))
            async with trio.open_nursery() as nursery:
                pool = await start_background_task(
                    nursery, partial(run_process_pool, specs, ready=ready), name="worker-pool"
                )
                theirs.close()  # every worker has its own duplicates by now
                self._workers = [worker for _, worker in pool.value]
                task_status.started(self._agreed())

    def _make_rings(self, ours: ExitStack, theirs: ExitStack) -> list[list[int]]:
        """Our sides go to `ours`; of each worker the descriptors are returned, `theirs` owns them.

        `theirs` may close once the workers are ready.
        """
        ranks = range(self.settings.workers)

        def make(readers: int, slot_bytes: int) -> RingParts:
            parts = create_ring(readers=readers, slots=RING_SLOTS, slot_bytes=slot_bytes)
            return theirs.enter_context(parts)

        steps = make(len(ranks), STEP_SLOT_BYTES)
        self._steps = ours.enter_context(RingWriter.attach(steps.writer_fds()))
        results = [make(1, RESULT_SLOT_BYTES) for _ in ranks]
        self._results = [
            ours.enter_context(RingReader.attach(ring.reader_fds(0), 0)) for ring in results
        ]
        return [[*steps.reader_fds(rank), *results[rank].writer_fds()] for rank in ranks]

    async def _ready(self, inits: list[list[int]], process: Process) -> _Worker:
        self._spawned.append(process)
        await self.on_workers(list(self._spawned))
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
            on_progress=partial(self._handle_progress, rank),
        )
        return _Worker(process, control, msgspec.msgpack.decode(payload, type=WorkerReady))

    def _handle_progress(self, rank: int, phase: str, fraction: float) -> None:
        """Any rank's is told on, as it re-arms the deadline that our own boot has."""
        self._fractions[rank] = fraction
        self.on_progress(phase, min(self._fractions))

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

    # ---- steps

    def submit(self, step: Step) -> None:
        """Hand a step to every worker. Raises `RingFull`, which the steps in flight rule out."""
        self._steps.write(self._steps_codec.encode(step))

    def submit_mask(self, mask: Mask) -> None:
        """Hand the mask of a submitted step to every worker; it may be computing already."""
        self._steps.write(self._steps_codec.encode(mask))

    async def result(self, number: int) -> StepResult:
        """Wait until every rank has answered step `number`; the output rank's tokens.

        Raises `StepFailed` as soon as any rank has failed, with its traceback, and `StepTimeout`.
        Cancellation leaves answers in the rings; the pool is being stopped then.
        """
        answers: dict[int, StepResult | StepFailure] = {}
        with trio.move_on_after(self.settings.step_timeout_s):
            if len(self._results) == 1:  # the usual case costs no task
                await self._take_answer(0, answers)
            else:
                await self._take_answers(answers)
        for answer in answers.values():
            if isinstance(answer, StepFailure):
                raise StepFailed(answer.number, answer.rank, answer.traceback)
            assert answer.number == number, "every worker answers every step in order"
        silent = tuple(rank for rank in range(len(self._results)) if rank not in answers)
        if silent:
            raise StepTimeout(number, self.settings.step_timeout_s, silent)
        tokens = answers[OUTPUT_RANK]
        assert isinstance(tokens, StepResult)
        return tokens

    async def _take_answers(self, answers: dict[int, StepResult | StepFailure]) -> None:
        """Side by side: ranks that wait for one that failed must not hide its failure."""
        async with trio.open_nursery() as nursery:
            for rank in range(len(self._results)):
                nursery.start_soon(
                    self._take_answer, rank, answers, nursery.cancel_scope, name=f"result-{rank}"
                )

    async def _take_answer(
        self,
        rank: int,
        answers: dict[int, StepResult | StepFailure],
        others: trio.CancelScope | None = None,
    ) -> None:
        answer = self._results_codec.decode(await self._results[rank].wait_read())
        assert isinstance(answer, StepResult | StepFailure)
        answers[rank] = answer
        if isinstance(answer, StepFailure) and others is not None:
            others.cancel(f"worker {rank} has failed in this step")

    # ---- looking on

    async def trees(self) -> list[ProcessTree]:
        """The live task tree of every worker that answers in time, by rank. Any task may ask."""
        found: dict[int, ProcessTree] = {}

        async def ask(rank: int, worker: _Worker) -> None:
            tree = await worker.tree()
            if tree is not None:
                found[rank] = tree

        async with trio.open_nursery() as nursery:
            for rank, worker in enumerate(self._workers):
                nursery.start_soon(ask, rank, worker, name=f"tree-{rank}")
        return [found[rank] for rank in sorted(found)]
