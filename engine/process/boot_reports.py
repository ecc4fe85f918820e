"""What an engine tells the root while it starts: how far it is, and who its workers are.

Progress is a slot for each phase, the latest wins: a loader that reports for each tensor neither
floods the control socket nor hides that a phase has ended. Workers are told of at once. Must not
know what the phases are, nor what the workers do.
"""

import os
from collections.abc import Sequence

import attrs
import trio

from ...nurseries.processes.process import Process
from ...nurseries.tasks.background import BackgroundTask
from ...nurseries.tasks.waiting import waiting_for
from ...transports.control.channel import ControlChannel
from ...transports.control.handshake import ChildHandshake
from ...transports.control.passed_fds import close_fds
from ..messages import WorkersChanged


@attrs.define(eq=False)
class BootReports:
    """`run_progress` must have ended before READY is said: progress belongs before it."""

    control: ControlChannel
    handshake: ChildHandshake
    # {phase: what was reported of it last and is not sent yet}, in the order of the phases.
    _progress: dict[str, float] = attrs.field(factory=dict, init=False)
    _reported: trio.Event = attrs.field(factory=trio.Event, init=False)

    def progress(self, phase: str, fraction: float) -> None:
        """Have this told, in place of what still waits of this phase; never waits itself."""
        self._progress[phase] = fraction
        self._reported.set()

    async def run_progress(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `progress`; never returns unless cancelled.

        Raises what `ControlChannel.send` raises. Cancellation: a report is sent whole or not.
        """
        task_status.started()
        while True:
            with waiting_for("progress of the workers"):
                await self._reported.wait()
            self._reported = trio.Event()
            await self._tell_rest()

    async def end_progress(self, task: BackgroundTask) -> None:
        """End the task of `run_progress`, then tell what still waits: READY may follow at once.

        Raises what `ControlChannel.send` raises. Cancellation: what was not told still waits.
        """
        task.cancel("the workers are ready")
        await task.wait_ended()
        await self._tell_rest()

    async def _tell_rest(self) -> None:
        # A report leaves its slot when it was sent: cancelled in between, it is told twice, and
        # then says nothing new.
        while self._progress:
            phase, fraction = next(iter(self._progress.items()))
            await self.handshake.progress(phase, fraction)
            if self._progress[phase] == fraction:  # no news of it meanwhile
                del self._progress[phase]

    async def workers(self, processes: Sequence[Process]) -> None:
        """Tell who the workers are; the root will outlive us and wait for these.

        One that has died already is left out: it has been reaped, and its pidfd may be closed.
        """
        living = [process for process in processes if process.exit is None]
        # Duplicates, as a worker may die and its pidfd be closed while the message waits.
        pidfds = [os.dup(process.pidfd) for process in living]
        try:
            await self.control.send(WorkersChanged([process.pid for process in living]), pidfds)
        finally:
            close_fds(pidfds)
