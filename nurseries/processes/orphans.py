"""Orphaned processes: a subreaper adopts those below it and reads their exits.

Without it a grandchild whose parent died becomes a child of init, and in a container where the root
is pid 1, or init does not reap, a zombie for ever. A subreaper adopts it instead, and then owes it
a `waitid`: for every one, since a parent may die before it has reported its children.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Container
from pathlib import Path

import trio

from ..tasks.background import waiting_for

# A constant of the kernel's prctl.h.
_PR_SET_CHILD_SUBREAPER = 36
# A dead child of our own stands before the orphans until its owner has read its exit, which is a
# matter of some passes of the loop.
_OWNER_S = 0.05


def become_subreaper() -> None:
    """Adopt all orphans below this process from now on. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


async def run_reaper(
    own_pids: Callable[[], Container[int]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `reaper`: read the exit of every adopted process as it dies.

    `own_pids` are the children that this process has spawned and reaps elsewhere. Takes SIGCHLD, so
    it is for commands alone. Never returns unless cancelled.
    """
    with trio.open_signal_receiver(signal.SIGCHLD) as signals:
        task_status.started()
        while True:
            with waiting_for("orphans to die"):
                await anext(signals)
            while not reap_orphans(own_pids()):
                with waiting_for("a child's owner to read its exit"):
                    await trio.sleep(_OWNER_S)


def reap_orphans(own_pids: Container[int]) -> bool:
    """Read the exits of dead children that are not our own. Never waits.

    False if one of our own is dead and not reaped: there may be more behind it.
    """
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True  # no children at all
        if dead is None:
            return True
        if dead.si_pid in own_pids:
            return False
        os.waitpid(dead.si_pid, os.WNOHANG)


def child_pids(pid: int) -> list[int]:
    """The living children of `pid`, by number; [] when it is gone, or another user's."""
    children: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        pass  # it has ended meanwhile
    return sorted(children)
