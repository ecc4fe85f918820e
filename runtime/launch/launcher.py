"""Launcher of child processes: one child from its spawn to the end of everything that it started.

What differs between roles is in a `ChildKind`. A run ends by raising, and not before the process
and every worker process that it reported are gone by pidfd, or outlive SIGKILL.
"""

import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn

import attrs
import trio

from ...engine.errors import BootRefused
from ...nurseries.processes.hang_watch import BLOCKED_S, Hang, ProcessHung
from ...nurseries.processes.kernel import KERNEL, Kernel
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
from ...nurseries.processes.spawned import Spawned
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.service import single_errors_unwrapped, start_service_soon
from ...transports.control.channel import ControlChannel
from ...transports.control.handshake import HandshakeError, PeerRefused, perform_parent_handshake
from ..events import (
    ChildGone,
    ChildHung,
    ChildPhaseEnded,
    ChildProgress,
    ChildStarting,
    ChildStopped,
    OnEvent,
)
from .boot_progress import EndedPhase
from .child_end import STOPPED, ChildEnd, ChildLost, EndKind, end_of
from .child_process import BecameReady, ChildEvent, ChildProcess, Gone, Launched, WorkerHung
from .hang_watcher import run_hang_watcher
from .reported_workers import report_remains

# A child's sockets close some milliseconds before its pidfd is readable.
DEATH_AFTER_SILENCE_S = 0.5
# A dead child's last messages are in our socket already, so reading them waits for nothing.
LAST_MESSAGES_S = 0.5


@attrs.frozen(kw_only=True)
class ChildKind:
    """Kind of the children of one `role`.

    They run `module`, which starts the modules `ahead` before its own imports (`ProcessSpec`). A
    child and its workers have `slots` on its page, with a table of `table_bytes` behind them.
    `blocked_s`: see `HangWatch`.
    """

    role: str
    module: str
    sends: Sequence[type]
    receives: Sequence[type]
    ahead: tuple[str, ...] = ()
    environment: Mapping[str, str] = attrs.field(factory=dict)
    slots: int = 1
    table_bytes: int = 0
    blocked_s: float | None = None


@attrs.frozen
class ChildTimes:
    """How long a child may take: to boot, to end, and over what it computes (`HangWatch`)."""

    boot_timeout_s: float
    ladder: LadderTimes
    patience_s: float = 60.0


@attrs.frozen(kw_only=True)
class ChildPlan:
    """Child to run: a rank of its kind, with its INIT. `report` gets the events of its life."""

    kind: ChildKind
    rank: int
    epoch: int
    init: bytes
    report: Callable[[ChildEvent], None]
    on_event: OnEvent
    times: ChildTimes
    # Descriptors beside INIT; they stay the caller's.
    fds: Sequence[int] = ()
    spare: Spawned | None = None
    kernel: Kernel = KERNEL

    @property
    def name(self) -> str:
        """The child's name, for people and the tree."""
        return f"{self.kind.role} {self.rank}"

    @property
    def spec(self) -> ProcessSpec:
        """The process to start, or to take over."""
        return ProcessSpec(
            self.name,
            self.kind.module,
            ahead=self.kind.ahead,
            environment=self.kind.environment,
            spawned=self.spare,
            kernel=self.kernel,
        )


async def run_child_process(plan: ChildPlan) -> None:
    """Run one child from its spawn to its end; always ends by raising.

    Raises `ChildLost` when the child cannot be spawned, refuses, does not come up, dies, hangs or
    cannot be ended: from that error, with the judgement of it. `Gone` is reported before, as soon
    as the end is seen.
    Cancellation: the child is stopped by the ladder and reaped, its workers are waited for.
    """
    end = STOPPED
    child: ChildProcess | None = None
    try:
        async with _open_child(plan) as (process, page):
            child = _child_of(plan, process, page)
            plan.report(Launched(child))
            plan.on_event(ChildStarting(plan.name, plan.epoch))
            try:
                await _live(child, plan, page)
            finally:
                await _end(child, plan)
    except Exception as error:
        end = end_of(error)
        raise ChildLost(end) from error
    finally:
        plan.report(Gone(end))
        try:
            if child is not None:
                await child.workers.wait_gone(plan.name, plan.times.ladder.kill_s, plan.report)
        except ProcessStuck as stuck:
            raise ChildLost(end_of(stuck)) from stuck
        finally:
            _report_end(plan, end)


def _child_of(plan: ChildPlan, process: Process, page: ProgressPage) -> ChildProcess:
    kind = plan.kind
    control = ControlChannel(process.control, sends=kind.sends, receives=kind.receives)
    return ChildProcess(process, control, plan.report, plan.epoch, page)


def _report_end(plan: ChildPlan, end: ChildEnd) -> None:
    if end.kind in (EndKind.STOPPED, EndKind.HANDED_OVER):
        plan.on_event(ChildStopped(plan.name, plan.epoch))
    elif end.kind is not EndKind.REFUSED:  # which is reported once, by who gives up for it
        plan.on_event(ChildGone(plan.name, plan.epoch, end.cause))


@contextlib.asynccontextmanager
async def _open_child(plan: ChildPlan) -> AsyncIterator[tuple[Process, ProgressPage]]:
    # The process first: it may be a spare.
    async with open_process(plan.spec, ladder=plan.times.ladder) as process:
        with open_page(plan.kind.slots, plan.kind.table_bytes) as page:
            yield process, page


async def _end(child: ChildProcess, plan: ChildPlan) -> None:
    """Stop the process, if it is not dead, and take in what it said last: who its workers are."""
    with trio.CancelScope(shield=True):  # bounded by the ladder, then by LAST_MESSAGES_S
        try:
            await shut_down_process(child.process, plan.times.ladder)
        except ProcessStuck:
            report_remains(child.process.pidfd, plan.report)
            raise
        with trio.move_on_after(LAST_MESSAGES_S):
            await child.read_control()


async def _live(child: ChildProcess, plan: ChildPlan, page: ProgressPage) -> NoReturn:
    """Run from INIT to the child's death, which is raised; a child that stands still is ended."""
    name = plan.name
    watcher = partial(
        run_hang_watcher,
        page,
        patience_s=plan.times.patience_s,
        # A boot may compute for as long as it likes.
        blocked_s=lambda: plan.kind.blocked_s if child.ready else BLOCKED_S,
        pids=lambda: dict(enumerate((child.process.pid, *child.workers.pidfds()))),
        on_hang=partial(_handle_hang, child, plan),
        look=plan.kernel.look,
    )
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            start_service_soon(nursery, watcher, name=f"{name}/hang-watcher")
            with waiting_for(f"{name} to be ready"):
                payload = await _handshake(child, plan, page)
            child.ready = True
            _report_ended(plan, child.boot.handle_ready(trio.current_time()))
            plan.report(BecameReady(child, payload))
            start_service_soon(nursery, child.read_control, name=f"{name}/control")
            start_service_soon(nursery, child.send_snapshots, name=f"{name}/membership")
            with waiting_for(f"{name} to end"), child.patience:
                await child.process.wait_exited()
            nursery.cancel_scope.cancel(f"{name} ended")
    await shut_down_process(child.process, plan.times.ladder)  # nothing, if it has ended
    how = await child.process.wait_exited()
    child.handle_failing(how.cause, is_own_fault=how.is_own_fault)
    raise _death(child, how)


async def _handshake(child: ChildProcess, plan: ChildPlan, page: ProgressPage) -> bytes:
    def progress(phase: str, fraction: float) -> None:
        ended = child.boot.handle_report(phase, fraction, trio.current_time())
        plan.on_event(ChildProgress(plan.name, phase, fraction))
        _report_ended(plan, ended)

    try:
        return await perform_parent_handshake(
            child.control,
            plan.init,
            who=plan.name,
            role=plan.kind.role,
            pid=child.process.pid,
            boot_timeout_s=plan.times.boot_timeout_s,
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
        plan.on_event(ChildPhaseEnded(plan.name, ended.phase, ended.seconds))


def _death(child: ChildProcess, how: ProcessExit) -> ProcessDied | ProcessHung:
    hung = child.hung
    return ProcessHung(how.process, hung.reason, hung.is_own_fault) if hung else ProcessDied(how)


def _handle_hang(child: ChildProcess, plan: ChildPlan, hang: Hang) -> None:
    """Kill who stands still. A worker that was stopped alone: its engine gets another. One that
    hangs by its own fault takes the engine along: what it computed must run alone from now on."""
    pidfd = child.workers.pidfds().get(hang.pid) if hang.place else None
    cause = f"worker {hang.place - 1} {hang.reason}" if hang.place else hang.reason
    child.hung = attrs.evolve(hang, reason=cause)
    plan.on_event(ChildHung(plan.name, child.epoch, cause))
    if pidfd is not None:
        with contextlib.suppress(ProcessLookupError):  # its engine has reaped it meanwhile
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not hang.is_own_fault:
            plan.report(WorkerHung(cause))
            return
    child.handle_failing(cause, is_own_fault=hang.is_own_fault)
    child.process.kill_group()
    child.patience.cancel("it was killed")
