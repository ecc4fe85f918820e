"""Actor of a host in a Ray cluster: starts `triolet engine` as its child, and lives as long.

Ray's worker imports this module and nothing else of ours. Methods run in the main thread, to which
the child's death signal is bound. Nobody has to end an actor: one whose host has ended is over a
moment later, one whose host was never started as well.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

# For the placer to hear how the host ended.
LINGER_S = 1.0
# An actor that is made is told what to start at once.
IDLE_S = 5.0


class HostActor:
    """Actor with one host."""

    def __init__(self) -> None:
        self._host: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGCHLD, self._handle_child)
        signal.signal(signal.SIGALRM, _exit)
        signal.setitimer(signal.ITIMER_REAL, IDLE_S)

    def start(self, words: Sequence[str], ticket: str) -> int | None:
        """Start the host, unless that was done. Returns as `poll`."""
        if self._host is None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            command = [sys.executable, "-P", "-m", "triolet", *words]
            host = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            self._host = host
            assert host.stdin is not None
            host.stdin.write(ticket.encode() + b"\n")
            host.stdin.flush()
        return self.poll()

    def poll(self) -> int | None:
        """The exit code of the host; None while it runs."""
        return None if self._host is None else self._host.poll()

    def stop(self) -> int | None:
        """Have the host end in order, by the end of its stdin. Returns as `poll`."""
        if self._host is None:
            _exit()
        elif self._host.stdin is not None:
            self._host.stdin.close()
        return self.poll()

    def _handle_child(self, _number: int, _frame: FrameType | None) -> None:
        if self._host is not None and _has_ended(self._host):
            signal.setitimer(signal.ITIMER_REAL, LINGER_S)


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Without the lock of `poll`, which this may be called in the midst of."""
    if process.returncode is not None:
        return True
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        return os.waitid(os.P_PID, process.pid, look) is not None
    except ChildProcessError:
        return True


def _exit(_number: int = 0, _frame: FrameType | None = None) -> None:
    os._exit(0)
