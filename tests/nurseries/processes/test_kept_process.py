"""Processes started ahead: taken over, dead, stopped or silent, or gone with their parent."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from triolet.nurseries.processes.death_watch import is_stopped
from triolet.nurseries.processes.kept_process import KeptProcess, keep_process
from triolet.nurseries.processes.orphans import child_pids
from triolet.nurseries.processes.process import Process, ProcessSpec, open_process
from triolet.nurseries.processes.process_exit import EXIT_CHILD_KILLED
from triolet.nurseries.processes.spawned import Spawned

from ...leaks import check_no_leaks, no_room_for_descriptors
from ..child_programs import (
    DEADLINE_S,
    HASTY,
    PATIENT,
    look_again,
    open_child,
    receive_ready,
    receive_word,
    see_dead,
    see_stopped,
    spec_of,
    tell,
    wait_pid_gone,
)


@attrs.define(eq=False)
class Keeper:
    """The one process that is kept, and whether its keeper has ended."""

    kept: KeptProcess | None = None
    over: trio.Event = attrs.field(factory=trio.Event)

    async def keep(self, spec: ProcessSpec, warm_up_s: float) -> None:
        await keep_process(spec, warm_up_s=warm_up_s, ladder=HASTY, on_kept=self._take_note)
        self.over.set()

    def _take_note(self, kept: KeptProcess) -> None:
        self.kept = kept

    async def wait_warm(self) -> KeptProcess:
        while self.kept is None or not self.kept.warm:
            await look_again()
        return self.kept


@asynccontextmanager
async def open_keeper(spec: ProcessSpec, warm_up_s: float = DEADLINE_S) -> AsyncIterator[Keeper]:
    keeper = Keeper()
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.keep, spec, warm_up_s)
            yield keeper
            nursery.cancel_scope.cancel("the test is over")


@pytest.mark.slow
async def test_one_that_is_taken_over_goes_on_with_what_it_had_said() -> None:
    async with open_keeper(spec_of("obedient")) as keeper:
        kept = await keeper.wait_warm()
        spawned = kept.take()
        assert spawned is not None
        assert kept.take() is None, "once"
        taken = ProcessSpec("taken", "", spawned=spawned)
        async with open_process(taken, ladder=PATIENT) as process:
            await keeper.over.wait()
            assert await receive_ready(process), "what it said first is still to be read"
            assert process.pid == spawned.pid
            process.ask_to_stop()
            assert (await process.wait_exited()).code == 0


@pytest.mark.slow
async def test_one_may_be_taken_before_it_is_warm() -> None:
    async with open_keeper(spec_of("obedient")) as keeper:
        while keeper.kept is None:
            await look_again()
        spawned = keeper.kept.take()
        assert spawned is not None
        async with open_process(ProcessSpec("taken", "", spawned=spawned)) as process:
            await receive_ready(process)


@pytest.mark.slow
async def test_one_is_taken_although_there_is_no_descriptor_to_look_at_it() -> None:
    async with open_keeper(spec_of("obedient")) as keeper:
        kept = await keeper.wait_warm()
        with no_room_for_descriptors():
            spawned = kept.take()
        assert spawned is not None
        async with open_process(ProcessSpec("taken", "", spawned=spawned)) as process:
            await receive_ready(process)


@pytest.mark.slow
async def test_a_dead_one_is_not_taken_before_anybody_has_noticed() -> None:
    async with open_keeper(spec_of("obedient")) as keeper:
        kept = await keeper.wait_warm()
        os.kill(kept.process.pid, signal.SIGKILL)
        see_dead(kept.process.pidfd)
        assert kept.take() is None
        await keeper.over.wait()


@pytest.mark.slow
async def test_a_stopped_one_is_not_taken_and_is_ended() -> None:
    async with open_keeper(spec_of("obedient")) as keeper:
        kept = await keeper.wait_warm()
        os.kill(kept.process.pid, signal.SIGSTOP)
        see_stopped(kept.process.pidfd)
        assert kept.take() is None
        await keeper.over.wait()
        assert kept.process.exit is not None


@pytest.mark.slow
async def test_one_whose_own_child_is_stopped_is_not_taken() -> None:
    spec = attrs.evolve(spec_of("waits_with_ahead"), ahead=("obedient",))
    async with open_keeper(spec) as keeper:
        kept = await keeper.wait_warm()
        (child,) = child_pids(kept.process.pid)
        os.kill(child, signal.SIGSTOP)
        while not is_stopped(child):
            await trio.lowlevel.checkpoint()
        assert kept.take() is None
        await keeper.over.wait()
        await wait_pid_gone(child)


@pytest.mark.slow
async def test_one_that_is_being_ended_is_not_taken() -> None:
    spec = spec_of("slow_to_stop")
    async with open_keeper(spec, warm_up_s=0.0) as keeper:
        while keeper.kept is None or not keeper.kept.process.asked_to_stop:
            await look_again()
        assert keeper.kept.process.exit is None
        assert keeper.kept.take() is None
        await keeper.over.wait()
        assert keeper.kept.process.exit is not None


@asynccontextmanager
async def open_waiter() -> AsyncIterator[tuple[Process, int]]:
    """A process that keeps a child of its own while it waits for a word."""
    spec = attrs.evolve(spec_of("waits_with_ahead"), ahead=("obedient",))
    async with open_child(spec, until_ready=False) as process:
        yield process, int(await receive_ready(process))


@pytest.mark.slow
async def test_what_was_started_ahead_is_handed_on_after_the_wait() -> None:
    async with open_waiter() as (process, child):
        tell(process, "go")
        assert await receive_word(process) == "go 1"
        os.kill(child, 0)  # it lives
    await wait_pid_gone(child)


@pytest.mark.slow
async def test_the_death_of_what_was_started_ahead_ends_the_wait() -> None:
    async with open_waiter() as (process, child):
        os.kill(child, signal.SIGKILL)
        how = await process.wait_exited()
        assert how.code == EXIT_CHILD_KILLED
        assert "was killed by SIGKILL" in how.cause


@pytest.mark.slow
async def test_an_order_to_stop_while_it_waits_ends_both_in_order() -> None:
    async with open_waiter() as (process, child):
        process.ask_to_stop()
        assert (await process.wait_exited()).code == 0
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)  # before its parent was


def test_five_numbers_are_an_argument() -> None:
    spawned = Spawned(pid=9, pidfd=3, control_fd=4, death_fd=5, words_fd=6)
    assert Spawned.decode(spawned.encode()) == spawned
    for bad in ("", "1,2,3", "1,2,3,4,5,6", "1,2,3,4,x"):
        with pytest.raises((ValueError, TypeError)):
            Spawned.decode(bad)


@pytest.mark.slow
async def test_one_that_was_started_ahead_is_taken_over_and_stopped() -> None:
    spec = attrs.evolve(spec_of("takes_ahead", child_of_child="taken"), ahead=("obedient",))
    async with open_child(spec, until_ready=False) as process:
        pid, word = (await receive_ready(process)).split(maxsplit=1)
        assert word, "it has said that it is ready"
        process.ask_to_stop()
        assert (await process.wait_exited()).code == 0
        await wait_pid_gone(int(pid))


@pytest.mark.slow
async def test_one_that_was_not_taken_over_goes_with_its_parent() -> None:
    spec = attrs.evolve(spec_of("takes_ahead"), ahead=("obedient",))
    async with open_child(spec, until_ready=False) as process:
        pid = int(await receive_ready(process))
        process.kill_group()
        await process.wait_exited()
        await wait_pid_gone(pid)


@pytest.mark.slow
async def test_one_that_cannot_start_is_noticed_when_it_is_taken_over() -> None:
    spec = attrs.evolve(
        spec_of("takes_ahead", child_of_child="taken"), ahead=("no_such_module_anywhere",)
    )
    async with open_child(spec, until_ready=False) as process:
        words = (await receive_ready(process)).split()
        assert len(words) == 1, "it has said nothing"
