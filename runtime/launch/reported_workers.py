"""Workers of one engine as the root knows them: pids and pidfds, which the engine reports.

An engine's workers are no children of the root, which has to know that they are gone all the same:
no successor may have their devices before.
"""

import contextlib
import os
from collections.abc import Callable, Sequence

import attrs
import trio

from ...nurseries.processes.death_watch import wait_process_gone
from ...nurseries.processes.kernel import Kernel
from ...nurseries.processes.process_exit import ProcessStuck
from ...nurseries.tasks.background import waiting_for
from ...transports.control.passed_fds import close_fds


@attrs.frozen
class Remains:
    """Process of a child that outlives SIGKILL; whoever gets it must close it."""

    pidfd: int

    async def wait_gone(self, kernel: Kernel) -> None:
        """Wait for the end of the process, and reap it if it is ours."""
        with waiting_for("a process that hangs in the kernel to be gone"):
            await wait_process_gone(self.pidfd)
        kernel.reap(self.pidfd)

    def close(self) -> None:
        """Look after the process no longer."""
        close_fds([self.pidfd])


@attrs.define(eq=False)
class ReportedWorkers:
    """The newest report of one engine; its pidfds are ours to close."""

    pids: Sequence[int] = attrs.field(default=(), init=False)
    _fds: Sequence[int] = attrs.field(default=(), init=False)

    def handle_changed(self, pids: Sequence[int], pidfds: Sequence[int]) -> None:
        """The engine has other workers, by rank; of each there should be a pidfd."""
        close_fds(self._fds)
        self.pids, self._fds = pids, pidfds

    def pidfds(self) -> dict[int, int]:
        """{pid: pidfd}, by rank."""
        return dict(zip(self.pids, self._fds, strict=False))

    async def wait_gone(
        self, engine: str, within_s: float, report: Callable[["Remains"], None]
    ) -> None:
        """Wait until every worker process is gone, and close what is held of them.

        Raises `ProcessStuck` of one that is still there after `within_s` seconds: it hangs in a
        device driver. `report` gets those. Shielded from cancellation until then.
        """
        try:
            with trio.move_on_after(within_s, shield=True):
                for pid, pidfd in self.pidfds().items():
                    stuck = pid
                    with waiting_for("a worker of the dead engine to be gone"):
                        await wait_process_gone(pidfd)
                return
            for pidfd in self._fds:
                report_remains(pidfd, report)
            raise ProcessStuck(f"a worker of {engine}", stuck, within_s)
        finally:
            self.handle_changed(self.pids, ())


def report_remains(pidfd: int, report: Callable[[Remains], None]) -> None:
    """Report a duplicate; without a descriptor, the end of that process is not seen."""
    with contextlib.suppress(OSError):
        report(Remains(os.dup(pidfd)))
