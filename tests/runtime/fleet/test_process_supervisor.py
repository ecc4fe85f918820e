"""Restarts under new epochs, and what the owner is told of them, with simulated processes."""

import errno
import os
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from triolet.engine.control_messages import ENGINE_TO_ROOT, ROOT_TO_ENGINE
from triolet.engine.errors import BootRefused
from triolet.fuzz.doubles.scripted_child import ScriptedChild
from triolet.nurseries.processes.boot import EXIT_SHORTAGE
from triolet.nurseries.processes.hang_watch import ProcessHung
from triolet.nurseries.processes.kernel import Kernel
from triolet.nurseries.processes.process_exit import ProcessDied, ProcessExit, ProcessStuck
from triolet.nurseries.tasks.supervision_policy import Death
from triolet.runtime.control.calls import EngineState
from triolet.runtime.events import ignore_event
from triolet.runtime.fleet.fleet_parts import FleetParts
from triolet.runtime.fleet.process_supervisor import ProcessSupervisor
from triolet.runtime.launch.child import (
    BecameReady,
    ChildKind,
    GivenUp,
    Gone,
    PlaceEvent,
    Removed,
    Suspected,
)
from triolet.runtime.launch.child_end import ChildEnd, EndKind, end_of
from triolet.runtime.launch.reported_workers import Remains

from ...checkpoints import cancel_at_every_checkpoint
from ..acting import acting_settings

BOOT_S = 2.0
DIED = ProcessDied(ProcessExit("engine 0", 1, None, 11))  # a kill would count for nothing


CAUSES = {EndKind.STOPPED: "was stopped", EndKind.REFUSED: "refused"}


@attrs.frozen
class PlaceGivenUp(Exception):
    """Raised by the owner of a place that is given up."""

    end: ChildEnd


def ends_of(group: ExceptionGroup[PlaceGivenUp]) -> list[Exception]:
    """What the last lives of places ended by that are given up."""
    return [each.end.failure for each in group.exceptions if isinstance(each, PlaceGivenUp)]


@attrs.define(eq=False)
class Owner:
    """Writes down what it is told, and looks at the books meanwhile."""

    refuses: bool = False
    boots: bool = True
    lives_s: float = 1000.0
    # The life in whose end an operator restarts it, and what it ends by.
    restarted: int = 0
    end: Exception = DIED
    # Whether a request is to blame for a death, or for that and the one before at each second one.
    blames_request: bool = False
    blames_in_pairs: bool = False
    told: list[tuple[str, int]] = attrs.field(factory=list)
    # Of each process that is gone.
    own_faults: list[bool] = attrs.field(factory=list)
    processes: ProcessSupervisor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.processes = ProcessSupervisor(
            owner=self,
            kind=ChildKind(role="engine", module="", sends=ROOT_TO_ENGINE, receives=ENGINE_TO_ROOT),
            count=1,
            parts=FleetParts(
                acting_settings(["ready"]),
                ignore_event,
                launch=partial(ScriptedChild, script=self.live),
            ),
        )

    async def live(self, child: ScriptedChild) -> None:
        """Boot for `BOOT_S`, then refuse, or be ready and die."""
        await trio.sleep(BOOT_S)
        if self.refuses:
            raise BootRefused("engine 0", "/m: is truncated")
        if self.boots:
            child.become_ready(b"ready")
            await trio.sleep(self.lives_s)
        if self.blames_request or self.blames_in_pairs:
            child.plan.report(Suspected(b"", is_itself=True))
        if child.epoch == self.restarted:
            self.processes.restart(0)
        raise self.end

    def handle_starting(self, rank: int, epoch: int, descriptors: Sequence[str]) -> bytes:
        assert self.processes.present() == {}, "a successor is started after the end alone"
        self.told.append(("starting", epoch))
        return b"init"

    def handle(self, rank: int, event: PlaceEvent) -> None:
        epoch = self.processes.places[rank].epoch
        match event:
            case BecameReady(child, payload):
                assert (self.processes.ready, self.processes.booting) == ({rank: child}, {})
                self.told.append((payload.decode(), epoch))
            case Suspected() if self.blames_in_pairs:
                self.processes.excuse({epoch - 1, epoch} if epoch % 2 == 0 else set())
            case Suspected() if self.blames_request:
                self.processes.excuse({epoch})
            case Gone(end):
                self.processes.places[rank].check_invariants()
                assert self.processes.present() == {}
                self.told.append((CAUSES.get(end.kind, "died"), epoch))
                self.own_faults.append(end.is_own_fault)
            case GivenUp(end):
                raise PlaceGivenUp(end)
            case _:
                raise AssertionError("a simulated process does not hang, and says nothing")

    def ready(self) -> list[int]:
        """The epochs of the lives that were."""
        return [epoch for what, epoch in self.told if what == "ready"]


@attrs.define(eq=False)
class CountedOwner(Owner):
    """Of places that come and go: several at a time."""

    removed: list[int] = attrs.field(factory=list)

    def handle_starting(self, rank: int, epoch: int, descriptors: Sequence[str]) -> bytes:
        assert rank not in self.processes.present(), "a successor is started after the end alone"
        return b"init"

    def handle(self, rank: int, event: PlaceEvent) -> None:
        self.processes.places[rank].check_invariants()
        if isinstance(event, Removed):
            assert rank not in self.processes.present()
            self.removed.append(rank)


async def test_it_is_run_again_under_the_next_epoch(autojump_clock: MockClock) -> None:
    owner = Owner()
    with trio.move_on_after(2 * BOOT_S + owner.lives_s + 1):
        await owner.processes.run()
    assert owner.told == [
        ("starting", 1),
        ("ready", 1),
        ("died", 1),
        ("starting", 2),
        ("ready", 2),
        ("was stopped", 2),
    ]


async def test_places_come_and_go_while_others_run(autojump_clock: MockClock) -> None:
    """A rank that is free again is given to the next place, under an epoch of its own."""
    owner = CountedOwner()
    processes = owner.processes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(processes.run)
        await trio.sleep(2 * BOOT_S)
        assert (processes.add(), processes.add()) == (1, 2)
        await trio.sleep(2 * BOOT_S)
        assert sorted(processes.ready) == [0, 1, 2]
        processes.remove(1)
        await trio.testing.wait_all_tasks_blocked()
        assert (sorted(processes.ready), sorted(processes.places)) == ([0, 2], [0, 2])
        assert processes.any_left()
        assert processes.add() == 1
        processes.remove(2)
        await trio.sleep(2 * BOOT_S)
        assert {rank: child.epoch for rank, child in processes.ready.items()} == {0: 1, 1: 4}
        assert processes.targets().keys() == {"engine 0", "engine 1"}
        nursery.cancel_scope.cancel("the test is over")
    assert owner.removed == [1, 2]


@pytest.mark.parametrize("when_s", [0.0, BOOT_S / 2, 5.05])
async def test_a_place_is_removed_before_its_first_life_in_a_boot_and_in_a_delay(
    autojump_clock: MockClock, when_s: float
) -> None:
    owner = CountedOwner(lives_s=5.0 - BOOT_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.processes.run)
        await trio.sleep(1)
        rank = owner.processes.add()
        await trio.sleep(when_s)
        owner.processes.remove(rank)
        await trio.testing.wait_all_tasks_blocked()
        assert owner.removed == [rank]
        assert rank not in owner.processes.present()
        nursery.cancel_scope.cancel("the test is over")


async def test_the_limit_of_restarts_comes_from_the_last_death(autojump_clock: MockClock) -> None:
    owner = Owner(lives_s=0.1)
    with pytest.RaisesGroup(PlaceGivenUp) as raised:
        await owner.processes.run()
    assert ends_of(raised.value) == [DIED]
    assert owner.ready() == [1, 2, 3]


def starved(**how: Any) -> ProcessDied:
    return ProcessDied(ProcessExit("engine 0", 1, **how))


@pytest.mark.parametrize(
    "end",
    [
        ProcessHung("engine 0", "hung: stopped for 0.5 s", is_own_fault=False),
        starved(code=None, signal=signal.SIGKILL, out_of_memory=True),
        starved(code=EXIT_SHORTAGE, signal=None),
        OSError(errno.EAGAIN, "no process"),
    ],
    ids=["stopped from outside", "killed for memory", "refused memory", "no process"],
)
async def test_what_comes_from_outside_counts_toward_no_limit(
    end: Exception, autojump_clock: MockClock
) -> None:
    owner = Owner(lives_s=0.1, end=end)
    with trio.move_on_after(100):
        await owner.processes.run()
    assert len(owner.ready()) > 10
    is_stop = isinstance(end, ProcessHung)
    assert is_stop or end_of(end).death is Death.SHORTAGE  # so it backs off


async def test_deaths_by_requests_count_toward_no_limit(autojump_clock: MockClock) -> None:
    owner = Owner(lives_s=0.1, blames_request=True)
    with trio.move_on_after(10 * (BOOT_S + owner.lives_s) + 1):
        await owner.processes.run()
    assert owner.ready() == list(range(1, 11))


async def test_what_a_later_death_explains_is_taken_off_the_limit(
    autojump_clock: MockClock,
) -> None:
    owner = Owner(lives_s=0.1, blames_in_pairs=True)
    with trio.move_on_after(10 * (BOOT_S + owner.lives_s) + 1):
        await owner.processes.run()
    assert owner.ready() == list(range(1, 11))
    assert owner.own_faults[:4] == [True, False, True, False]


async def test_a_death_by_a_request_is_no_fault_of_the_process_and_the_next_one_is(
    autojump_clock: MockClock,
) -> None:
    owner = Owner(lives_s=0.1, blames_request=True)

    async def stop_blaming() -> None:
        await trio.sleep(BOOT_S + owner.lives_s + 0.05)  # the first is gone, the second boots
        assert owner.own_faults == [False]
        owner.blames_request = False

    with pytest.RaisesGroup(PlaceGivenUp, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_blaming)
            await owner.processes.run()
    assert owner.own_faults == [False, True, True, True]


async def test_a_hang_of_its_own_counts_toward_the_limit(autojump_clock: MockClock) -> None:
    owner = Owner(lives_s=0.1, end=ProcessHung("engine 0", "hung: asleep for 5 s"))
    with pytest.RaisesGroup(PlaceGivenUp):
        await owner.processes.run()
    assert owner.ready() == [1, 2, 3]


async def test_an_order_that_meets_the_last_death_is_carried_out(
    autojump_clock: MockClock,
) -> None:
    owner = Owner(lives_s=0.1, restarted=3)
    with pytest.RaisesGroup(PlaceGivenUp):
        await owner.processes.run()
    assert owner.ready() == [1, 2, 3, 4, 5, 6]


async def test_an_order_does_not_begin_anew_what_cannot_be_ended(
    autojump_clock: MockClock,
) -> None:
    owner = Owner(restarted=1, end=ProcessStuck("engine 0", 1, 10.0))  # and no pidfd of it
    with pytest.RaisesGroup(PlaceGivenUp):
        await owner.processes.run()
    assert owner.ready() == [1]


class SimulatedKernel(Kernel):
    def reap(self, pidfd: int) -> tuple[int | None, int | None]:
        return None, signal.SIGKILL


@attrs.define(eq=False)
class StuckOwner(Owner):
    """Each life of its rank outlives SIGKILL, until its end of a pipe is written to."""

    ends: list[int] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.processes.parts = attrs.evolve(self.processes.parts, kernel=SimulatedKernel())
        self.end = ProcessStuck("engine 0", 1, 10.0)

    async def live(self, child: ScriptedChild) -> None:
        try:
            await super().live(child)
        finally:
            pidfd, end = os.pipe()
            self.ends.append(end)
            child.plan.report(Remains(pidfd))

    def handle(self, rank: int, event: PlaceEvent) -> None:
        if isinstance(event, GivenUp):
            assert self.processes.is_stuck(rank)
        if not isinstance(event, GivenUp) or not self.processes.any_left():
            super().handle(rank, event)


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_what_hangs_in_the_kernel_is_followed_when_it_is_gone_or_by_order(
    autojump_clock: MockClock, is_ordered: bool
) -> None:
    owner = StuckOwner(lives_s=5.0)
    with trio.move_on_after(1000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.processes.run)
            await trio.sleep(500)
            assert owner.processes.place(0).state is EngineState.FAILED
            assert "10.0 s after SIGKILL" in owner.processes.failed[0]
            assert owner.ready() == [1]
            if is_ordered:
                owner.processes.restart(0)
            else:
                os.write(owner.ends[0], b"gone")
            await trio.sleep(BOOT_S + 1)
            assert owner.ready() == [1, 2]
            assert not owner.processes.failed
            nursery.cancel_scope.cancel()
    for end in owner.ends:
        os.close(end)


async def test_what_hangs_in_the_kernel_before_it_was_ready_ends_the_start(
    autojump_clock: MockClock,
) -> None:
    owner = StuckOwner(boots=False)
    with pytest.RaisesGroup(PlaceGivenUp):
        await owner.processes.run()
    os.close(owner.ends[0])


async def test_a_refusal_is_not_followed_by_a_restart(autojump_clock: MockClock) -> None:
    owner = Owner(refuses=True)
    with pytest.RaisesGroup(PlaceGivenUp) as raised:
        await owner.processes.run()
    assert [type(error) for error in ends_of(raised.value)] == [BootRefused]
    assert owner.told == [("starting", 1), ("refused", 1)]


async def test_cancelled_anywhere_it_leaves_no_process_in_its_books(
    autojump_clock: MockClock,
) -> None:
    owners: list[Owner] = []

    async def use() -> None:
        owners.append(Owner(lives_s=0.1))
        try:
            await owners[-1].processes.run()
        except* PlaceGivenUp:
            pass

    def check() -> None:
        processes = owners[-1].processes
        assert processes.present() == {}
        assert not processes.places[0].has_process
        processes.places[0].check_invariants()

    assert await cancel_at_every_checkpoint(use, check) >= 8
