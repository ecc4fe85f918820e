"""Simulated workers of an engine: steps are computed here, checked, and take virtual time.

In the place of `engine.process.executor.Executor`. What a step says is checked by `CheckingWorker`;
tokens and logprobs are pure functions of request and position, so that an oracle needs no server.
"""

import math
import signal
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import attrs
import trio

from ...engine.block_names import drop_names
from ...engine.config import EngineSettings
from ...engine.errors import StepFailed, StepTimeout
from ...engine.messages import BootPhase
from ...engine.place_memory import PlaceMemory
from ...engine.process.executor import LOSSES_MAX
from ...engine.step_messages import KVMemory, Mask, NewRow, Step, StepResult, WorkerReady
from ...engine.worker.null.executor import null_rows
from ...nurseries.processes.process import ProcessDied, ProcessExit
from ...nurseries.tasks.task_tree import ProcessTree
from ..doubles.checking_worker import CheckingWorker

# A stream of forty tokens takes about as long as a successor needs to come up.
STEP_S = (0.002, 0.01, 0.02, 0.05)
BOOT_S = (0.005, 0.02, 0.02, 0.2)
# Of new workers, those that find the KV memory of the last one.
FOUND_SHARE = 0.7
# What faults of a worker do to its engine.
FAULTS = ("die", "fail", "hang")


@attrs.define(eq=False)
class SimExecutor:
    """See `Executor`."""

    settings: EngineSettings
    epoch: int
    ready: WorkerReady = attrs.field(kw_only=True)
    # Added to each seed: engines of another numerics id have other tokens.
    family: int = attrs.field(kw_only=True)
    # {seed of a request: at which output index it ends its engine}
    kills_at: dict[int, int] = attrs.field(kw_only=True)
    chance: Random = attrs.field(kw_only=True)
    on_made: Callable[["SimExecutor"], None] = attrs.field(kw_only=True)
    # The last one of this place: its KV memory may be found.
    before: "SimExecutor | None" = attrs.field(default=None, kw_only=True)
    on_progress: Callable[[int, str, float], None]
    on_workers: Any = None
    recorder: Any = None
    ahead: Sequence[Any] = ()
    on_failing: Callable[[Exception], None] = lambda error: None
    engine_fds: Sequence[int] = ()
    spares: Any = None
    worker: CheckingWorker = attrs.field(init=False)
    # {step: (when it is answered, the answer)}; of those in flight.
    _answers: dict[int, tuple[float, StepResult]] = attrs.field(factory=dict, init=False)
    _free_at: float = attrs.field(default=0.0, init=False)
    _fault: str = attrs.field(default="", init=False)
    _faulty: trio.Event = attrs.field(factory=trio.Event, init=False)

    on_loss: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    # How often the worker was lost; see `step_loop.StepExecutor`.
    generation: int = attrs.field(default=0, init=False)
    _lost: trio.Event = attrs.field(factory=trio.Event, init=False)
    _replaced: trio.Event = attrs.field(factory=trio.Event, init=False)

    # Whether the worker that was taken last has the KV memory of the one before.
    _is_kept: bool = attrs.field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        ready, settings = self.ready, self.settings
        self.worker = CheckingWorker(
            ready.kv_blocks, settings.block_tokens, settings.max_num_seqs, ready.vocab_size
        )
        is_found = self.before is not None and self._finds_memory()
        if is_found and self.before is not None:
            self.worker = self.before.worker.successor(0, is_kept=True)
        kv_memory = KVMemory.FOUND if is_found else KVMemory.FRESH
        self.ready = attrs.evolve(ready, kv_memory=kv_memory)
        self.before = None
        self.on_made(self)

    def _finds_memory(self) -> bool:
        """Whether a new worker finds the KV memory of the last one; if not, it drops the names."""
        is_found = self.chance.random() < FOUND_SHARE
        if not is_found:
            self._drop_names()
        return is_found

    def _drop_names(self) -> None:
        memory = PlaceMemory.of(self.engine_fds[1:])
        assert memory is not None
        drop_names(memory.names)

    async def run(
        self, *, task_status: trio.TaskStatus[WorkerReady] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `executor`; see `Executor.run`."""
        for phase in BootPhase:
            await trio.sleep(self.chance.choice(BOOT_S))
            self.on_progress(0, phase, 1.0)
        task_status.started(self.ready)
        while True:
            await self._faulty.wait()
            if self._fault != "die":
                break
            await self._replace_worker()
        late = min(self._answers, default=0)
        if self._fault == "hang":
            await trio.sleep(self.settings.step_timeout_s)
            late_step = StepTimeout(late, self.settings.step_timeout_s, (0,))
            self.on_failing(late_step)
            raise late_step
        raise StepFailed(late, 0, "simulated")

    async def _replace_worker(self) -> None:
        """As `Executor` does: every step in flight is lost, and so is what the worker knew."""
        self.generation += 1
        self._fault, self._faulty = "", trio.Event()
        self._answers.clear()
        self._lost.set()
        self._lost, self._replaced = trio.Event(), trio.Event()
        self.on_loss()
        await trio.sleep(self.chance.choice(BOOT_S))
        is_kept = self.chance.random() < FOUND_SHARE
        self._is_kept &= is_kept
        self.worker = self.worker.successor(0, is_kept=is_kept)
        self._free_at = 0.0
        self._replaced.set()

    async def replaced(self, losses: int) -> bool:
        """See `step_loop.StepExecutor`."""
        if losses > LOSSES_MAX:
            raise ProcessDied(ProcessExit("worker-0", 0, None, int(signal.SIGKILL)))
        await self._replaced.wait()
        is_kept, self._is_kept = self._is_kept, True
        if not is_kept:  # only now, as nobody may look between this and the core's `forget_blocks`
            self._drop_names()
        return is_kept

    def fail(self, how: str) -> None:
        """One of `FAULTS`."""
        self._fault = how
        self._faulty.set()

    def submit(self, step: Step) -> None:
        """See `step_loop.StepExecutor`."""
        if self.worker.number == 0:
            self.worker.number = step.number - 1  # of a worker in the place of another
        if self.family:
            step = attrs.evolve(step, new=[self._alter(row) for row in step.new])
        took_s = self.chance.choice(STEP_S)
        answer = _with_logprobs(self.worker, step, self.worker.execute(step))
        self._free_at = max(self._free_at, trio.current_time()) + took_s
        self._answers[step.number] = self._free_at, attrs.evolve(answer, compute_s=took_s)
        if self.kills_at and any(map(self._is_fatal, step.rows)):
            self.fail("fail")

    def _alter(self, row: NewRow) -> NewRow:
        sampling = attrs.evolve(row.sampling, seed=row.sampling.seed + self.family)
        return attrs.evolve(row, sampling=sampling)

    def _is_fatal(self, row: int) -> bool:
        known = self.worker._rows[row]
        index = self.kills_at.get(known.sampling.seed - self.family, math.inf)
        return len(known.token_ids) - known.prompt_tokens > index

    def submit_mask(self, mask: Mask) -> None:
        """See `step_loop.StepExecutor`; no request here has a grammar."""
        raise AssertionError("nothing here needs a mask")

    async def result(self, number: int) -> StepResult | None:
        """See `step_loop.StepExecutor`."""
        if number not in self._answers:
            await trio.lowlevel.checkpoint()
            return None  # lost
        at, answer = self._answers[number]
        lost = self._lost
        with trio.move_on_at(at):
            await lost.wait()
        if self._fault:
            await lost.wait()
        if lost.is_set():
            return None
        del self._answers[number]
        return answer

    async def trees(self) -> list[ProcessTree]:
        """None."""
        return []


def _with_logprobs(worker: CheckingWorker, step: Step, result: StepResult) -> StepResult:
    for row, token_id in zip(result.rows, result.token_ids, strict=True):
        known = worker._rows[row]
        alternatives = known.sampling.logprobs
        if alternatives is not None:
            first = len(known.token_ids) - 1
            result.logprobs.append(
                null_rows(row, first, [token_id], alternatives, vocab_size=worker.vocab_size)
            )
    return result
