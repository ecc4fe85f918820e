"""Pools of real workers: steps on every rank, and each way in which one can fail."""

import pathlib
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio
import trio.testing

from triolet.engine.config import WORKER_MODULE, EngineSettings
from triolet.engine.control_messages import TreeReply, TreeRequest
from triolet.engine.errors import StepFailed, WorkersDisagree
from triolet.engine.process.executor import TREE_TIMEOUT_S, Executor, Worker
from triolet.engine.step_messages import Step, StepResult, WorkerReady
from triolet.nurseries.processes.process import Process
from triolet.nurseries.processes.process_exit import ProcessDied
from triolet.nurseries.processes.spawned import Spawned
from triolet.nurseries.tasks.service import open_service
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.tests.engine.steps import (
    LONG_PROMPT_TOKENS,
    VOCAB_SIZE,
    expected_token,
    first_step,
    next_step,
    write_sizes,
)
from triolet.tests.leaks import check_no_leaks, no_room_for_descriptors
from triolet.tests.live_tasks import find_tasks
from triolet.transports.control.channel import ControlChannel

DEADLINE_S = 60.0
ACTING_WORKER = "triolet.tests.engine.children.acting_worker"


@attrs.define(eq=False)
class Pool:
    """An executor whose workers are ready, and what it has told."""

    executor: Executor
    ready: WorkerReady = attrs.field(init=False)
    progress: list[tuple[int, str, float]] = attrs.field(factory=list)
    told: list[list[Process]] = attrs.field(factory=list)  # what `on_workers` got, each time
    lost: list[int] = attrs.field(factory=list)  # pool numbers after each loss

    @property
    def processes(self) -> list[Process]:
        """By rank."""
        return sorted(self.told[-1], key=lambda process: process.spec.rank)

    async def run(self, step: Step) -> StepResult:
        self.executor.submit(step)
        result = await self.executor.result(step.number)
        if result is None:  # whatever ends the executor says why
            await trio.sleep_forever()
        return result


@asynccontextmanager
async def open_pool(
    folder: pathlib.Path,
    *,
    module: str = WORKER_MODULE,
    engine_fds: Sequence[int] = (),
    **settings: Any,
) -> AsyncIterator[Pool]:
    """Nothing is left afterwards, whatever happened."""

    def progress(rank: int, phase: str, fraction: float) -> None:
        pool.progress.append((rank, phase, fraction))

    async def workers(processes: Sequence[Process]) -> None:
        pool.told.append(list(processes))

    given = {"executor": "null", "max_num_seqs": 2, **settings}
    executor = Executor(
        EngineSettings(model=str(folder), **given),
        5,
        on_progress=progress,
        on_workers=workers,
        on_loss=lambda: pool.lost.append(executor.pool_number),
        worker_module=module,
        engine_fds=engine_fds,
    )
    pool = Pool(executor)
    with trio.fail_after(DEADLINE_S):
        async with open_service(executor.run, name="executor") as service:
            pool.ready = service.value
            yield pool


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
async def test_steps_trees_and_an_end_that_leaves_nothing(
    workers: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker that is kept from answering for longer would be left out.
    monkeypatch.setattr("triolet.engine.process.executor.TREE_TIMEOUT_S", DEADLINE_S)
    with check_no_leaks():
        async with open_pool(write_sizes(tmp_path), workers=workers) as pool:
            assert pool.ready.vocab_size == VOCAB_SIZE
            assert pool.ready.numerics_id.startswith("null-")
            assert [len(told) for told in pool.told] == list(range(1, workers + 1))
            assert sorted(pool.progress) == [(rank, "start", 1.0) for rank in range(workers)]

            first = expected_token(0, 8)
            assert await pool.run(first_step()) == StepResult(1, [0], [first])
            second = expected_token(1, first)
            assert await pool.run(next_step(2)) == StepResult(2, [0], [second])
            oversize = first_step(3, row=1, prompt=[5] * LONG_PROMPT_TOKENS)
            assert await pool.run(oversize) == StepResult(3, [1], [expected_token(0, 5)])

            await check_trees(pool, workers)


async def check_trees(pool: Pool, workers: int) -> None:
    """Several tasks ask at once, one is cancelled: each gets its own answer."""
    found = []

    async def ask() -> None:
        found.append(await pool.executor.trees())

    async with trio.open_nursery() as nursery:
        hasty = trio.CancelScope()
        nursery.start_soon(_ask_in, hasty, pool.executor)
        for _ in range(3):
            nursery.start_soon(ask)
        await trio.lowlevel.checkpoint()
        hasty.cancel("this one does not wait")
    assert len(found) == 3
    for trees in found:
        assert [tree.name for tree in trees] == [f"worker {rank}" for rank in range(workers)]
        assert [tree.pid for tree in trees] == [process.pid for process in pool.processes]
        for tree in trees:
            assert tree.facts["step"] == 3
            assert tree.tasks is not None
            assert len(find_tasks(tree.tasks, "step-loop")) == 1


async def _ask_in(scope: trio.CancelScope, executor: Executor) -> None:
    with scope:
        await executor.trees()


@pytest.mark.slow
async def test_a_rank_that_raises_is_told_though_the_other_hangs(tmp_path: pathlib.Path) -> None:
    folder = write_sizes(tmp_path, rank_0="hang", rank_1="raise")
    with check_no_leaks(), pytest.raises(StepFailed) as caught:
        async with open_pool(folder, module=ACTING_WORKER, workers=2) as pool:
            await pool.run(first_step())
    assert caught.value.rank == 1
    assert "ZeroDivisionError: as rank 1 was told to" in caught.value.traceback
    assert "acting_worker.py" in caught.value.traceback


@pytest.mark.slow
async def test_a_worker_that_dies_while_loading(tmp_path: pathlib.Path) -> None:
    folder = write_sizes(tmp_path, rank_1="die")
    with check_no_leaks(), pytest.raises(ProcessDied, match=r"worker-1 .* was killed by SIGKILL"):
        async with open_pool(folder, module=ACTING_WORKER, workers=2):
            pytest.fail("it was never ready")


@pytest.mark.slow
async def test_workers_that_disagree(tmp_path: pathlib.Path) -> None:
    folder = write_sizes(tmp_path, rank_1="differ")
    with check_no_leaks(), pytest.raises(WorkersDisagree, match="numerics of rank 1"):
        async with open_pool(folder, module=ACTING_WORKER, workers=2):
            pytest.fail("it was never ready")


async def test_rings_that_cannot_be_made_cost_no_process_that_is_there() -> None:
    async def workers(processes: Sequence[Process]) -> None:
        raise AssertionError("there are none")

    ahead = [Spawned(pid=9, pidfd=3, control_fd=4, death_fd=5, words_fd=6)]
    executor = Executor(EngineSettings(model="m"), 5, print, workers, ahead=ahead)
    with no_room_for_descriptors(), pytest.raises(OSError, match="Too many open files"):
        await executor.run()
    assert executor.ahead == ahead


@pytest.mark.slow
async def test_cancelled_while_the_workers_boot(tmp_path: pathlib.Path) -> None:
    """In mid-handshake: no worker and no descriptor stays."""
    settings = EngineSettings(model=str(write_sizes(tmp_path)), executor="null", workers=2)
    scope = trio.CancelScope()

    async def workers(processes: Sequence[Process]) -> None:
        if len(processes) == settings.workers:
            scope.cancel("the test cancels it")

    executor = Executor(settings, 1, on_progress=lambda *_: None, on_workers=workers)
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        with scope:
            await executor.run()
        assert scope.cancelled_caught


READY = WorkerReady(kv_blocks=1, max_model_len=1, vocab_size=1, numerics_id="n", bitwise=True)


@contextmanager
def open_control() -> Iterator[tuple[Worker, ControlChannel]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        ControlChannel(left, sends=[TreeRequest], receives=[TreeReply]) as ours,
        ControlChannel(right, sends=[TreeReply], receives=[TreeRequest]) as workers,
    ):
        yield Worker("worker-1", READY, ours), workers


async def next_question(worker: ControlChannel) -> int:
    request, _ = await worker.receive()
    assert isinstance(request, TreeRequest)
    return request.call_id


async def answer(worker: ControlChannel, call_id: int) -> None:
    """With a tree that tells its question's number in place of a pid."""
    tree = msgspec.json.encode(ProcessTree("worker 1", call_id)).decode()
    await worker.send(TreeReply(call_id, tree))


async def test_a_late_answer_is_not_the_next_ones() -> None:
    with open_control() as (ours, worker), trio.fail_after(DEADLINE_S):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ours.task_tree)
                await next_question(worker)
                scope.cancel("whoever asked does not wait")
        await answer(worker, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_next, worker)
            tree = await ours.task_tree()
        assert tree is not None
        assert tree.pid == 2


async def _answer_next(worker: ControlChannel) -> None:
    await answer(worker, await next_question(worker))


async def test_silence_is_no_answer(autojump_clock: trio.testing.MockClock) -> None:
    with open_control() as (ours, _):
        began = trio.current_time()
        assert await ours.task_tree() is None
        assert trio.current_time() - began == TREE_TIMEOUT_S  # the mock clock's


async def test_a_worker_that_dies_gives_none() -> None:
    with open_control() as (ours, worker), trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_close_at_question, worker)
            assert await ours.task_tree() is None
        assert await ours.task_tree() is None  # and again, now that it cannot be asked


async def _close_at_question(worker: ControlChannel) -> None:
    await next_question(worker)
    worker.close()
