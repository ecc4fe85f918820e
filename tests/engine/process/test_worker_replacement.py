"""Workers that die under an executor: others take their place, or it says why not."""

import os
import pathlib
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import attrs
import pytest
import trio

from triolet.engine.config import WORKER_MODULE, EngineSettings
from triolet.engine.errors import BootRefused, PromiseBroken, StepTimeout
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.place_memory import open_memory_of_places
from triolet.engine.process.executor import LOSSES_MAX, Executor
from triolet.engine.step_messages import KVMemory, Step, StepResult
from triolet.nurseries.processes.process import Process
from triolet.nurseries.processes.process_exit import ProcessDied
from triolet.nurseries.processes.progress_page import open_page
from triolet.tests.checkpoints import StepCounter
from triolet.tests.engine.kernels.test_shared_memory import needs_huge_pages
from triolet.tests.engine.process.test_executor import ACTING_WORKER, DEADLINE_S, open_pool
from triolet.tests.engine.steps import expected_token, first_step, next_step, write_sizes
from triolet.tests.leaks import check_no_leaks, process_exists

pytestmark = pytest.mark.slow
LONG_STEP_S = 0.3


async def lose(executor: Executor, victim: Process) -> bool:
    """Kill a worker; when others are in its place, whether they have its KV memory."""
    before = executor.pool_number
    victim.send_signal(signal.SIGKILL)
    while executor.pool_number == before:
        assert await executor.result(1) is None  # as the step loop waits
        await trio.lowlevel.checkpoint()
    return await executor.replaced(1)


@pytest.mark.parametrize("workers", [1, 3])
async def test_others_take_the_place_of_all_and_know_nothing(
    workers: int, tmp_path: pathlib.Path
) -> None:
    with check_no_leaks():
        async with open_pool(write_sizes(tmp_path), workers=workers) as pool:
            executor = pool.executor
            for pool_number in range(workers):
                old = pool.processes
                token = expected_token(0, 8)
                wanted = StepResult(1, [0], [token], pool_number=pool_number)
                assert await pool.run(first_step()) == wanted
                wanted = StepResult(2, [0], [expected_token(1, token)], pool_number=pool_number)
                assert await pool.run(next_step(2)) == wanted
                await lose(executor, old[pool_number])
                assert not any(process_exists(process.pid) for process in old)
                assert not {process.pid for process in old} & {new.pid for new in pool.processes}
                assert len(pool.processes) == workers
                assert executor.death is not None
                exit_ = executor.death.exit
                assert (exit_.process, exit_.signal) == (f"worker-{pool_number}", signal.SIGKILL)
            assert pool.lost == list(range(1, workers + 1))
            assert len(await executor.trees()) == workers


@contextmanager
def open_memory() -> Iterator[list[int]]:
    """What an engine gets: its progress page, and the memory of its place."""
    with check_no_leaks(), open_page(2) as page, open_memory_of_places() as (place,):
        yield [page.fd, *place.fds]


@needs_huge_pages
@pytest.mark.parametrize("losses_before_it_is_asked", [1, 2])
async def test_memory_that_outlives_workers_is_kept_unless_it_was_lost_between(
    losses_before_it_is_asked: int,
) -> None:
    with open_memory() as fds:
        cache, folder = fds[2], bundled_model_folder()
        opened = open_pool(folder, executor="native", kv_blocks=64, engine_fds=fds)
        async with opened as pool:
            executor = pool.executor
            assert pool.ready.kv_memory is KVMemory.FRESH
            assert await lose(executor, pool.processes[0])
            os.ftruncate(cache, 0)
            for _ in range(losses_before_it_is_asked):
                pool_number = executor.pool_number
                pool.processes[0].send_signal(signal.SIGKILL)
                while executor.pool_number == pool_number or not executor._ready.is_set():
                    await trio.lowlevel.checkpoint()
            assert not await executor.replaced(1)


async def test_a_step_under_way_is_lost_and_those_submitted_meanwhile(
    tmp_path: pathlib.Path,
) -> None:
    folder = write_sizes(tmp_path)
    with check_no_leaks():
        async with open_pool(folder, workers=3, null_step_s=LONG_STEP_S) as pool:
            executor = pool.executor
            executor.submit(first_step())
            executor.submit(next_step(2))
            pool.processes[1].send_signal(signal.SIGKILL)
            assert await executor.result(1) is None
            for number in range(3, 20):  # more than a ring has slots
                executor.submit(Step(number=number))
            await executor.replaced(1)
            assert (await pool.run(first_step(20))).token_ids == [expected_token(0, 8)]


async def test_killed_again_in_every_phase_of_the_replacement(tmp_path: pathlib.Path) -> None:
    """At its spawn, at each of its reports, and when it was just ready."""
    folder = write_sizes(tmp_path)
    with check_no_leaks():
        async with open_pool(folder, workers=2) as pool:
            executor = pool.executor
            report, tell = executor.on_progress, executor.on_workers

            async def kill_at_spawn(processes: Sequence[Process]) -> None:
                await tell(processes)
                executor.on_workers = tell
                processes[-1].send_signal(signal.SIGKILL)

            def kill_at_report(rank: int, phase: str, fraction: float) -> None:
                executor.on_progress = report
                pool.processes[rank].send_signal(signal.SIGKILL)

            executor.on_workers = kill_at_spawn
            await lose(executor, pool.processes[0])
            assert executor.pool_number == 2
            assert (await pool.run(first_step())).token_ids == [expected_token(0, 8)]
            executor.on_progress = kill_at_report
            await lose(executor, pool.processes[0])
            assert executor.pool_number == 4
            await lose(executor, pool.processes[1])
            assert (await pool.run(first_step())).pool_number == 5


async def test_losses_without_a_step_between_are_bounded(tmp_path: pathlib.Path) -> None:
    async def lose_on() -> None:
        async with open_pool(write_sizes(tmp_path)) as pool:
            await pool.run(first_step())
            for _ in range(LOSSES_MAX):
                await lose(pool.executor, pool.processes[0])
            await pool.run(first_step())  # and all is forgiven
            for pool_number in count(LOSSES_MAX + 1):
                await lose(pool.executor, pool.processes[0])
                reached.append(pool_number)

    reached: list[int] = []
    with check_no_leaks(), pytest.raises(ProcessDied, match=r"worker-0 .* SIGKILL"):
        await lose_on()
    assert reached == list(range(LOSSES_MAX + 1, 2 * LOSSES_MAX + 1))


async def test_a_request_that_is_in_too_many_losses_ends_it(tmp_path: pathlib.Path) -> None:
    async def ask() -> None:
        async with open_pool(write_sizes(tmp_path)) as pool:
            await lose(pool.executor, pool.processes[0])
            await pool.executor.replaced(LOSSES_MAX)
            await pool.executor.replaced(LOSSES_MAX + 1)

    with check_no_leaks(), pytest.raises(ProcessDied, match=r"worker-0 .* SIGKILL"):
        await ask()


def _differ(folder: pathlib.Path) -> None:
    write_sizes(folder, rank_0="differ")


def _shrink(folder: pathlib.Path) -> None:
    (folder / "config.json").write_text('{"vocab_size": 100, "max_position_embeddings": 90}')


def _die(folder: pathlib.Path) -> None:
    write_sizes(folder, rank_0="die")


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (_differ, PromiseBroken, "numerics_id was null-.* and is numerics of rank 0"),
        (_shrink, PromiseBroken, "max_model_len was 200100 and is 90"),
        (_die, ProcessDied, "worker-0 .* was killed by SIGKILL"),
        (shutil.rmtree, BootRefused, r"no such folder|acts\.json"),
    ],
)
async def test_what_cannot_go_on_is_given_up(
    tmp_path: pathlib.Path,
    change: Callable[[pathlib.Path], None],
    error: type[Exception],
    says: str,
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    module = WORKER_MODULE if change is shutil.rmtree else ACTING_WORKER

    async def lose_it() -> None:
        async with open_pool(write_sizes(folder), module=module) as pool:
            change(folder)
            await lose(pool.executor, pool.processes[0])

    with check_no_leaks(), pytest.raises(error, match=says):
        await lose_it()


async def test_more_blocks_than_promised_are_in_order_and_fewer_are_not(
    tmp_path: pathlib.Path,
) -> None:
    reached: list[int] = []

    async def lose_twice() -> None:
        async with open_pool(write_sizes(tmp_path), kv_blocks=12_600) as pool:
            for blocks in (12_700, 12_599):
                changed = attrs.evolve(pool.executor.settings, kv_blocks=blocks)
                pool.executor.settings = changed
                await lose(pool.executor, pool.processes[0])
                reached.append(blocks)

    with check_no_leaks(), pytest.raises(PromiseBroken, match="kv_blocks was 12600 and is 12599"):
        await lose_twice()
    assert reached == [12_700]


async def test_a_late_step_is_no_loss(tmp_path: pathlib.Path) -> None:
    """Its workers live; only the root decides what becomes of those."""

    async def wait_late() -> None:
        folder = write_sizes(tmp_path)
        async with open_pool(folder, null_step_s=3600.0, step_timeout_s=0.05) as pool:
            pool.executor.submit(first_step())
            assert await pool.executor.result(1) is None
            await pool.executor.replaced(1)

    with check_no_leaks(), pytest.raises(StepTimeout):
        await wait_late()


async def test_cancelled_at_each_step_of_the_replacement(tmp_path: pathlib.Path) -> None:
    """Of the executor's task and of those below it: nothing stays."""
    settings = EngineSettings(model=str(write_sizes(tmp_path)), executor="null")
    for steps in count(1):
        if await _replace_and_cancel(settings, steps):
            break
    assert steps > 10


async def _replace_and_cancel(settings: EngineSettings, steps: int) -> bool:
    """Whether it was replaced before that many steps."""
    told: list[Process] = []

    async def workers(processes: Sequence[Process]) -> None:
        told[:] = processes

    executor = Executor(settings, 1, on_progress=lambda *_: None, on_workers=workers)
    scope = trio.CancelScope()
    counters: list[StepCounter] = []

    async def run(*, task_status: trio.TaskStatus[object]) -> None:
        own = trio.lowlevel.current_task()
        counters.append(StepCounter(own, steps, lambda: scope.cancel("the step of this test")))
        try:
            with scope:
                await executor.run(task_status=task_status)
        except* ProcessDied:
            assert scope.cancel_called, "at the very death"
        ended.set()

    ended, replaced = trio.Event(), False
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            trio.lowlevel.add_instrument(counters[0])
            os.kill(told[0].pid, signal.SIGKILL)
            assert await executor.result(1) is None
            with trio.CancelScope() as waits:
                nursery.start_soon(_cancel_after, ended, waits)
                await executor.replaced(1)
                replaced = True
            trio.lowlevel.remove_instrument(counters[0])
            scope.cancel("the test is over")
    return replaced


async def _cancel_after(ended: trio.Event, scope: trio.CancelScope) -> None:
    await ended.wait()
    scope.cancel("the executor has ended")
