"""Restarts under new epochs, and what the owner is told of them, with simulated processes."""

import errno
import itertools
import os
import signal
from collections.abc import Sequence, Set

import attrs
import pytest
import trio
from trio.testing import MockClock

from triolet.engine.errors import BootRefused
from triolet.engine.messages import ENGINE_TO_ROOT, ROOT_TO_ENGINE
from triolet.nurseries.processes.boot import EXIT_SHORTAGE
from triolet.nurseries.processes.hang_watch import ProcessHung
from triolet.nurseries.processes.kernel import Kernel
from triolet.nurseries.processes.process import ProcessDied, ProcessExit, ProcessStuck
from triolet.nurseries.tasks.supervision_policy import Death
from triolet.nurseries.tasks.supervisor import RestartLimitExceeded
from triolet.runtime.events import ignore_event
from triolet.runtime.messages import EngineState
from triolet.runtime.processes.child_process import ChildPlan, ChildProcess
from triolet.runtime.processes.process_supervisor import ProcessSupervisor, death_of

from ..acting import acting_settings

BOOT_S = 2.0
DIED = ProcessDied(ProcessExit("engine 0", 1, None, 11))  # a kill would count for nothing


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
            role="engine",
            module="",
            count=1,
            sends=ROOT_TO_ENGINE,
            receives=ENGINE_TO_ROOT,
            settings=acting_settings(["ready"]),
            epochs=itertools.count(1),
            on_event=ignore_event,
            run_child=self.simulate,
        )

    async def simulate(self, plan: ChildPlan, init: bytes) -> None:
        """A process that boots for `BOOT_S`, then refuses, or is ready and dies of itself."""
        child = ChildProcess(None, None, plan.on_message, plan.epoch)  # type: ignore[arg-type]
        plan.on_spawned(child)
        cause = "was stopped"
        try:
            await trio.sleep(BOOT_S)
            if not self.boots:
                raise self.end
            if self.refuses:
                cause = "refused"
                raise BootRefused("engine 0", "/m: is truncated")
            plan.on_ready(child, b"ready")
            await trio.sleep(self.lives_s)
            cause = "died"
            if self.blames_request or self.blames_in_pairs:
                plan.on_fault(b"", is_itself=True)
            if plan.epoch == self.restarted:
                self.processes.restart(0)
            raise self.end
        finally:
            plan.on_gone(cause, is_own_fault=cause == "died")

    def handle_starting(self, rank: int, epoch: int) -> bytes:
        assert self.processes.present() == {}, "a successor is started after the end alone"
        self.told.append(("starting", epoch))
        return b"init"

    def handle_ready(self, rank: int, child: ChildProcess, payload: bytes) -> None:
        assert (self.processes.ready, self.processes.booting) == ({rank: child}, {})
        self.told.append((payload.decode(), child.epoch))

    def handle_gone(self, rank: int, cause: str, *, is_own_fault: bool) -> None:
        assert self.processes.present() == {}
        self.told.append((cause, self.told[-1][1]))
        self.own_faults.append(is_own_fault)

    def handle_failing(self, rank: int, cause: str) -> None:
        raise AssertionError("a simulated process does not hang")

    def handle_hung(self, rank: int, cause: str) -> None:
        raise AssertionError("a simulated process does not hang")

    def handle_fault(self, rank: int, epoch: int, table: bytes, *, is_itself: bool) -> Set[int]:
        if self.blames_in_pairs:
            return {epoch - 1, epoch} if epoch % 2 == 0 else set()
        return {epoch} if self.blames_request else set()

    def handle_given_up(self, rank: int, error: RestartLimitExceeded) -> None:
        raise error

    def handle_message(self, rank: int, message: object, fds: Sequence[int]) -> None:
        raise AssertionError("a simulated process says nothing")


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


async def test_the_limit_of_restarts_comes_from_the_last_death(autojump_clock: MockClock) -> None:
    owner = Owner(lives_s=0.1)
    with pytest.RaisesGroup(RestartLimitExceeded) as raised:
        await owner.processes.run()
    assert raised.value.exceptions[0].__cause__ is DIED
    assert [epoch for what, epoch in owner.told if what == "ready"] == [1, 2, 3]


async def test_a_stop_from_outside_counts_toward_no_limit(autojump_clock: MockClock) -> None:
    stopped = ProcessHung("engine 0", "hung: stopped for 0.5 s", is_own_fault=False)
    owner = Owner(lives_s=0.1, end=stopped)
    with trio.move_on_after(10 * (BOOT_S + owner.lives_s) + 1):
        await owner.processes.run()
    assert [epoch for what, epoch in owner.told if what == "ready"] == list(range(1, 11))


@pytest.mark.parametrize(
    "end",
    [
        ProcessExit("engine 0", 1, None, signal.SIGKILL, out_of_memory=True),
        ProcessExit("engine 0", 1, EXIT_SHORTAGE, None),
    ],
)
async def test_deaths_for_want_of_memory_count_toward_no_limit(
    end: ProcessExit, autojump_clock: MockClock
) -> None:
    starved = ProcessDied(end)
    assert death_of(starved) is Death.SHORTAGE  # so it backs off
    owner = Owner(lives_s=0.1, end=starved)
    with trio.move_on_after(10 * (BOOT_S + owner.lives_s) + 1):
        await owner.processes.run()
    assert len([epoch for what, epoch in owner.told if what == "ready"]) > 5


async def test_deaths_by_requests_count_toward_no_limit(autojump_clock: MockClock) -> None:
    owner = Owner(lives_s=0.1, blames_request=True)
    with trio.move_on_after(10 * (BOOT_S + owner.lives_s) + 1):
        await owner.processes.run()
    assert [epoch for what, epoch in owner.told if what == "ready"] == list(range(1, 11))


async def test_what_a_later_death_explains_is_taken_off_the_limit(
    autojump_clock: MockClock,
) -> None:
    owner = Owner(lives_s=0.1, blames_in_pairs=True)
    with trio.move_on_after(10 * (BOOT_S + owner.lives_s) + 1):
        await owner.processes.run()
    assert [epoch for what, epoch in owner.told if what == "ready"] == list(range(1, 11))
    assert owner.own_faults[:4] == [True, False, True, False]


async def test_a_death_by_a_request_is_no_fault_of_the_process_and_the_next_one_is(
    autojump_clock: MockClock,
) -> None:
    owner = Owner(lives_s=0.1, blames_request=True)

    async def stop_blaming() -> None:
        await trio.sleep(BOOT_S + owner.lives_s + 0.05)  # the first is gone, the second boots
        assert owner.own_faults == [False]
        owner.blames_request = False

    with pytest.RaisesGroup(RestartLimitExceeded, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_blaming)
            await owner.processes.run()
    assert owner.own_faults == [False, True, True, True]


async def test_a_hang_of_its_own_counts_toward_the_limit(autojump_clock: MockClock) -> None:
    owner = Owner(lives_s=0.1, end=ProcessHung("engine 0", "hung: asleep for 5 s"))
    with pytest.RaisesGroup(RestartLimitExceeded):
        await owner.processes.run()
    assert [epoch for what, epoch in owner.told if what == "ready"] == [1, 2, 3]


async def test_an_order_that_meets_the_last_death_is_carried_out(
    autojump_clock: MockClock,
) -> None:
    owner = Owner(lives_s=0.1, restarted=3)
    with pytest.RaisesGroup(RestartLimitExceeded):
        await owner.processes.run()
    assert [epoch for what, epoch in owner.told if what == "ready"] == [1, 2, 3, 4, 5, 6]


async def test_an_order_does_not_begin_anew_what_cannot_be_ended(
    autojump_clock: MockClock,
) -> None:
    owner = Owner(restarted=1, end=ProcessStuck("engine 0", 1, 10.0))  # and no pidfd of it
    with pytest.RaisesGroup(RestartLimitExceeded):
        await owner.processes.run()
    assert [epoch for what, epoch in owner.told if what == "ready"] == [1]


class SimulatedKernel(Kernel):
    def reap(self, pidfd: int) -> tuple[int | None, int | None]:
        return None, signal.SIGKILL


@attrs.define(eq=False)
class StuckOwner(Owner):
    """Each life of its rank outlives SIGKILL, until its end of a pipe is written to."""

    ends: list[int] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.processes.kernel = SimulatedKernel()
        self.end = ProcessStuck("engine 0", 1, 10.0)

    async def simulate(self, plan: ChildPlan, init: bytes) -> None:
        try:
            await super().simulate(plan, init)
        finally:
            pidfd, end = os.pipe()
            self.ends.append(end)
            plan.on_stuck(pidfd)

    def handle_given_up(self, rank: int, error: RestartLimitExceeded) -> None:
        assert self.processes.is_stuck(rank)
        if not self.processes.any_left():
            raise error


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
            assert [epoch for what, epoch in owner.told if what == "ready"] == [1]
            if is_ordered:
                owner.processes.restart(0)
            else:
                os.write(owner.ends[0], b"gone")
            await trio.sleep(BOOT_S + 1)
            assert [epoch for what, epoch in owner.told if what == "ready"] == [1, 2]
            assert not owner.processes.failed
            nursery.cancel_scope.cancel()
    for end in owner.ends:
        os.close(end)


async def test_what_hangs_in_the_kernel_before_it_was_ready_ends_the_start(
    autojump_clock: MockClock,
) -> None:
    owner = StuckOwner(boots=False)
    with pytest.RaisesGroup(RestartLimitExceeded):
        await owner.processes.run()
    os.close(owner.ends[0])


async def test_want_of_memory_for_a_process_is_waited_out(autojump_clock: MockClock) -> None:
    owner = Owner(lives_s=0.1, end=OSError(errno.EAGAIN, "no process"))
    with trio.move_on_after(100):
        await owner.processes.run()
    assert len([what for what, _ in owner.told if what == "ready"]) > 10


async def test_a_refusal_is_not_followed_by_a_restart(autojump_clock: MockClock) -> None:
    owner = Owner(refuses=True)
    with pytest.RaisesGroup(RestartLimitExceeded) as raised:
        await owner.processes.run()
    assert isinstance(raised.value.exceptions[0].__cause__, BootRefused)
    assert owner.told == [("starting", 1), ("refused", 1)]
