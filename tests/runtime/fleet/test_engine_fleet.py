"""Engines are restarted under new epochs, given up, listed and told: with acting processes."""

import importlib.util
import itertools
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from triolet.engine.errors import BootRefused
from triolet.fuzz.doubles.scripted_child import ScriptedChild
from triolet.nurseries.processes.process_exit import ProcessStuck
from triolet.runtime.config import RuntimeSettings, SupervisionSettings
from triolet.runtime.control.calls import EngineState
from triolet.runtime.errors import NoEngineLeft
from triolet.runtime.events import ChildFailed, ChildGone, ChildReady, ChildStopped, EngineDiffers
from triolet.runtime.fleet.engine_fleet import ENGINE_MODULE
from triolet.runtime.fleet.server_rows import ServerRows, root_row
from triolet.runtime.launch.child import Child, ChildPlan
from triolet.runtime.launch.local_child import LocalChild
from triolet.runtime.messages import EngineMembership

from ..acting import (
    ActingKernel,
    EngineBed,
    acting_settings,
    change_parts,
    facts_of,
    process_of,
    running,
    wait_waits_for,
)

STARTING, READY, RESTARTING, FAILED = (
    EngineState.STARTING,
    EngineState.READY,
    EngineState.RESTARTING,
    EngineState.FAILED,
)

# A delay here is none that a test outlives.
PATIENT = SupervisionSettings(restart_limit=4, backoff_min_s=1000.0, backoff_max_s=1000.0)


@attrs.define(eq=False)
class Bed(EngineBed):
    def states(self, rank: int = 0) -> list[tuple[int, EngineState]]:
        """Every (epoch, state) that the snapshots gave this rank, without repeats."""
        snapshots: list[EngineMembership] = self.diary.of(EngineMembership)
        seen = [
            (member.epoch, member.state)
            for snapshot in snapshots
            for member in snapshot.engines
            if member.rank == rank
        ]
        return [state for state, _ in itertools.groupby(seen)]

    async def wait_ready(self, epoch: int) -> None:
        """Until the engine of this epoch is ready."""
        count = 0
        while True:
            count += 1
            event = await self.diary.wait_for(ChildReady, count)
            if event.epoch == epoch:
                return

    def kill(self, rank: int = 0) -> None:
        process_of(self.fleet.processes.ready[rank]).send_signal(signal.SIGKILL)

    async def kill_ready(self, epoch: int) -> None:
        """Kill the engine of this epoch once it is ready; never returns."""
        await self.wait_ready(epoch)
        self.kill()
        await trio.sleep_forever()


@asynccontextmanager
async def open_bed(settings: RuntimeSettings) -> AsyncIterator[Bed]:
    bed = Bed(settings)
    async with running(bed.fleet):
        yield bed


async def test_a_dead_engine_is_restarted_under_a_new_epoch() -> None:
    async with open_bed(acting_settings(["ready"])) as bed:
        await bed.wait_ready(1)
        bed.kill()
        await bed.wait_ready(2)
        assert bed.states() == [
            (1, STARTING),
            (1, READY),
            (1, RESTARTING),
            (2, RESTARTING),
            (2, READY),
        ]
        member = bed.fleet.directory.snapshot().engines[0]
        assert (member.restarts, member.cause) == (1, "was killed by SIGKILL")
    assert bed.diary.of(ChildGone) == [ChildGone("engine 0", 1, "was killed by SIGKILL")]
    assert bed.diary.of(ChildStopped) == [ChildStopped("engine 0", 2)]  # at the end, in order


async def test_a_life_that_was_not_spawned_is_counted_by_all_alike() -> None:
    kernel = ActingKernel()
    kernel.refusals = 1  # of the first process
    bed = Bed(acting_settings(["ready"]), kernel)
    rows = ServerRows((bed.fleet.processes,), lambda: root_row(0))
    async with running(bed.fleet):
        rows.begin()
        await bed.wait_ready(2)
        (member,) = bed.fleet.directory.snapshot().engines
        shown = {row["place"]: row["restarts"] for row in rows.look(0.0)}
        assert member.restarts == shown["engine 0"] == bed.fleet.processes.places[0].restarts == 1


async def test_an_engine_that_says_it_is_failing_gets_no_more_work() -> None:
    async with open_bed(acting_settings(["failing"])) as bed:
        await bed.wait_ready(1)
        process_of(bed.fleet.processes.ready[0]).send_signal(signal.SIGUSR1)
        await bed.diary.wait_for(EngineMembership, 3)
        assert bed.states() == [(1, STARTING), (1, READY), (1, RESTARTING)]
        assert bed.fleet.directory.snapshot().engines[0].cause == "a worker died"
        assert 0 in bed.fleet.processes.ready  # its end is told by its pidfd
    assert bed.diary.of(ChildGone) == []


async def test_an_engine_that_is_to_be_restarted_gets_no_more_work() -> None:
    async with open_bed(acting_settings(["ready"])) as bed:
        await bed.wait_ready(1)
        bed.fleet.restart(0)
        assert bed.states()[-1] == (1, RESTARTING)
        assert bed.fleet.processes.ready[0].epoch == 1  # it has not ended yet
        await bed.wait_ready(2)
        assert bed.states()[-2:] == [(2, RESTARTING), (2, READY)]
        assert bed.fleet.directory.snapshot().engines[0].cause == "was stopped"
    assert bed.diary.of(ChildGone) == []


async def test_suspects_that_have_passed_are_cleared_for_frontends_once() -> None:
    bed = Bed(acting_settings(["passed x", "passed x", "passed y"]))
    bed.fleet.quarantine.handle_death({b"x": 7, b"y": 8}, trio.current_time(), life=0)
    async with running(bed.fleet):
        for epoch in (1, 2, 3):
            await bed.wait_ready(epoch)
            await facts_of(bed.fleet.processes.ready[0])  # what it said before has been heard
            assert bed.fleet.directory.snapshot().suspects == {b"y": 8}
            if epoch < 3:
                bed.kill()
    # The same again, and one that is suspected at a later position, are no news.
    members = [snapshot.engines[0] for snapshot in bed.diary.of(EngineMembership)]
    up = [member.epoch for member in members if member.state is READY]
    assert up == [1, 1, 2, 3]


async def test_one_that_computes_otherwise_is_reported() -> None:
    async with open_bed(acting_settings(["ready", "ready", "other"])) as bed:
        for epoch in (1, 2, 3):
            await bed.wait_ready(epoch)
            if epoch < 3:
                assert bed.diary.of(EngineDiffers) == []
                bed.kill()
    assert bed.diary.of(EngineDiffers) == [EngineDiffers("engine 0", 3, "other", "acting")]


async def test_an_engine_that_keeps_dying_is_given_up_and_then_none_is_left() -> None:
    with pytest.raises(NoEngineLeft, match="told to raise"):
        async with open_bed(acting_settings(["raise"])) as bed:
            await trio.sleep_forever()
    assert bed.states()[-1] == (3, FAILED)  # two restarts, by the settings
    (failed,) = bed.diary.of(ChildFailed)
    assert failed.cause == (
        "it died too often; the last time it exited with code 1: ValueError('told to raise')"
    )


async def test_one_that_was_given_up_is_revived() -> None:
    async with open_bed(acting_settings(["raise"] * 4 + ["ready"], ["ready"])) as bed:
        failed = await bed.diary.wait_for(ChildFailed)
        assert bed.fleet.processes.failed == {0: failed.cause}
        bed.fleet.restart(0)
        await bed.wait_ready(5)
        assert bed.states()[-3:] == [(4, FAILED), (5, RESTARTING), (5, READY)]
        assert bed.fleet.processes.failed == {}


async def test_a_restart_stops_what_runs_in_order_and_counts_for_nothing() -> None:
    settings = acting_settings(["ready"], supervision=SupervisionSettings(restart_limit=0))
    async with open_bed(settings) as bed:
        for epoch in range(1, 4):
            await bed.wait_ready(epoch)
            bed.fleet.restart(0)
        await bed.wait_ready(4)
        assert bed.diary.of(ChildGone) == bed.diary.of(ChildFailed) == []
        assert bed.diary.of(ChildStopped) == [ChildStopped("engine 0", n) for n in range(1, 4)]


async def test_engines_come_and_go_each_with_settings_and_memory_of_its_own() -> None:
    settings = acting_settings(["ready"], ["ready"], ["ready"])
    bed = Bed(attrs.evolve(settings, engines=2))
    on_gpu = [attrs.evolve(settings.engine, device=f"cuda:{rank}") for rank in range(3)]
    bed.fleet.settings_of_places[1] = on_gpu[1]
    async with running(bed.fleet):
        await bed.diary.wait_for(ChildReady, 2)
        assert bed.fleet.add(on_gpu[2]) == 2
        await bed.diary.wait_for(ChildReady, 3)
        ready = bed.fleet.processes.ready
        on = [(await facts_of(ready[rank]))["on"] for rank in range(3)]
        assert on == ["cpu ", "cuda:1 ", "cuda:2 "]
        bed.fleet.remove(1)
        stopped = await bed.diary.wait_for(ChildStopped)
        assert (stopped.child, bed.diary.of(ChildGone)) == ("engine 1", [])
        while 1 in bed.fleet.processes.places:
            await trio.lowlevel.checkpoint()
        latest = bed.diary.of(EngineMembership)[-1]
        assert [member.rank for member in latest.engines] == [0, 2]
        assert bed.fleet.add() == 1
        await bed.diary.wait_for(ChildReady, 4)
        assert (await facts_of(bed.fleet.processes.ready[1]))["on"] == "cpu "


def test_what_is_laid_out_ahead_is_alike_in_all_places() -> None:
    bed = Bed(acting_settings(["ready"]))
    with pytest.raises(AssertionError, match="laid out"):
        bed.fleet.add(attrs.evolve(bed.fleet.settings.engine, workers=2))


async def test_a_restart_waits_for_no_delay() -> None:
    async with open_bed(acting_settings(["raise", "ready"], supervision=PATIENT)) as bed:
        await wait_waits_for("the time to restart engine 0")
        bed.fleet.restart(0)
        await bed.wait_ready(2)


async def test_the_others_serve_on_when_one_is_given_up() -> None:
    async with open_bed(acting_settings(["raise"], ["ready"])) as bed:
        await bed.diary.wait_for(ChildFailed)
        assert bed.fleet.processes.any_left()
        while 1 not in bed.fleet.processes.ready:
            await bed.diary.wait_for(ChildReady)
        bed.kill(1)
        await bed.diary.wait_for(ChildReady, 2)


async def test_an_engine_with_a_process_stuck_in_the_kernel_is_given_up_by_name() -> None:
    """What it held, a device perhaps, is still held: no restart can help."""
    stuck = ProcessStuck("a worker of engine 0", 17, 10.0)

    async def outlive_sigkill(child: ScriptedChild) -> None:
        await bed.diary.wait_for(ChildReady)
        raise stuck

    def launch(plan: ChildPlan) -> Child:
        return ScriptedChild(plan, outlive_sigkill) if plan.rank == 0 else LocalChild(plan)

    bed = Bed(acting_settings(["ready"], ["ready"]))
    change_parts(bed.fleet, launch=launch)
    async with running(bed.fleet):
        failed = await bed.diary.wait_for(ChildFailed)
        assert (failed.child, failed.cause) == ("engine 0", str(stuck))
        assert [state for _, state in bed.states()] == [STARTING, RESTARTING, FAILED]
        assert "is still there 10.0 s" in bed.fleet.directory.snapshot().engines[0].cause
        assert bed.fleet.processes.any_left()


async def test_a_refusal_is_raised_at_once_and_bare() -> None:
    with pytest.raises(BootRefused, match="/m: is truncated"):
        async with open_bed(acting_settings(["refuse"])) as bed:
            await trio.sleep_forever()
    assert bed.states() == [(1, STARTING), (1, RESTARTING), (1, FAILED)]
    assert bed.diary.of(ChildGone) == bed.diary.of(ChildFailed) == []


async def test_a_refusal_is_raised_when_the_last_engine_has_refused() -> None:
    with pytest.raises(BootRefused):
        async with open_bed(acting_settings(["refuse"], ["refuse"])) as bed:
            await trio.sleep_forever()
    assert len(bed.diary.of(ChildFailed)) == 1  # of the first: the second could still come up


async def test_a_refusal_after_the_run_has_served_is_a_shortage() -> None:
    async with open_bed(acting_settings(["ready", *["refuse"] * 5, "ready"])) as bed:
        await bed.wait_ready(1)
        bed.kill()
        await bed.diary.wait_for(ChildReady, 2)
        assert bed.diary.of(ChildFailed) == []


@pytest.mark.parametrize("executor", ["auto", "native", "torch", "null"])
def test_what_an_engine_starts_ahead_is_a_worker(executor: str) -> None:
    settings = acting_settings(["ready"])
    engine = attrs.evolve(settings.engine, executor=executor)
    fleet = attrs.evolve(Bed(attrs.evolve(settings, engine=engine)).fleet, module=ENGINE_MODULE)
    [module] = fleet.processes.kind.ahead
    assert importlib.util.find_spec(module) is not None
    assert ("native" in module) is (executor in ("auto", "native"))
