"""One child process of the root, from its spawn to the end of everything that it started.

What differs between roles (module, payloads, what messages mean) is in a `ChildPlan`. A run ends by
raising, and not before the process and every worker process that it reported are gone by pidfd.
"""

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import NoReturn

import attrs
import trio

from ...engine.errors import BootRefused
from ...engine.messages import Failing, TreeReply, WorkersChanged
from ...nurseries.processes.hang_watch import BLOCKED_S, Hang, ProcessHung
from ...nurseries.processes.process import (
    LadderTimes,
    Process,
    ProcessDied,
    ProcessExit,
    ProcessSpec,
    ProcessStuck,
    open_process,
    shut_down_process,
)
from ...nurseries.processes.progress_page import ProgressPage, open_page
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import single_errors_unwrapped, start_service_soon
from ...nurseries.tasks.task_tree import ProcessTree
from ...transports.codec import MalformedMessage
from ...transports.control.channel import ControlChannel
from ...transports.control.handshake import HandshakeError, PeerRefused, perform_parent_handshake
from ...transports.control.passed_fds import close_fds
from ..events import (
    ChildGone,
    ChildHung,
    ChildPhaseEnded,
    ChildProgress,
    ChildStarting,
    ChildStopped,
    OnEvent,
)
from .boot_progress import BootProgress, EndedPhase
from .hang_watcher import run_hang_watcher
from .reported_workers import ReportedWorkers, hand_over
from .tree_calls import TreeCalls

# A child's sockets close some milliseconds before its pidfd is readable.
DEATH_AFTER_SILENCE_S = 0.5
# What a dead child had said is in our socket already, so reading it waits for nothing.
LAST_MESSAGES_S = 0.5


@attrs.define(eq=False)
class ChildProcess:
    """A running child: its process, its control channel, and questions to it.

    `on_message` owns every control message that is not answered here, and its descriptors.
    """

    process: Process
    control: ControlChannel
    on_message: Callable[[object, Sequence[int]], None]
    epoch: int = 0
    # The wait for its end, cancelled when it was killed for a hang: that end has a deadline.
    patience: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    # Gets a cause, and whether what it computed is one: see `_fail`.
    on_failing: Callable[..., None] = attrs.field(default=lambda *_, **__: None, init=False)
    # The latest hang that was found; its reason names the worker.
    hung: Hang | None = attrs.field(default=None, init=False)
    # Its owner knows that it is going, and the batches of its steps.
    is_failing: bool = attrs.field(default=False, init=False)
    # From the spawn on; it has ended when `ready` is set.
    boot: BootProgress = attrs.field(factory=lambda: BootProgress(trio.current_time()), init=False)
    ready: bool = attrs.field(default=False, init=False)
    workers: ReportedWorkers = attrs.field(factory=ReportedWorkers, init=False)
    _trees: TreeCalls = attrs.field(
        default=attrs.Factory(lambda self: TreeCalls(self.control), takes_self=True), init=False
    )
    # The newest snapshot of each kind that was not sent yet: the latest wins.
    _snapshots: dict[type, object] = attrs.field(factory=dict, init=False)
    _snapshot_set: Doorbell = attrs.field(factory=Doorbell, init=False)

    def publish(self, snapshot: object) -> None:
        """Have this full snapshot sent, in place of one of its kind that still waits."""
        self._snapshots[type(snapshot)] = snapshot
        self._snapshot_set.ring()

    async def send_snapshots(self) -> None:
        """Send what is published; a child that does not read delays no other."""
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                with waiting_for("news for it"):
                    await self._snapshot_set.wait()
                while self._snapshots:
                    snapshot = self._snapshots.pop(next(iter(self._snapshots)))
                    await self.control.send_patiently(snapshot)

    async def send(self, order: object, timeout_s: float, fds: Sequence[int] = ()) -> None:
        """Send one order, with duplicates of `fds`.

        Raises `trio.BrokenResourceError` if the child is dead, `trio.TooSlowError` if it takes
        nothing for `timeout_s`, or we have no room for it: it got nothing of it.
        """
        with trio.fail_after(timeout_s):
            try:
                await self.control.send_patiently(order, fds)
            except trio.ClosedResourceError as error:
                raise trio.BrokenResourceError(f"{self.process.spec.name} has ended") from error

    async def send_if_possible(self, order: object, timeout_s: float) -> None:
        """As `send`, for an order that a dead or hanging child does not need either."""
        with contextlib.suppress(trio.BrokenResourceError, trio.TooSlowError):
            await self.send(order, timeout_s)

    async def tree(self) -> str:
        """The child's process tree as JSON text. Raises `trio.TooSlowError`, `BrokenResource…`."""
        return await self._trees.ask()

    def boot_tree(self) -> ProcessTree:
        """What is known here of a child that boots and cannot be asked yet."""
        boot = self.boot
        facts: dict[str, str | int | float] = {
            "epoch": self.epoch,
            "phase": boot.phase,
            "done": f"{boot.fraction:.0%}",
            "since": f"{boot.phase_s(trio.current_time()):.1f} s",
        }
        workers = [ProcessTree("worker", pid) for pid in self.workers.pids]
        return ProcessTree(self.process.spec.name, self.process.pid, facts, processes=workers)

    async def read_control(self) -> None:
        """Take the child's messages until it closes its end; then no question is answered."""
        try:
            while True:
                try:
                    with waiting_for("its messages"):
                        message, fds = await self.control.receive()
                except MalformedMessage:
                    continue  # logged by the channel; a question has its deadline
                except (trio.EndOfChannel, trio.BrokenResourceError):
                    return  # its pidfd tells the rest
                self.handle_message(message, fds)
        finally:
            self._trees.handle_ended()

    def handle_message(self, message: object, fds: Sequence[int]) -> None:
        """Apply one control message."""
        match message:
            case WorkersChanged(pids=pids):
                self.workers.handle_changed(pids, fds)
                if self.hung is not None and self.hung.pid not in (self.process.pid, *pids):
                    self.hung = None  # another has its place
            case TreeReply():
                close_fds(fds)
                self._trees.handle_reply(message)
            case Failing(cause=cause, is_own_fault=is_own_fault):
                close_fds(fds)
                self.on_failing(cause, is_own_fault=is_own_fault)
            case _:
                self.on_message(message, fds)


@attrs.frozen(kw_only=True)
class ChildPlan:
    """What to run as one child, and its callbacks.

    `on_spawned` gets the child, `on_ready` also READY's payload; `on_gone` the cause, and
    `is_own_fault` (see `ProcessOwner.handle_gone`), as soon as the death is seen, which may be
    before its workers are gone; `on_failing` as soon as it can be known, and before that `on_fault`
    the page's table, of a death that may be a step's fault, and whether `is_itself` died and no
    worker; `on_hung` the cause where only a worker is killed. `on_stuck` gets a pidfd, its own, of
    each process that outlives SIGKILL, before `ProcessStuck` is raised. `on_message`: see
    `ChildProcess`. The child and its workers have `slots` on its page. `patience_s`, `blocked_s`:
    see `HangWatch`.
    """

    spec: ProcessSpec
    role: str
    epoch: int
    sends: Sequence[type]
    receives: Sequence[type]
    boot_timeout_s: float
    ladder: LadderTimes
    # Beside INIT; they stay the caller's.
    fds: Sequence[int] = ()
    on_spawned: Callable[[ChildProcess], None] = lambda child: None
    on_ready: Callable[[ChildProcess, bytes], None]
    on_failing: Callable[[str], None] = lambda cause: None
    on_fault: Callable[..., None] = lambda table, is_itself: None
    on_hung: Callable[[str], None] = lambda cause: None
    on_stuck: Callable[[int], None] = os.close
    on_gone: Callable[..., None]
    on_message: Callable[[object, Sequence[int]], None]
    on_event: OnEvent
    slots: int = 1
    table_bytes: int = 0
    patience_s: float = 60.0
    blocked_s: float | None = None


async def run_child_process(plan: ChildPlan, init: bytes) -> None:
    """Run one child from its spawn to its end; always ends by raising.

    Raises `ProcessDied` when the process ended, in whatever phase, with its last words, and
    `ProcessHung` instead if it or a worker was killed because it stood still;
    `BootRefused` when it says that it can never come up, `HandshakeError` when it does not;
    `OSError` when it cannot be spawned, `ProcessStuck` when it or a worker of it cannot be ended.
    Cancellation: the child is stopped by the ladder and reaped, its workers are waited for.
    """
    name = plan.spec.name
    child: ChildProcess | None = None
    cause, is_own_fault = "was stopped", False
    on_end: ChildGone | ChildStopped | None = ChildStopped(name, plan.epoch)
    try:
        async with _open_child(plan) as (process, page):
            control = ControlChannel(process.control, sends=plan.sends, receives=plan.receives)
            child = ChildProcess(process, control, plan.on_message, plan.epoch)
            child.on_failing = partial(_fail, child, plan, page)
            plan.on_spawned(child)
            plan.on_event(ChildStarting(name, plan.epoch))
            try:
                await _live(child, plan, init, page)
            finally:
                await _end(child, plan)
    except Exception as error:
        cause, is_own_fault = _judge(error)
        if isinstance(error, BootRefused):
            on_end = None  # reported once, by the error
        elif not (isinstance(error, ProcessDied) and error.exit.has_handed_over):
            on_end = ChildGone(name, plan.epoch, cause)
        raise
    finally:
        plan.on_gone(cause, is_own_fault=is_own_fault)
        try:
            if child is not None:
                await child.workers.wait_gone(name, plan.ladder.kill_s, plan.on_stuck)
        finally:
            if on_end is not None:
                plan.on_event(on_end)


@contextlib.asynccontextmanager
async def _open_child(plan: ChildPlan) -> AsyncIterator[tuple[Process, ProgressPage]]:
    async with open_process(plan.spec, ladder=plan.ladder) as process:  # first: it may be a spare
        with open_page(plan.slots, plan.table_bytes) as page:
            yield process, page


def _judge(error: Exception) -> tuple[str, bool]:
    """What the child did, as the end of a sentence about it, and whether it was its own fault."""
    match error:
        case ProcessDied():
            return error.exit.cause, error.exit.is_own_fault
        case ProcessHung():
            return error.cause, error.is_own_fault
        case BootRefused():
            return f"refused to start: {error}", False
        case HandshakeError():
            return f"did not come up: {error}", True
        case _:  # it could not be spawned, or outlived SIGKILL
            return f"failed: {error}", False


async def _end(child: ChildProcess, plan: ChildPlan) -> None:
    """Stop the process, if it is not dead, and take in what it said last: who its workers are."""
    with trio.CancelScope(shield=True):  # bounded by the ladder, then by LAST_MESSAGES_S
        try:
            await shut_down_process(child.process, plan.ladder)
        except ProcessStuck:
            hand_over(child.process.pidfd, plan.on_stuck)
            raise
        with trio.move_on_after(LAST_MESSAGES_S):
            await child.read_control()


async def _live(child: ChildProcess, plan: ChildPlan, init: bytes, page: ProgressPage) -> NoReturn:
    """From INIT to its death, which it raises; all the while it is ended if it stands still."""
    name = child.process.spec.name
    watcher = partial(
        run_hang_watcher,
        page,
        patience_s=plan.patience_s,
        # A boot may compute for as long as it likes.
        blocked_s=lambda: plan.blocked_s if child.ready else BLOCKED_S,
        pids=lambda: dict(enumerate((child.process.pid, *child.workers.pidfds()))),
        on_hang=partial(_handle_hang, child, plan, page),
        look=plan.spec.kernel.look,
    )
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            start_service_soon(nursery, watcher, name=f"{name}/hang-watcher")
            with waiting_for(f"{name} to be ready"):
                ready = await _handshake(child, plan, init, page)
            child.ready = True
            _report_ended(plan, child.boot.handle_ready(trio.current_time()))
            plan.on_ready(child, ready)
            start_service_soon(nursery, child.read_control, name=f"{name}/control")
            start_service_soon(nursery, child.send_snapshots, name=f"{name}/membership")
            with waiting_for(f"{name} to end"), child.patience:
                await child.process.wait_exited()
            nursery.cancel_scope.cancel(f"{name} ended")
    await shut_down_process(child.process, plan.ladder)  # nothing, if it has ended
    how = await child.process.wait_exited()
    _fail(child, plan, page, how.cause, is_own_fault=how.is_own_fault)
    raise _death(child, how)


async def _handshake(
    child: ChildProcess, plan: ChildPlan, init: bytes, page: ProgressPage
) -> bytes:
    def progress(phase: str, fraction: float) -> None:
        ended = child.boot.handle_report(phase, fraction, trio.current_time())
        plan.on_event(ChildProgress(plan.spec.name, phase, fraction))
        _report_ended(plan, ended)

    try:
        return await perform_parent_handshake(
            child.control,
            init,
            who=plan.spec.name,
            role=plan.role,
            pid=child.process.pid,
            boot_timeout_s=plan.boot_timeout_s,
            fds=[page.fd, *plan.fds],
            on_progress=progress,
            on_other=child.handle_message,
        )
    except PeerRefused as error:
        raise BootRefused(error.who, error.reason, error.parameter) from error
    except HandshakeError as error:
        # A death says more than silence.
        with trio.move_on_after(DEATH_AFTER_SILENCE_S):
            raise _death(child, await child.process.wait_exited()) from error
        raise


def _report_ended(plan: ChildPlan, phases: Sequence[EndedPhase]) -> None:
    for ended in phases:
        plan.on_event(ChildPhaseEnded(plan.spec.name, ended.phase, ended.seconds))


def _death(child: ChildProcess, how: ProcessExit) -> ProcessDied | ProcessHung:
    hung = child.hung
    return ProcessHung(how.process, hung.reason, hung.is_own_fault) if hung else ProcessDied(how)


def _handle_hang(child: ChildProcess, plan: ChildPlan, page: ProgressPage, hang: Hang) -> None:
    """Kill who stands still. A worker that was stopped alone: its engine gets another. One that
    hangs by its own fault takes the engine along: what it computed must run alone from now on."""
    pidfd = child.workers.pidfds().get(hang.pid) if hang.place else None
    cause = f"worker {hang.place - 1} {hang.reason}" if hang.place else hang.reason
    child.hung = attrs.evolve(hang, reason=cause)
    plan.on_event(ChildHung(child.process.spec.name, child.epoch, cause))
    if pidfd is not None:
        with contextlib.suppress(ProcessLookupError):  # its engine has reaped it meanwhile
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not hang.is_own_fault:
            plan.on_hung(cause)
            return
    _fail(child, plan, page, cause, is_own_fault=hang.is_own_fault)
    child.process.kill_group()
    child.patience.cancel("it was killed")


def _fail(
    child: ChildProcess, plan: ChildPlan, page: ProgressPage, cause: str, *, is_own_fault: bool
) -> None:
    """It is going, or gone; whom to suspect must be known before its requests go elsewhere."""
    if child.is_failing:
        return
    child.is_failing = True
    is_itself = child.process.exit is not None  # else it says that a worker ended it
    if (hung := child.hung) is not None:  # what it says of a worker is that this was killed
        cause, is_own_fault, is_itself = hung.reason, hung.is_own_fault, not hung.place
    if is_own_fault:
        plan.on_fault(page.read_table(), is_itself=is_itself)
    plan.on_failing(cause)
