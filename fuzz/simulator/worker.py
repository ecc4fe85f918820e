"""Simulated workers of an engine: steps are computed here, checked, and take virtual time.

In the place of `engine.process.executor.Executor`. What a step says is checked by `CheckingWorker`;
tokens and logprobs are pure functions of request and position, so that an oracle needs no server.
"""

import math
import signal
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NoReturn

import attrs
import trio

from ...engine.block_names import drop_names
from ...engine.config import EngineSettings
from ...engine.control_messages import BootPhase
from ...engine.errors import StepFailed, StepTimeout
from ...engine.place_memory import PlaceMemory
from ...engine.process.executor import LOSSES_MAX
from ...engine.step_messages import KVMemory, Mask, NewRow, Step, StepResult, WorkerReady
from ...engine.worker.null.executor import null_rows
from ...nurseries.processes.process_exit import ProcessDied, ProcessExit
from ...nurseries.tasks.task_tree import ProcessTree
from ..doubles.checking_worker import CheckingWorker
from .kernel import TEARDOWN_S, SimProcess

# A stream of forty tokens takes about as long as a successor needs to come up.
STEP_S = (0.002, 0.01, 0.02, 0.05)
BOOT_S = (0.005, 0.02, 0.02, 0.2)
# The first and the last: each is a message to the root, some ten steps of tasks.
BOOT_PHASES = (BootPhase.START, BootPhase.HASH_FILES)
# Of new workers, those that find the KV memory of the last one.
FOUND_SHARE = 0.7
# What faults of a worker do to its engine: new ones take the place of one that was killed; of the
# others it ends, and a step may be to blame.
FAULTS = ("die", "fail", "hang", "crash")


@attrs.define(eq=False)
class _Answer:
    """What a step in flight will say, and when; the seeds of its requests."""

    at: float
    result: StepResult
    seeds: list[int]
    # Tokens of a request that is alone in it, when it is complete.
    alone: int


@attrs.define(eq=False)
class SimExecutor:
    """See `Executor`."""

    settings: EngineSettings
    epoch: int
    # The engine, whose death its workers do not outlive.
    process: SimProcess = attrs.field(kw_only=True)
    ready: WorkerReady = attrs.field(kw_only=True)
    # Added to each seed: engines of another numerics id have other tokens.
    family: int = attrs.field(kw_only=True)
    # {seed of a request: at which output index it is fatal}, and who hears of one.
    fatal: dict[int, int] = attrs.field(kw_only=True)
    on_fatal: Callable[["SimExecutor", int], None] = attrs.field(kw_only=True)
    chance: Random = attrs.field(kw_only=True)
    on_made: Callable[["SimExecutor"], None] = attrs.field(kw_only=True)
    # The last one of this place: its KV memory may be found.
    before: "SimExecutor | None" = attrs.field(default=None, kw_only=True)
    on_progress: Callable[[int, str, float], None]
    on_workers: Any = None
    recorder: Any = None
    ahead: Sequence[Any] = ()
    on_failing: Callable[[Exception], None] = lambda error: None
    on_loss: Callable[[], None] = lambda: None
    engine_fds: Sequence[int] = ()
    spares: Any = None
    worker: CheckingWorker = attrs.field(init=False)
    # The seed of a request that has made the worker crash.
    crashed_by: int | None = attrs.field(default=None, init=False)
    # Seeds of requests that steps had which were lost with their worker, or never handed to it.
    lost: set[int] = attrs.field(factory=set, init=False)
    # Of the step that was answered last.
    answered: set[int] = attrs.field(factory=set, init=False)
    # By row, of all.
    _seeds: dict[int, int] = attrs.field(factory=dict, init=False)
    # {seed of a request: (when the worker took it, how many tokens it had after a step alone)}
    passed: dict[int, tuple[float, int]] = attrs.field(factory=dict, init=False)
    _taken_at: dict[int, float] = attrs.field(factory=dict, init=False)
    # Of those in flight, by number.
    _answers: dict[int, _Answer] = attrs.field(factory=dict, init=False)
    _free_at: float = attrs.field(default=0.0, init=False)
    _fault: str = attrs.field(default="", init=False)
    _faulty: trio.Event = attrs.field(factory=trio.Event, init=False)

    # How often the worker was lost; see `step_loop.StepExecutor`.
    pool_number: int = attrs.field(default=0, init=False)
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
        for phase in BOOT_PHASES:
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
            await self._end(StepTimeout(late, self.settings.step_timeout_s, (0,)))
        if self._fault == "crash":
            exit_ = ProcessExit("worker-0", 0, None, int(signal.SIGSEGV))
            await self._end(ProcessDied(exit_))
        raise StepFailed(late, 0, "simulated")

    async def _end(self, error: Exception) -> NoReturn:
        """The root hears of it at once; other workers have still to end."""
        self.on_failing(error)
        await trio.sleep(self.chance.choice(TEARDOWN_S))
        raise error

    async def _replace_worker(self) -> None:
        """As `Executor` does: every step in flight is lost, and so is what the worker knew."""
        self.pool_number += 1
        self._fault, self._faulty = "", trio.Event()
        self.lost, self.crashed_by = self.in_flight(), None
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
        if (
            not is_kept
        ):  # only now, as no check may come between this and the core's `forget_blocks`
            self._drop_names()
        return is_kept

    def fail(self, how: str) -> None:
        """One of `FAULTS`; nothing more happens to one that is at an end."""
        if not self._fault:
            self._fault = how
            self._faulty.set()

    @property
    def is_failing(self) -> bool:
        """Whether the engine ends, and a step may be to blame."""
        return self._fault not in ("", "die")

    def in_flight(self) -> set[int]:
        """Seeds of the requests of all steps in flight."""
        return {seed for answer in self._answers.values() for seed in answer.seeds}

    def submit(self, step: Step) -> None:
        """See `step_loop.StepExecutor`."""
        self._seeds.update((new.row, new.sampling.seed) for new in step.new)
        seeds = [self._seeds[row] for row in step.rows]
        if not self.process.is_alive:  # its tasks have still to end
            # It may have died at the last word of this step's place in the table, which names
            # requests that these tasks have time to forget.
            self.lost.update(seeds)
            return
        if self.worker.number == 0:
            self.worker.number = step.number - 1  # of a worker in the place of another
        if self.family:
            step = attrs.evolve(step, new=[self._alter(row) for row in step.new])
        took_s = self.chance.choice(STEP_S)
        answer = _with_logprobs(self.worker, step, self.worker.execute(step))
        answer = attrs.evolve(answer, compute_s=took_s)
        now, rows = trio.current_time(), step.rows
        self._free_at = max(self._free_at, now) + took_s
        for new in step.new:
            self._taken_at[self._seeds[new.row]] = now
        alone = self.worker._rows[rows[0]].computed_tokens if len(rows) == 1 else 0
        self._answers[step.number] = _Answer(self._free_at, answer, seeds, alone)
        if self.fatal:
            for row, seed in zip(rows, seeds, strict=True):
                self._judge(row, seed)

    def _alter(self, row: NewRow) -> NewRow:
        sampling = attrs.evolve(row.sampling, seed=row.sampling.seed + self.family)
        return attrs.evolve(row, sampling=sampling)

    def _judge(self, row: int, seed: int) -> None:
        known = self.worker._rows[row]
        if len(known.token_ids) - known.prompt_tokens > self.fatal.get(seed, math.inf):
            self.on_fatal(self, seed)

    def submit_mask(self, mask: Mask) -> None:
        """See `step_loop.StepExecutor`; no request here has a grammar."""
        raise AssertionError("nothing here needs a mask")

    async def result(self, number: int) -> StepResult | None:
        """See `step_loop.StepExecutor`."""
        if number not in self._answers:
            await trio.lowlevel.checkpoint()
            return None  # lost
        answer, lost = self._answers[number], self._lost
        with trio.move_on_at(answer.at):
            await lost.wait()
        if self._fault or not self.process.is_alive:
            await lost.wait()
        if lost.is_set():
            return None
        del self._answers[number]
        self.answered = set(answer.seeds)
        if answer.alone:
            seed = answer.seeds[0]
            self.passed[seed] = self._taken_at[seed], answer.alone
        return answer.result

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


async def run_no_compiler(
    *_: object, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """In the place of `run_grammar_compiler`, whose thread would end at a moment of its own.

    No request has a grammar here: of forms the check alone is.
    """
    task_status.started()
    await trio.lowlevel.checkpoint()
    await trio.sleep_forever()
