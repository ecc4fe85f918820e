"""Local child: a process of this machine, from its spawn to the end of all that it started.

Its life is over, and not before, when the process and every worker process that it reported are
gone by pidfd, or outlive SIGKILL.
"""

import contextlib
import signal
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from functools import partial
from typing import NoReturn

import attrs
import msgspec
import trio

from ...engine.control_messages import Failing, TreeReply, WorkersChanged
from ...engine.errors import BootRefused
from ...nurseries.processes.hang_watch import BLOCKED_S, Hang, ProcessHung
from ...nurseries.processes.process import Process, ProcessSpec, open_process, shut_down_process
from ...nurseries.processes.process_exit import ProcessDied, ProcessExit, ProcessStuck
from ...nurseries.processes.progress_page import ProgressPage, open_page
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.service import single_errors_unwrapped, start_service_soon
from ...nurseries.tasks.task_tree import ProcessTree
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
)
from .boot_progress import BootProgress, EndedPhase
from .child import (
    BecameFailing,
    BecameReady,
    ChildPlan,
    Gone,
    Launched,
    Said,
    Suspected,
    WorkerHung,
)
from .child_control import ChildControl
from .child_end import STOPPED, ChildEnd, EndKind, end_of
from .hang_watcher import run_hang_watcher
from .reported_workers import ReportedWorkers, report_remains
from .signals import SignalTarget, target_of

# A child's sockets close some milliseconds before its pidfd is readable.
DEATH_AFTER_SILENCE_S = 0.5
# A dead child's last messages are in our socket already, so reading them waits for nothing.
LAST_MESSAGES_S = 0.5


@attrs.define(eq=False)
class LocalChild:
    """Child that is a process of this machine. Before `Launched` there is none, and no page."""

    plan: ChildPlan
    process: Process = attrs.field(init=False)
    control: ChildControl = attrs.field(init=False)
    page: ProgressPage = attrs.field(init=False)
    workers: ReportedWorkers = attrs.field(factory=ReportedWorkers, init=False)
    # Progress from the spawn on; it has ended when `is_ready` is set.
    boot: BootProgress = attrs.field(init=False)
    is_ready: bool = attrs.field(default=False, init=False)
    # The fleet knows that the child is going, and the batches of its steps.
    is_failing: bool = attrs.field(default=False, init=False)
    # The latest hang that was found; its reason names the worker.
    hung: Hang | None = attrs.field(default=None, init=False)
    # The wait for its end, cancelled when it was killed for a hang: that end has a deadline.
    patience: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    # ---- what others see of it

    @property
    def epoch(self) -> int:
        """The number of its life."""
        return self.plan.epoch

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself; nothing happens if it is gone."""
        self.process.send_signal(number)

    def to_reap(self) -> Set[int]:
        """The process alone: its workers are children of its own."""
        return {self.process.pid}

    def targets(self) -> Mapping[str, SignalTarget | None]:
        """The process, and its workers by the pidfds that it reported."""
        targets = {self.plan.name: target_of(self.process)}
        for worker, (pid, pidfd) in enumerate(self.workers.pidfds().items()):
            send = partial(signal.pidfd_send_signal, pidfd)
            targets[f"{self.plan.name} worker {worker}"] = SignalTarget(pid, send)
        return targets

    def row(self) -> dict[str, object]:
        """Number, epoch, and while it boots how far it is."""
        row: dict[str, object] = {"pid": self.process.pid, "epoch": self.epoch}
        if not self.is_ready:
            row["reason"] = f"{self.boot.phase} {self.boot.fraction:.0%}"
        return row

    async def tree(self) -> ProcessTree:
        """Ask the child; one that does not answer is shown, as people look for it."""
        if not self.is_ready:
            return self._boot_tree()
        try:
            return msgspec.json.decode(await self.control.trees.ask(), type=ProcessTree)
        except (
            trio.TooSlowError,
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            msgspec.MsgspecError,
        ):
            facts = {"state": "does not answer"}
            return ProcessTree(self.plan.name, self.process.pid, facts=facts)

    def _boot_tree(self) -> ProcessTree:
        boot = self.boot
        facts: dict[str, str | int | float] = {
            "epoch": self.epoch,
            "phase": boot.phase,
            "done": f"{boot.fraction:.0%}",
            "since": f"{boot.phase_s(trio.current_time()):.1f} s",
        }
        workers = [ProcessTree("worker", pid) for pid in self.workers.pids]
        return ProcessTree(self.plan.name, self.process.pid, facts, processes=workers)

    # ---- its life

    async def wait_ended(self) -> ChildEnd:
        """Launch it, and wait until it and all that it started is gone, or outlives SIGKILL.

        `Gone` is reported before, as soon as the end is seen.
        Cancellation: the child is stopped by the ladder and reaped, its workers are waited for; one
        of them that outlives SIGKILL is its end all the same.
        """
        try:
            return await self._run()
        except ProcessStuck as stuck:
            return end_of(stuck)

    async def _run(self) -> ChildEnd:
        plan, end = self.plan, STOPPED
        try:
            async with self._opened():
                plan.report(Launched(self))
                plan.on_event(ChildStarting(plan.name, plan.epoch))
                try:
                    await self._live()
                finally:
                    await self._end()
        except Exception as error:
            end = end_of(error)
        finally:
            plan.report(Gone(end))
            try:
                await self.workers.wait_gone(plan.name, plan.times.ladder.kill_s, plan.report)
            finally:
                self._report_end(end)
        return end

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        plan, kind = self.plan, self.plan.kind
        spec = ProcessSpec(
            plan.name,
            kind.module,
            ahead=kind.ahead,
            environment=kind.environment,
            spawned=plan.spare,
            kernel=plan.kernel,
        )
        # The process first: it may be a spare.
        async with open_process(spec, ladder=plan.times.ladder) as self.process:
            channel = ControlChannel(self.process.control, sends=kind.sends, receives=kind.receives)
            with open_page(kind.slots, kind.table_bytes) as self.page:
                self.control = ChildControl(plan.name, channel)
                self.boot = BootProgress(trio.current_time())
                yield

    def _report_end(self, end: ChildEnd) -> None:
        plan = self.plan
        if end.kind in (EndKind.STOPPED, EndKind.HANDED_OVER):
            plan.on_event(ChildStopped(plan.name, plan.epoch))
        elif end.kind is not EndKind.REFUSED:  # which is reported once, by who gives up for it
            plan.on_event(ChildGone(plan.name, plan.epoch, end.cause))

    async def _end(self) -> None:
        """Stop the process, if it is not dead, and take in what it said last: who its workers
        are."""
        with trio.CancelScope(shield=True):  # bounded by the ladder, then by LAST_MESSAGES_S
            try:
                await shut_down_process(self.process, self.plan.times.ladder)
            except ProcessStuck:
                report_remains(self.process.pidfd, self.plan.report)
                raise
            with trio.move_on_after(LAST_MESSAGES_S):
                await self.control.read(self.handle_message)

    async def _live(self) -> NoReturn:
        """Run from INIT to the death, which is raised; a child that stands still is ended."""
        plan, name = self.plan, self.plan.name
        watcher = partial(
            run_hang_watcher,
            self.page,
            patience_s=plan.times.patience_s,
            # A boot may compute for as long as it likes.
            blocked_s=lambda: plan.kind.blocked_s if self.is_ready else BLOCKED_S,
            pids=lambda: dict(enumerate((self.process.pid, *self.workers.pidfds()))),
            on_hang=self._handle_hang,
            look=plan.kernel.look,
        )
        with single_errors_unwrapped():
            async with trio.open_nursery() as nursery:
                start_service_soon(nursery, watcher, name=f"{name}/hang-watcher")
                with waiting_for(f"{name} to be ready"):
                    payload = await self._handshake()
                self.is_ready = True
                self._report_ended(self.boot.handle_ready(trio.current_time()))
                plan.report(BecameReady(self, payload))
                read = partial(self.control.read, self.handle_message)
                start_service_soon(nursery, read, name=f"{name}/control")
                start_service_soon(nursery, self.control.send_snapshots, name=f"{name}/membership")
                with waiting_for(f"{name} to end"), self.patience:
                    await self.process.wait_exited()
                nursery.cancel_scope.cancel(f"{name} ended")
        await shut_down_process(self.process, plan.times.ladder)  # nothing, if it has ended
        how = await self.process.wait_exited()
        self.handle_failing(how.cause, is_own_fault=how.is_own_fault)
        raise self._death(how)

    async def _handshake(self) -> bytes:
        def progress(phase: str, fraction: float) -> None:
            ended = self.boot.handle_report(phase, fraction, trio.current_time())
            plan.on_event(ChildProgress(plan.name, phase, fraction))
            self._report_ended(ended)

        plan = self.plan
        try:
            return await perform_parent_handshake(
                self.control.channel,
                plan.init,
                who=plan.name,
                role=plan.kind.role,
                pid=self.process.pid,
                boot_timeout_s=plan.times.boot_timeout_s,
                fds=[self.page.fd, *plan.attachments],
                on_progress=progress,
                on_other=self.handle_message,
            )
        except PeerRefused as error:
            raise BootRefused(error.who, error.reason, error.parameter) from error
        except HandshakeError as error:
            # A death says more than silence.
            with trio.move_on_after(DEATH_AFTER_SILENCE_S):
                raise self._death(await self.process.wait_exited()) from error
            raise

    def _report_ended(self, phases: Sequence[EndedPhase]) -> None:
        for ended in phases:
            self.plan.on_event(ChildPhaseEnded(self.plan.name, ended.phase, ended.seconds))

    def _death(self, how: ProcessExit) -> ProcessDied | ProcessHung:
        hung = self.hung
        if hung is None:
            return ProcessDied(how)
        return ProcessHung(how.process, hung.reason, hung.is_own_fault)

    # ---- what happens to it

    def handle_message(self, message: object, fds: Sequence[int]) -> None:
        """Apply one control message; descriptors come with workers alone."""
        if isinstance(message, WorkersChanged):
            self.workers.handle_changed(message.pids, fds)
            if self.hung is not None and self.hung.pid not in (self.process.pid, *message.pids):
                self.hung = None  # another has its place
            return
        close_fds(fds)
        match message:
            case TreeReply():
                self.control.trees.handle_reply(message)
            case Failing(cause=cause, is_own_fault=is_own_fault):
                self.handle_failing(cause, is_own_fault=is_own_fault)
            case _:
                self.plan.report(Said(message))

    def _handle_hang(self, hang: Hang) -> None:
        """Kill who stands still. A worker that was stopped alone: its engine gets another. One that
        hangs by its own fault takes the engine along: what it computed must run alone from now
        on."""
        pidfd = self.workers.pidfds().get(hang.pid) if hang.number else None
        cause = f"worker {hang.number - 1} {hang.reason}" if hang.number else hang.reason
        self.hung = attrs.evolve(hang, reason=cause)
        self.plan.on_event(ChildHung(self.plan.name, self.epoch, cause))
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):  # its engine has reaped it meanwhile
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if not hang.is_own_fault:
                self.plan.report(WorkerHung(cause))
                return
        self.handle_failing(cause, is_own_fault=hang.is_own_fault)
        self.process.kill_group()
        self.patience.cancel("it was killed")

    def handle_failing(self, cause: str, *, is_own_fault: bool) -> None:
        """The child is going, or gone: whom to suspect is reported before its requests move."""
        if self.is_failing:
            return
        self.is_failing = True
        is_itself = self.process.exit is not None  # else it says that a worker ended it
        if (hung := self.hung) is not None:  # what it says of a worker is that this was killed
            cause, is_own_fault, is_itself = hung.reason, hung.is_own_fault, not hung.number
        if is_own_fault:
            self.plan.report(Suspected(self.page.read_table(), is_itself))
        self.plan.report(BecameFailing(cause))
