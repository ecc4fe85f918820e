"""Calls to the operating system about child processes, as one value that can be replaced.

The owners of processes (`process`, `kept_process`) reach the kernel through `ProcessSpec.kernel`,
so that a simulation can run them as they are over processes of its own.
"""

import os
import signal
from collections.abc import Mapping, Sequence

from .death_watch import count_oom_kills, is_exiting, is_stopped
from .orphans import child_pids
from .spawned import Spawned, spawn


class Kernel:
    """The real one. A pidfd is any descriptor that is readable from the death on."""

    # Whether fork servers are of use.
    has_forks = True

    def spawn(
        self,
        module: str,
        *,
        ahead: Sequence[str],
        environment: Mapping[str, str],
        forks: bool = False,
    ) -> Spawned:
        """See `spawned.spawn`."""
        return spawn(module, ahead=ahead, environment=environment, forks=forks)

    def send_signal(self, pidfd: int, number: signal.Signals) -> None:
        """Send a signal. Raises `ProcessLookupError` if the process was reaped."""
        signal.pidfd_send_signal(pidfd, number)

    def kill_group(self, pid: int) -> None:
        """Send SIGKILL to a process group. Raises `ProcessLookupError` if it is gone."""
        os.killpg(pid, signal.SIGKILL)

    def reap(self, pidfd: int) -> tuple[int | None, int | None]:
        """(exit code, signal) of a dead child, one of both; neither if it was reaped elsewhere, or
        is kept by a debugger. Never waits.
        """
        try:
            result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return None, None
        if result is None:
            return None, None
        if result.si_code == os.CLD_EXITED:
            return result.si_status, None
        return None, result.si_status

    def count_oom_kills(self) -> int:
        """See `death_watch.count_oom_kills`."""
        return count_oom_kills()

    def is_exiting(self, pid: int) -> bool:
        """See `death_watch.is_exiting`."""
        return is_exiting(pid)

    def is_usable(self, pid: int) -> bool:
        """Whether neither the process nor a child of it is dying, dead or stopped, as far as can be
        seen: for want of a descriptor none is.
        """
        try:
            return not any(is_exiting(each) or is_stopped(each) for each in (pid, *child_pids(pid)))
        except OSError:
            return True


KERNEL = Kernel()
