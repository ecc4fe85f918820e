"""A child from its spawn to its end, as a process or a task that acts as it is told."""

import os
import select
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import attrs
import msgspec
import pytest
import trio
import trio.testing

from triolet.engine.control_messages import (
    ENGINE_TO_ROOT,
    ROOT_TO_ENGINE,
    Drain,
    EngineInit,
    FrontendMembership,
    WorkersChanged,
)
from triolet.engine.errors import BootRefused
from triolet.fuzz.other_process import kept_from_ending
from triolet.nurseries.processes.death_watch import wait_process_gone
from triolet.nurseries.processes.hang_watch import ProcessHung
from triolet.nurseries.processes.kernel import KERNEL, Kernel
from triolet.nurseries.processes.process import LadderTimes
from triolet.nurseries.processes.process_exit import ProcessDied, ProcessStuck
from triolet.nurseries.processes.spawned import Spawned
from triolet.nurseries.tasks.service import ServiceEnded
from triolet.runtime.events import (
    ChildGone,
    ChildHung,
    ChildPhaseEnded,
    ChildProgress,
    ChildStarting,
    ChildStopped,
)
from triolet.runtime.launch.child import (
    BecameFailing,
    BecameReady,
    ChildEvent,
    ChildKind,
    ChildPlan,
    ChildTimes,
    Gone,
    Launched,
    Said,
)
from triolet.runtime.launch.child_end import ChildEnd, EndKind
from triolet.runtime.launch.local_child import LocalChild
from triolet.runtime.launch.reported_workers import Remains
from triolet.transports.control.handshake import HandshakeTimeout

from ...leaks import check_no_leaks
from ...live_tasks import find_background_task
from ...nurseries.child_programs import look_again
from ..acting import (
    ACTING_ENGINE,
    DEADLINE_S,
    ActingKernel,
    Diary,
    acting_settings,
    dummy_process,
    facts_of,
    fill,
    running_kernel,
    wait_waits_for,
)

pytestmark = pytest.mark.slow


@attrs.define(eq=False)
class Owner:
    """Starts one child, and writes down what it is told of it."""

    act: str
    # Real where stops, hangs, workers or the causes of deaths are the point.
    kernel: Kernel = attrs.field(factory=ActingKernel)
    boot_timeout_s: float = 30.0
    kill_s: float = DEADLINE_S
    blocked_s: float | None = None
    environment: dict[str, str] = attrs.field(factory=dict)
    spare: Spawned | None = None
    slots: int = 2
    diary: Diary = attrs.field(factory=Diary)
    gone: list[str] = attrs.field(factory=list)
    own_faults: list[bool] = attrs.field(factory=list)
    failing: list[str] = attrs.field(factory=list)
    stuck: list[Remains] = attrs.field(factory=list)
    lost: list[ChildEnd] = attrs.field(factory=list)
    spawned: list[LocalChild] = attrs.field(factory=list)

    async def run(self) -> None:
        settings = acting_settings([self.act]).engine
        kind = ChildKind(
            role="engine",
            module=ACTING_ENGINE,
            environment=self.environment,
            sends=ROOT_TO_ENGINE,
            receives=ENGINE_TO_ROOT,
            slots=self.slots,
            blocked_s=self.blocked_s,
        )
        init = EngineInit(
            run_id="r", rank=0, epoch=1, settings=settings, membership=FrontendMembership(0, [])
        )
        plan = ChildPlan(
            kind=kind,
            rank=0,
            epoch=1,
            init=msgspec.msgpack.encode(init),
            times=ChildTimes(self.boot_timeout_s, LadderTimes(kill_s=self.kill_s)),
            report=self._handle,
            on_event=self.diary,
            spare=self.spare,
            kernel=self.kernel,
        )
        async with running_kernel(self.kernel):
            end = await LocalChild(plan).wait_ended()
        self.lost.append(end)
        raise end.failure

    def _handle(self, event: ChildEvent) -> None:
        match event:
            case Launched(LocalChild() as child):
                self.spawned.append(child)
            case BecameReady(child):
                self.diary(child)
            case BecameFailing(cause):
                self.failing.append(cause)
            case Remains():
                self.stuck.append(event)
            case Gone(end):
                self.gone.append(end.cause)
                self.own_faults.append(end.is_own_fault)
            case Said(message):
                raise AssertionError(f"{message} is not an acting engine's")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        """Run the child during the block and stop it then; nothing of it is left."""
        with check_no_leaks(), trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.run)
                yield nursery
                nursery.cancel_scope.cancel("the test stops the child")

    async def wait_gone(self) -> None:
        """Until the death was told; in a cancelled task, too."""
        with trio.CancelScope(shield=True):
            while not self.gone:
                await look_again()

    async def wait_ready(self) -> LocalChild:
        child = await self.diary.wait_for(LocalChild)
        assert isinstance(child, LocalChild)
        return child


async def test_a_death_is_told_with_its_cause() -> None:
    owner = Owner("ready", KERNEL)
    killed = pytest.RaisesExc(ProcessDied, match="was killed by SIGKILL")
    with pytest.RaisesGroup(killed):
        async with owner.running():
            child = await owner.wait_ready()
            child.process.send_signal(signal.SIGKILL)
            await trio.sleep_forever()
    assert owner.gone == ["was killed by SIGKILL"]
    assert owner.own_faults == [False]
    assert owner.diary.of(ChildGone) == [ChildGone("engine 0", 1, "was killed by SIGKILL")]
    assert owner.diary.of(ChildProgress) == [ChildProgress("engine 0", "load", 0.5)]


async def test_a_crash_is_its_own_fault() -> None:
    owner = Owner("ready", KERNEL)
    with pytest.RaisesGroup(ProcessDied):
        async with owner.running():
            (await owner.wait_ready()).process.send_signal(signal.SIGSEGV)
            await trio.sleep_forever()
    assert owner.own_faults == [True]


@pytest.mark.parametrize("part", ["control", "membership", "hang-watcher"])
async def test_a_child_without_one_of_its_tasks_is_ended(part: str) -> None:
    owner = Owner("ready")
    with pytest.RaisesGroup(ServiceEnded):
        async with owner.running():
            await owner.wait_ready()
            await trio.testing.wait_all_tasks_blocked()
            find_background_task(f"engine 0/{part}").cancel("the test")
            await trio.sleep_forever()
    assert owner.gone == [f"failed: engine 0/{part} ended before those who use it"]


async def test_a_start_is_told_phase_by_phase() -> None:
    owner = Owner("ready")
    async with owner.running():
        child = await owner.wait_ready()
        assert child.is_ready
    told = [item for item in owner.diary.told if not isinstance(item, LocalChild)]
    assert [type(event) for event in told] == [
        ChildStarting,
        ChildProgress,
        ChildPhaseEnded,
        ChildPhaseEnded,
        ChildStopped,
    ]
    assert [event.phase for event in owner.diary.of(ChildPhaseEnded)] == ["start", "load"]
    assert owner.diary.of(ChildPhaseEnded)[0].seconds > 0


async def test_a_booting_child_is_shown_as_far_as_its_parent_knows() -> None:
    owner = Owner("hang")
    async with owner.running():
        await owner.diary.wait_for(ChildProgress)
        (child,) = owner.spawned
        assert not child.is_ready
        child.handle_message(WorkersChanged([12, 13]), [])
        tree = await child.tree()
        assert (tree.name, tree.pid) == ("engine 0", child.process.pid)
        assert [worker.pid for worker in tree.processes] == [12, 13]
        facts = dict(tree.facts)
        assert str(facts.pop("since")).endswith(" s")
        assert facts == {"epoch": 1, "phase": "load", "done": "50%"}


async def test_a_process_that_cannot_be_had_is_told_as_a_failure() -> None:
    """As for want of descriptors or processes; here its environment is larger than may be."""
    owner = Owner("ready", KERNEL, environment={"TOO_LARGE": "x" * 2**20})
    with check_no_leaks(), trio.fail_after(DEADLINE_S), pytest.raises(OSError) as caught:
        await owner.run()
    assert owner.gone == [f"failed: {caught.value}"]
    assert owner.diary.told == [ChildGone("engine 0", 1, f"failed: {caught.value}")]


async def test_a_spare_is_ended_when_there_is_no_memory_for_its_page() -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        spare = KERNEL.spawn(ACTING_ENGINE, ahead=(), environment={})
        owner = Owner("ready", KERNEL, spare=spare, slots=-1)
        with pytest.raises(OSError, match="Invalid argument"):
            await owner.run()


async def test_a_refusal_is_one_sentence_and_no_death() -> None:
    owner = Owner("refuse")
    with check_no_leaks(), trio.fail_after(DEADLINE_S), pytest.raises(BootRefused) as caught:
        await owner.run()
    assert str(caught.value) == "/m: is truncated"
    assert (owner.gone, owner.own_faults) == (["refused to start: /m: is truncated"], [False])
    assert owner.diary.of(ChildGone) == []  # the error tells it, once


async def test_a_child_that_does_not_come_up_is_stopped() -> None:
    owner = Owner("hang", boot_timeout_s=0.3)
    with check_no_leaks(), trio.fail_after(DEADLINE_S), pytest.raises(HandshakeTimeout):
        await owner.run()
    assert owner.gone[0].startswith("did not come up: engine 0 made no progress for ")
    assert owner.own_faults == [True]


async def test_a_life_ends_only_when_every_reported_worker_is_gone() -> None:
    with dummy_process() as worker:
        owner = Owner(f"workers {worker.pid}", KERNEL)
        with pytest.RaisesGroup(ProcessDied):
            async with owner.running():
                child = await owner.wait_ready()
                child.process.send_signal(signal.SIGKILL)
                await wait_waits_for("a worker of the dead engine to be gone")
                # Told at once, so that streams end; but nobody may take the devices yet.
                assert owner.gone
                assert owner.diary.of(ChildGone) == []
                worker.kill()
                await trio.sleep_forever()


async def test_a_child_that_is_stopped_for_ever_is_killed_for_it() -> None:
    with dummy_process() as worker:
        owner = Owner(f"shown {worker.pid}", KERNEL)
        with pytest.RaisesGroup(ProcessHung):
            async with owner.running():
                child = await owner.wait_ready()
                child.process.send_signal(signal.SIGSTOP)
                await owner.wait_gone()
                worker.kill()
                await trio.sleep_forever()
    cause = "hung: stopped for 0.5 s"
    assert owner.failing == owner.gone == [cause]
    assert owner.own_faults == [False]
    assert owner.diary.of(ChildHung) == [ChildHung("engine 0", 1, cause)]
    assert owner.diary.of(ChildGone) == [ChildGone("engine 0", 1, cause)]


async def test_a_child_that_is_stopped_while_it_boots_is_not_waited_for() -> None:
    owner = Owner("hang", KERNEL)  # and has not shown itself yet
    with pytest.RaisesGroup(ProcessHung):
        async with owner.running():
            await owner.diary.wait_for(ChildProgress)
            owner.spawned[0].process.send_signal(signal.SIGSTOP)
            await owner.wait_gone()
            await trio.sleep_forever()
    cause = "hung: stopped for 0.5 s"
    assert (owner.gone, owner.own_faults) == ([cause], [False])
    assert owner.diary.of(ChildGone) == [ChildGone("engine 0", 1, cause)]


async def test_a_child_whose_loop_waits_for_a_thread_without_memory_is_killed_for_it() -> None:
    owner = Owner("starved", KERNEL, blocked_s=0.2)
    with pytest.RaisesGroup(ProcessHung):
        async with owner.running():
            await owner.wait_gone()
            await trio.sleep_forever()
    assert (owner.gone, owner.own_faults) == (["hung: asleep for 0.2 s"], [True])
    assert owner.diary.of(ChildHung) == [ChildHung("engine 0", 1, owner.gone[0])]


async def test_one_that_outlives_the_kill_for_its_hang_is_stuck_and_its_end_can_be_seen() -> None:
    owner = Owner("starved", KERNEL, blocked_s=0.2, kill_s=0.05)
    with ExitStack() as kept:
        with pytest.RaisesGroup(pytest.RaisesExc(ProcessStuck, match="engine 0")):
            async with owner.running():
                child = await owner.wait_ready()
                kept.enter_context(kept_from_ending(child.process.pid))
                await trio.sleep_forever()
        assert owner.failing == ["hung: asleep for 0.2 s"]
        assert [end.kind for end in owner.lost] == [EndKind.STUCK]
        (remains,) = owner.stuck
        assert select.select([remains.pidfd], [], [], 0) == ([], [], [])
    with trio.fail_after(DEADLINE_S):
        await remains.wait_gone(KERNEL)
    remains.close()


async def test_of_a_worker_that_hangs_the_engine_is_to_hear_by_its_death() -> None:
    with dummy_process() as worker:
        owner = Owner(f"shown {worker.pid}", KERNEL)
        with pytest.RaisesGroup(ProcessHung):
            async with owner.running():
                child = await owner.wait_ready()
                worker.send_signal(signal.SIGSTOP)
                await owner.diary.wait_for(ChildHung)
                assert worker.wait() == -signal.SIGKILL
                assert owner.gone == owner.failing == []
                child.process.send_signal(signal.SIGKILL)  # as an engine that dies of it
                await trio.sleep_forever()
    assert owner.gone == ["worker 0 hung: stopped for 0.5 s"]


async def test_a_worker_that_was_replaced_is_not_what_a_later_death_is_for() -> None:
    with dummy_process() as worker, dummy_process() as successor:
        owner = Owner(f"shown {worker.pid}", KERNEL)
        with pytest.RaisesGroup(ProcessDied):
            async with owner.running():
                child = await owner.wait_ready()
                worker.send_signal(signal.SIGSTOP)
                await owner.diary.wait_for(ChildHung)
                pidfd = os.pidfd_open(successor.pid)
                child.handle_message(WorkersChanged([successor.pid]), [pidfd])
                child.process.send_signal(signal.SIGKILL)
                await owner.wait_gone()
                successor.kill()
                await trio.sleep_forever()
    assert owner.gone == ["was killed by SIGKILL"]


async def test_a_worker_that_ends_between_look_and_kill_is_no_trouble() -> None:
    with dummy_process() as worker, dummy_process() as reaped:
        pidfd = os.pidfd_open(reaped.pid)
        reaped.kill()
        reaped.wait()
        owner = Owner(f"shown {worker.pid}", KERNEL)
        async with owner.running():
            child = await owner.wait_ready()
            child.handle_message(WorkersChanged([worker.pid]), [pidfd])
            worker.send_signal(signal.SIGSTOP)
            await owner.diary.wait_for(ChildHung)
            assert "memberships" in await facts_of(child)


async def test_a_cancelled_life_waits_for_workers_too_then_leaves_nothing() -> None:
    with dummy_process() as worker:
        owner = Owner(f"workers {worker.pid}", KERNEL)
        async with owner.running() as nursery:
            await owner.wait_ready()
            nursery.cancel_scope.cancel("the test stops the child")
            await owner.wait_gone()
            worker.kill()
    assert owner.gone == ["was stopped"]
    assert owner.diary.of(ChildStopped) == [ChildStopped("engine 0", 1)]


async def test_a_death_is_told_although_all_is_stopped_while_its_workers_end() -> None:
    with dummy_process() as worker:
        owner = Owner(f"workers {worker.pid}", KERNEL)
        with pytest.RaisesGroup(ProcessDied):
            async with owner.running() as nursery:
                child = await owner.wait_ready()
                child.process.send_signal(signal.SIGKILL)
                await wait_waits_for("a worker of the dead engine to be gone")
                nursery.cancel_scope.cancel("the test stops the child")
                worker.kill()
    assert owner.diary.of(ChildGone) == [ChildGone("engine 0", 1, "was killed by SIGKILL")]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_worker_that_hangs_in_the_kernel_is_named_in_bounded_time(cancelled: bool) -> None:
    """Its pidfd never tells of a death; here it is of a process that lives on."""
    with dummy_process() as worker:
        owner = Owner(f"workers {worker.pid}", KERNEL, kill_s=0.05)
        stuck = pytest.RaisesExc(ProcessStuck, match=rf"a worker of engine 0 \(pid {worker.pid}\)")
        with pytest.RaisesGroup(stuck):
            async with owner.running():
                child = await owner.wait_ready()
                if not cancelled:
                    child.process.send_signal(signal.SIGKILL)
                    await trio.sleep_forever()
        assert worker.poll() is None
        (remains,) = owner.stuck
        worker.kill()
        with trio.fail_after(DEADLINE_S):
            await wait_process_gone(remains.pidfd)
        remains.close()


async def test_what_it_said_last_is_heard_even_when_it_is_stopped() -> None:
    """Its workers are told of, and unread, in the moment of the cancellation."""
    with dummy_process() as worker:
        owner = Owner(f"late {worker.pid}", KERNEL)
        async with owner.running() as nursery:
            child = await owner.wait_ready()
            child.process.send_signal(signal.SIGUSR1)
            select.select([child.process.control], [], [])  # said; our loop stands still
            nursery.cancel_scope.cancel("the test stops the child")
            with trio.CancelScope(shield=True):
                await wait_waits_for("a worker of the dead engine to be gone")
            worker.kill()


async def test_the_latest_snapshot_wins() -> None:
    owner = Owner("ready")
    async with owner.running():
        child = await owner.wait_ready()
        for number in range(1, 6):
            child.control.publish(FrontendMembership(number, []))  # no checkpoint: all at once
        while not (heard := (await facts_of(child))["memberships"]):
            pass
        assert heard == "5 "
        child.control.publish(FrontendMembership(6, []))
        while (await facts_of(child))["memberships"] != "5 6 ":
            pass


async def test_a_child_that_takes_nothing_delays_nobody() -> None:
    owner = Owner("deaf")
    async with owner.running():
        child = await owner.wait_ready()
        await fill(child)
        for number in range(100):
            child.control.publish(FrontendMembership(number, []))
            await trio.lowlevel.checkpoint()
        with pytest.raises(trio.TooSlowError):
            await child.control.send(Drain(), 0.05)
        await child.control.send_if_possible(Drain(), 0.05)


async def test_a_dead_childs_ears_are_closed() -> None:
    owner = Owner("ready")
    with pytest.RaisesGroup(ProcessDied):
        async with owner.running():
            child = await owner.wait_ready()
            child.process.send_signal(signal.SIGKILL)
            await child.process.wait_exited()
            with trio.CancelScope(shield=True), pytest.raises(trio.BrokenResourceError):
                await child.control.send(Drain(), 5.0)
            await trio.sleep_forever()
    with pytest.raises(trio.BrokenResourceError):
        await child.control.send(Drain(), 5.0)


async def test_noise_is_dropped_and_the_child_still_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = Owner("noise")
    async with owner.running():
        child = await owner.wait_ready()
        assert "memberships" in await facts_of(child)
        assert caplog.text.count("a control message was dropped") == 1
