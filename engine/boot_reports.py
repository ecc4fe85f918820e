"""What an engine tells the root while it starts: how far it is, and who its workers are.

Progress is a slot of one, the latest wins: a loader that reports for each tensor neither floods
the control socket nor is told on out of order. Workers are told of at once. Must not know what the
phases are, nor what the workers do.
"""

import os
from collections.abc import Sequence

import attrs
import trio

from ..nurseries.process import Process
from ..nurseries.waiting import waiting_for
from ..transports.control_channel import ControlChannel
from ..transports.control_handshake import ChildHandshake
from ..transports.passed_fds import close_fds
from .messages import WorkersChanged


@attrs.define(eq=False)
class BootReports:
    """`run_progress` must have ended before READY is said: progress belongs before it."""

    control: ControlChannel
    handshake: ChildHandshake
    # What was reported last and is not sent yet.
    _progress: tuple[str, float] | None = attrs.field(default=None, init=False)
    _reported: trio.Event = attrs.field(factory=trio.Event, init=False)

    def progress(self, phase: str, fraction: float) -> None:
        """Have this told, in place of an earlier report that still waits; never waits itself."""
        self._progress = (phase, fraction)
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
            report, self._progress = self._progress, None
            assert report is not None
            await self.handshake.progress(*report)

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
