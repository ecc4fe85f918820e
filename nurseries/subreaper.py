"""Makes a process the new parent of orphans below it, and reads the exits of those it adopts.

Without it a grandchild whose parent died becomes a child of init, and in a container where the root
is pid 1, or init does not reap, a zombie for ever. A subreaper adopts it instead, and then owes it
a `waitid`. Must not know what the grandchildren were.
"""

import ctypes
import os

# From the kernel's prctl.h.
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """From now on orphans below this process are its children. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_adopted(pidfd: int) -> bool:
    """Read the exit of a dead process if it is ours by now; False if it is somebody else's.

    Never waits: the caller knows from the pidfd that the process is dead.
    """
    try:
        return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return False
