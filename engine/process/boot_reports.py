"""Boot reports of an engine to the root: how far its workers are, and which processes they are.

All ranks go through the phases side by side: the engine is as far as the one furthest behind.
Progress is a slot for each phase, the latest wins: a loader that reports for each tensor neither
floods the control socket nor hides that a phase has ended. Workers are reported at once.
"""

import os
from collections.abc import Sequence

import attrs
import trio

from ...nurseries.processes.process import Process
from ...nurseries.tasks.background import BackgroundTask, waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...transports.control.channel import ControlChannel
from ...transports.control.handshake import ChildHandshake
from ...transports.control.passed_fds import close_fds
from ..control_messages import BootPhase, WorkersChanged

PHASES = tuple(BootPhase)


@attrs.define(eq=False)
class BootReports:
    """`run_progress` must have ended before READY is said: progress belongs before it."""

    control: ControlChannel
    handshake: ChildHandshake
    ranks: int
    # The phase of each rank, and how far it is. Never goes back.
    _places: list[tuple[int, float]] = attrs.field(init=False)
    # {phase: what was reported of it last and is not sent yet}, in the order of the phases.
    _progress: dict[BootPhase, float] = attrs.field(factory=dict, init=False)
    _reported: Doorbell = attrs.field(factory=Doorbell, init=False)

    def __attrs_post_init__(self) -> None:
        self._places = [(0, 0.0)] * self.ranks

    def progress(self, rank: int, phase: str, fraction: float) -> None:
        """Rank `rank` is so far. Never waits; the report replaces one of its phase not sent yet.

        Each counts, also of a rank that is ahead: it re-arms the deadline that our own boot has.
        """
        self._places[rank] = max(self._places[rank], (PHASES.index(BootPhase(phase)), fraction))
        place, least = min(self._places)
        self._progress[PHASES[place]] = least
        self._reported.ring()

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
            await self._send_rest()

    async def end_progress(self, task: BackgroundTask) -> None:
        """End the task of `run_progress`, then send what still waits: READY may follow at once.

        Raises what `ControlChannel.send` raises. Cancellation: what was not sent still waits.
        """
        task.cancel("the workers are ready")
        await task.wait_ended()
        await self._send_rest()

    async def _send_rest(self) -> None:
        # A report leaves its slot when it was sent: cancelled in between, it is sent twice, and
        # then says nothing new.
        while self._progress:
            phase, fraction = next(iter(self._progress.items()))
            await self.handshake.progress(phase, fraction)
            if self._progress[phase] == fraction:  # no news of it meanwhile
                del self._progress[phase]

    async def workers(self, processes: Sequence[Process]) -> None:
        """Report who the workers are; the root will outlive us and wait for these.

        One that has died already is left out: it has been reaped, and its pidfd may be closed.
        """
        living = [process for process in processes if process.exit is None]
        # Duplicates, as a worker may die and its pidfd be closed while the message waits.
        pidfds = [os.dup(process.pidfd) for process in living]
        try:
            await self.control.send(WorkersChanged([process.pid for process in living]), pidfds)
        finally:
            close_fds(pidfds)
