"""Calls to the operating system about child processes, as one value that can be replaced.

The owners of processes (`process`, `kept_process`) reach the kernel through `ProcessSpec.kernel`,
so that a simulation can run them as they are over processes of its own.
"""

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from .death_watch import PF_EXITING, count_oom_kills, is_exiting, is_stopped
from .hang_watch import ProcessLook, ProcessState
from .orphans import child_pids
from .spawned import Spawned, spawn
from .usage import read_proc

# Letters of /proc/<pid>/stat. A process is what the first of these is that any thread is: one that
# is stopped is so with all its threads.
_LETTERS = (
    ("t", ProcessState.TRACED),
    ("T", ProcessState.STOPPED),
    ("R", ProcessState.RUNNABLE),
    ("D", ProcessState.UNINTERRUPTIBLE),
    ("SI", ProcessState.ASLEEP),
)
_FLAGS, _UTIME, _STIME = 6, 11, 12  # from the state on


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
        return count_oom_kills()

    def is_exiting(self, pid: int) -> bool:
        return is_exiting(pid)

    def is_usable(self, pid: int) -> bool:
        """Whether neither the process nor a child of it is dying, dead or stopped, as far as can be
        seen: for want of a descriptor none is.
        """
        try:
            return not any(is_exiting(each) or is_stopped(each) for each in (pid, *child_pids(pid)))
        except OSError:
            return True

    def look(self, pid: int, *, every_thread: bool) -> ProcessLook:
        return look_at_process(pid, every_thread=every_thread)


def look_at_process(pid: int, *, every_thread: bool = True) -> ProcessLook:
    """Read the state of a process's threads from /proc. Never waits; a process whose first thread
    has ended, or is about to, is GONE, whatever keeps the others.

    Whether it is stopped its first thread says as well: an idle server is looked at for ever, and
    all threads of its processes would cost it twice as much.
    """
    letters: set[str] = set()
    cpu_s: dict[int, float] = {}
    runs = 0
    for thread in _threads(pid) if every_thread else [pid]:
        folder = f"/proc/{pid}/task/{thread}"
        with contextlib.suppress(OSError, ValueError, IndexError):  # it may end meanwhile
            # The second field is the name in brackets and may hold blanks and brackets itself.
            fields = read_proc(f"{folder}/stat").rpartition(b")")[2].split()
            ticks = int(fields[_UTIME]) + int(fields[_STIME])
            if thread == pid and int(fields[_FLAGS]) & PF_EXITING:
                return ProcessLook(ProcessState.GONE)
            used_s = ticks / os.sysconf("SC_CLK_TCK")
            with contextlib.suppress(OSError):  # not every kernel keeps these
                ran_ns, _, slices = map(int, read_proc(f"{folder}/schedstat").split())
                runs += slices
                used_s = ran_ns / 1e9 or used_s
            letters.add(fields[0].decode())
            cpu_s[thread] = used_s
    for of_state, state in _LETTERS:
        if letters & set(of_state):
            return ProcessLook(state, cpu_s, runs or round(sum(cpu_s.values()) * 1e9))
    return ProcessLook(ProcessState.GONE)


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


KERNEL = Kernel()
