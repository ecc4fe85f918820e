"""When a spare is due; spares of acting engines: taken, replaced when lost, gone with the run."""

import os
import pathlib
import re
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from triolet.engine.errors import BootRefused
from triolet.nurseries.processes.kernel import KERNEL
from triolet.nurseries.processes.orphans import child_pids
from triolet.nurseries.processes.process import LadderTimes
from triolet.nurseries.processes.spares import SPARE, Readiness, Spares
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.runtime.continuity.estate import EngineEstate
from triolet.runtime.events import ChildFailed, ChildGone, ChildReady, ChildStarting

from ...leaks import check_no_leaks
from ...nurseries.child_programs import look_again, see_stopped
from ..acting import (
    ACTING_ENGINE,
    DEADLINE_S,
    Diary,
    EngineBed,
    acting_settings,
    change_parts,
    process_of,
    running,
    wait_waits_for,
)

NAME = "spare engine 0"
SERVER = "fork server engine"


class Refuser(EngineEstate):
    """An estate that can be made no more, as where no journal can be."""

    refused = 0

    def handle_starting(self, rank: int, epoch: int) -> Mapping[str, int]:
        self.refused += 1
        raise BootRefused(f"engine {rank}", "there is no room for it")


@attrs.define(eq=False)
class Bed(EngineBed):
    """A fleet of one acting engine with a spare."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.spares.settle_s = 0.0

    @property
    def spares(self) -> Spares:
        return self.fleet.processes.spares

    def engine_pid(self) -> int:
        return process_of(self.fleet.processes.ready[0]).pid

    async def wait_warm(self, *, other_than: int = 0) -> int:
        """The pid of a spare that waits, and is not this one."""
        while True:
            for tree in self.trees():
                if tree.facts["phase"] == "warm" and tree.pid != other_than:
                    assert tree.name == NAME
                    return tree.pid
            await look_again()

    def trees(self) -> list[ProcessTree]:
        """Those of spares: their fork server is none."""
        return [tree for tree in self.spares.trees() if tree.name.startswith(SPARE)]

    async def wait_ready(self, count: int) -> int:
        """The epoch of the so-manieth that was ready."""
        epoch = (await self.diary.wait_for(ChildReady, count)).epoch
        assert isinstance(epoch, int)
        return epoch


@asynccontextmanager
async def open_bed(*acts: str, count: int = 1, forks: bool = True) -> AsyncIterator[Bed]:
    bed = Bed(attrs.evolve(acting_settings([*acts]), spare_engines=count), KERNEL)
    bed.spares.forks = forks
    async with running(bed.fleet):
        bed.fleet.processes.start_spares()
        yield bed


@pytest.mark.slow
async def test_the_next_process_is_the_spare_that_waited() -> None:
    async with open_bed("ready") as bed:
        await bed.wait_ready(1)
        spare = await bed.wait_warm()
        assert spare in bed.fleet.processes.to_reap()
        os.kill(bed.engine_pid(), signal.SIGKILL)
        assert await bed.wait_ready(2) == 2
        assert bed.engine_pid() == spare
        assert process_of(bed.fleet.processes.ready[0]).spec.name == "engine 0"
        # And there is another, for the time after that.
        again = await bed.wait_warm()
        assert again not in (spare, bed.engine_pid())
        assert len(bed.diary.of(ChildStarting)) == 2, "spares are no children of the run"


@pytest.mark.slow
async def test_the_first_process_is_forked_by_a_server_that_is_there_before() -> None:
    async with open_bed("ready") as bed:
        await bed.wait_ready(1)
        server = bed.spares.processes()[SERVER]
        titles = [pathlib.Path(f"/proc/{pid}/cmdline") for pid in (server.pid, bed.engine_pid())]
        assert titles[0].read_bytes() == titles[1].read_bytes()


@pytest.mark.slow
async def test_where_the_server_dies_before_it_is_warm_the_first_process_is_spawned() -> None:
    async with open_bed("ready") as bed:
        while SERVER not in bed.spares.processes():
            await look_again()
        bed.spares.processes()[SERVER].kill_group()
        assert await bed.wait_ready(1) == 1


@pytest.mark.slow
async def test_a_fork_replaces_one_that_was_taken_before_all_are_ready() -> None:
    async with open_bed("ready", "hang") as bed:
        await bed.wait_ready(1)
        spare = await bed.wait_warm()
        os.kill(bed.engine_pid(), signal.SIGKILL)
        await bed.wait_warm(other_than=spare)
        assert bed.fleet.processes.ready == {}


@pytest.mark.slow
async def test_the_death_of_the_fork_server_leaves_the_spare_and_is_mended() -> None:
    async with open_bed("ready") as bed:
        await bed.wait_ready(1)
        spare = await bed.wait_warm()
        server = bed.spares.processes()[SERVER]
        assert server.pid in bed.fleet.processes.to_reap()
        for _ in range(2):
            server.kill_group()
            while (warm := bed.spares._warm_server) is None or warm.process is server:
                await look_again()
            server = warm.process
        assert bed.spares._server_policy.losses == 0
        assert await bed.wait_warm() == spare
        assert bed.diary.of(ChildGone) == []


@pytest.mark.slow
async def test_none_is_started_before_all_are_ready() -> None:
    async with open_bed("hang", forks=False) as bed:
        await bed.diary.wait_for(ChildStarting)
        await wait_waits_for("all to be ready, to start a spare")
        assert bed.spares.trees() == []


@pytest.mark.slow
async def test_a_spare_that_dies_is_replaced_and_nobody_restarts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_bed("ready") as bed:
        await bed.wait_ready(1)
        spare = 0
        for _ in range(3):  # from outside, so no later one waits longer
            spare = await bed.wait_warm(other_than=spare)
            os.kill(spare, signal.SIGKILL)
        await bed.wait_warm(other_than=spare)
        assert bed.spares._policies[0].losses == 0
        assert bed.diary.of(ChildGone) == []
        assert len(bed.diary.of(ChildStarting)) == 1
        os.kill(bed.engine_pid(), signal.SIGKILL)
        assert await bed.wait_ready(2) == 2
    assert caplog.records == []


@pytest.mark.slow
async def test_a_stopped_spare_is_passed_over_and_ended() -> None:
    async with open_bed("ready") as bed:
        await bed.wait_ready(1)
        spare = await bed.wait_warm()
        pidfd = os.pidfd_open(spare)
        try:
            os.kill(spare, signal.SIGSTOP)
            see_stopped(pidfd)
            os.kill(bed.engine_pid(), signal.SIGKILL)
            assert await bed.wait_ready(2) == 2
            assert bed.engine_pid() != spare
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)


@pytest.mark.slow
async def test_a_spare_that_dies_as_it_is_taken_costs_one_restart_more() -> None:
    async with open_bed("ready") as bed:
        await bed.wait_ready(1)
        spare = await bed.wait_warm()

        def kill_first(event: object) -> None:
            if isinstance(event, ChildStarting) and event.epoch == 2:
                os.kill(spare, signal.SIGKILL)

        change_parts(bed.fleet, on_event=kill_first)
        os.kill(bed.engine_pid(), signal.SIGKILL)
        while 0 not in bed.fleet.processes.ready or bed.fleet.processes.ready[0].epoch < 3:
            await look_again()


@pytest.mark.slow
async def test_a_spare_that_was_taken_for_what_cannot_begin_is_ended() -> None:
    async with open_bed("ready") as bed:
        await bed.wait_ready(1)
        await bed.wait_warm()
        (spare,) = [tree.pid for tree in bed.trees() if tree.facts["phase"] == "warm"]
        estates, refuser = bed.fleet.processes.estates, Refuser()
        bed.fleet.processes.estates = (*estates, refuser)
        os.kill(bed.engine_pid(), signal.SIGKILL)
        while spare in child_pids(os.getpid()):
            await look_again()
        assert refuser.refused, "it was to begin, and could not"
        bed.fleet.processes.estates = estates
        await bed.diary.wait_for(ChildReady, 2)


@pytest.mark.slow
async def test_of_several_the_warm_one_is_taken_first() -> None:
    async with open_bed("ready", count=2, forks=False) as bed:
        await bed.wait_ready(1)
        while [tree.facts["phase"] for tree in bed.trees()] != ["warm", "warm"]:
            await look_again()
        first, second = bed.trees()
        os.kill(bed.engine_pid(), signal.SIGKILL)
        await bed.wait_ready(2)
        assert bed.engine_pid() == first.pid
        os.kill(bed.engine_pid(), signal.SIGKILL)
        await bed.wait_ready(3)
        assert bed.engine_pid() == second.pid


@pytest.mark.slow
async def test_a_place_whose_spare_hangs_in_the_kernel_is_given_up_by_name() -> None:
    """A ladder without time for any rung finds everything stuck."""
    diary = Diary()
    spares = Spares(
        role="engine",
        module=ACTING_ENGINE,
        count=1,
        warm_up_s=0.0,
        ladder=LadderTimes(ask_s=0, terminate_s=0, kill_s=0),
        readiness=Readiness(),
        settle_s=0.0,
        on_stuck=lambda name, reason: diary(ChildFailed(name, reason)),
    )
    spares.readiness.handle_starting("engine 0")
    spares.readiness.handle_ready("engine 0")
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            spares.start(nursery)
            failed = await diary.wait_for(ChildFailed)
            assert failed.child == NAME
            pid = int(re.findall(r"\(pid (\d+)\) is still there", failed.cause)[0])
            os.waitid(os.P_PID, pid, os.WEXITED)  # noqa: ASYNC222 - killed, and not reaped yet
            assert spares.to_reap() == set()
            nursery.cancel_scope.cancel("enough")


@pytest.mark.slow
async def test_a_machine_that_can_start_none_is_asked_again_later() -> None:
    spares = Spares(
        role="engine",
        module=ACTING_ENGINE,
        count=1,
        warm_up_s=1e-9,  # none is ever quick enough
        ladder=acting_settings(["ready"]).times.ladder,
        readiness=Readiness(),
        settle_s=0.0,
    )
    spares.readiness.handle_starting("engine 0")
    spares.readiness.handle_ready("engine 0")
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            spares.start(nursery)
            await wait_waits_for("all to be ready, to start a spare (lost: 1)")
            assert spares.to_reap() == set()
            nursery.cancel_scope.cancel("enough")
