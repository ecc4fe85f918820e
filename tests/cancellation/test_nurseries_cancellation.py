"""Whatever the nurseries own is whole again when it is cancelled at its n-th checkpoint, for all n.

Trio's clock is real where processes are real, and a mock where they are not.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from triolet.nurseries.processes.process import Process, open_process, run_process
from triolet.nurseries.processes.process_pool import run_process_pool
from triolet.nurseries.tasks.background import start_background_task
from triolet.nurseries.tasks.service import open_service
from triolet.tests.live_tasks import find_background_tasks

from ..checkpoints import cancel_at_every_checkpoint
from ..leaks import check_no_leaks
from ..nurseries.child_programs import DEADLINE_S, HASTY, receive_ready, spec_of, tell

Clock = trio.testing.MockClock


def assert_no_background_task() -> None:
    """Every nursery was left, so that no task is there any more."""
    assert find_background_tasks() == []


async def test_background_task() -> None:
    async def serve(*, task_status: trio.TaskStatus[None]) -> None:
        await trio.lowlevel.checkpoint()
        task_status.started()
        await trio.sleep_forever()

    async def use() -> None:
        async with trio.open_nursery() as nursery:
            task = await start_background_task(nursery, serve, name="task")
            await trio.lowlevel.checkpoint()
            task.cancel("used enough")
            await task.wait_ended()

    assert await cancel_at_every_checkpoint(use, assert_no_background_task) > 3


async def test_service_outlives_its_body_at_every_checkpoint() -> None:
    alive = False

    async def serve(*, task_status: trio.TaskStatus[None]) -> None:
        nonlocal alive
        await trio.lowlevel.checkpoint()
        alive = True
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            alive = False

    async def use() -> None:
        async with open_service(serve, name="service"):
            try:
                for _ in range(3):
                    await trio.lowlevel.checkpoint()
            finally:
                assert alive

    def check() -> None:
        assert not alive
        assert_no_background_task()

    assert await cancel_at_every_checkpoint(use, check) > 5


async def open_and_talk() -> None:
    async with open_process(spec_of("on_order"), ladder=HASTY) as process:
        await receive_ready(process)
        tell(process, "exit 0")
        await process.wait_exited()


async def run_and_ask() -> None:
    async with trio.open_nursery() as nursery:
        run = partial(run_process, spec_of("on_order"), ready=receive_ready, ladder=HASTY)
        task = await start_background_task(nursery, run, name="process")
        process: Process = task.value[0]
        process.ask_to_stop()


async def run_pool_and_ask() -> None:
    async with trio.open_nursery() as nursery:
        specs = [spec_of("on_order", name=f"worker-{rank}", rank=rank) for rank in range(2)]
        run = partial(run_process_pool, specs, ready=receive_ready, ladder=HASTY)
        pool = await start_background_task(nursery, run, name="pool")
        for process, _ in pool.value:
            process.ask_to_stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("use", "at_least"), [(open_and_talk, 2), (run_and_ask, 4), (run_pool_and_ask, 8)]
)
async def test_processes(use: Callable[[], Awaitable[None]], at_least: int) -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        assert await cancel_at_every_checkpoint(use, assert_no_background_task) >= at_least
