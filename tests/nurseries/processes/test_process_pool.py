"""A pool's ranks are all ready or none, and one dead takes all down."""

import os
import signal
from functools import partial

import pytest
import trio

from triolet.nurseries.processes.process import Process, ProcessSpec
from triolet.nurseries.processes.process_exit import ProcessDied
from triolet.nurseries.processes.process_pool import run_process_pool
from triolet.nurseries.tasks.background import start_background_task
from triolet.nurseries.tasks.service import ServiceEnded
from triolet.tests.live_tasks import find_background_task

from ...leaks import check_no_leaks, process_exists
from ..child_programs import DEADLINE_S, HASTY, receive_ready, spec_of

pytestmark = pytest.mark.slow

Ranks = list[tuple[Process, str]]


def specs_of(*modules: str) -> list[ProcessSpec]:
    return [spec_of(m, name=f"worker-{rank}", rank=rank) for rank, m in enumerate(modules)]


async def start_pool(nursery: trio.Nursery, *modules: str) -> Ranks:
    run = partial(run_process_pool, ready=receive_ready, ladder=HASTY)
    pool = await start_background_task(nursery, run, specs_of(*modules), name="pool")
    ranks: Ranks = pool.value
    return ranks


async def test_all_are_ready_in_their_order_and_each_has_its_task() -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            ranks = await start_pool(nursery, "obedient", "on_order", "deaf")
            assert [process.spec.rank for process, _ in ranks] == [0, 1, 2]
            assert [value for _, value in ranks] == ["ready"] * 3
            for process, _ in ranks:
                assert not find_background_task(process.spec.name).ended
            find_background_task("pool").cancel("seen")
        assert all(process.exit is not None for process, _ in ranks)


@pytest.mark.parametrize("dead", [0, 1])
async def test_one_dead_all_down(dead: int) -> None:
    async def own() -> None:
        async with trio.open_nursery() as nursery:
            ranks.extend(await start_pool(nursery, "on_order", "deaf"))
            ranks[dead][0].send_signal(signal.SIGKILL)
            await trio.sleep_forever()

    ranks: Ranks = []
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        with pytest.RaisesGroup(
            pytest.RaisesExc(ProcessDied, match=f"worker-{dead} .* was killed by SIGKILL")
        ):
            await own()
        assert not any(process_exists(process.pid) for process, _ in ranks)
        signals = [process.exit and process.exit.signal for process, _ in ranks]
        assert signals == [signal.SIGKILL] * 2, "the others are not asked first"


async def test_deaths_at_one_time_are_raised_as_one() -> None:
    async def own() -> None:
        async with trio.open_nursery() as nursery:
            ranks = await start_pool(nursery, "on_order", "on_order")
            for process, _ in ranks:
                process.send_signal(signal.SIGKILL)
            for process, _ in ranks:
                # Without a checkpoint, so that the pool hears of all in one go.
                os.waitid(os.P_PIDFD, process.pidfd, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
            await trio.sleep_forever()

    with (
        check_no_leaks(),
        trio.fail_after(DEADLINE_S),
        pytest.RaisesGroup(pytest.RaisesExc(ProcessDied, match="was killed by SIGKILL")),
    ):
        await own()


@pytest.mark.parametrize("place", [0, 1])
async def test_one_that_never_gets_ready_spoils_the_start_of_all(place: int) -> None:
    modules = ["on_order", "on_order"]
    modules[place] = "dies_before_ready"
    died = pytest.raises(ProcessDied, match=f"worker-{place} .* exited with code 3")
    with check_no_leaks(), trio.fail_after(DEADLINE_S), died:
        await run_process_pool(specs_of(*modules), ready=receive_ready)


async def test_a_pool_that_was_asked_to_stop_returns() -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for process, _ in await start_pool(nursery, "on_order", "on_order"):
                process.ask_to_stop()


async def test_a_rank_whose_task_is_cancelled_alone_takes_all_down() -> None:
    """Else its process would be gone, and the pool would say nothing."""

    async def own() -> None:
        async with trio.open_nursery() as nursery:
            ranks.extend(await start_pool(nursery, "on_order", "on_order"))
            find_background_task("worker-0").cancel("the test cancels it alone")
            await trio.sleep_forever()

    ranks: Ranks = []
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        with pytest.RaisesGroup(pytest.RaisesExc(ServiceEnded, match="worker-0")):
            await own()
        assert not any(process_exists(process.pid) for process, _ in ranks)
