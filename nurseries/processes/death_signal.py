"""Arms the kernel's own death notice: SIGKILL to this process when its parent is gone.

It needs no help from us, so it works while C code holds the interpreter lock, when no Python of
ours could notice anything. Imports next to nothing, since it must come before everything else.
"""

import ctypes
import os
import signal
import socket
import struct

# From the kernel's prctl.h.
_PR_SET_PDEATHSIG = 1
# struct ucred: pid, uid, gid.
_UCRED = struct.Struct("3i")

# The parent died before the notice was armed, or was gone when the death monitor looked. Nobody is
# left to read it; it is for whoever traces the process.
EXIT_ORPHANED = 71


def arm_death_signal(control_fd: int) -> int:
    """Have the kernel kill us when our parent dies, and return the parent's pid.

    Exits at once if the parent is dead already. `control_fd` is our end of the socketpair which the
    parent made: its credentials name the maker, so no pid on the command line can be stale. Raises
    `OSError` where the kernel refuses. Harmless when repeated.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) is refused")
    parent_pid = maker_of(control_fd)
    # In this order: a parent that dies before this line is seen here, a later one by the kernel.
    if os.getppid() != parent_pid:
        os._exit(EXIT_ORPHANED)
    return parent_pid


def maker_of(socketpair_fd: int) -> int:
    """The pid of the process that made a Unix socketpair, as the kernel wrote it down."""
    with socket.socket(fileno=os.dup(socketpair_fd)) as end:
        data = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(data)[0])
