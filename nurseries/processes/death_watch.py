"""Death monitors in both directions: of a child by its parent, of the parent by its child.

Only a readable pidfd proves a death. The parent's side waits for just that. The child's side has
two witnesses, because each has a blind spot: the death pipe ends also when the parent merely asks,
and stays open after its death if a copy of the parent's end leaked into some fork; the parent's
pidfd does not show an order to stop.
"""

import os
import select
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from ..tasks.background import waiting_for

# PF_EXITING of the kernel's sched.h, in the ninth field of /proc/<pid>/stat.
PF_EXITING = 0x4
_STATE_FIELD = 3
_FLAGS_FIELD = 9
_FIRST_FIELD = 3  # what follows the name

CGROUPS = Path("/sys/fs/cgroup")

PARENT_ASKED = "the parent asked this process to stop"
PARENT_GONE = "the parent is gone"


async def wait_process_gone(pidfd: int) -> None:
    """Return when the process behind `pidfd` has died; it may still have to be reaped.

    Any number of tasks may wait on one pidfd. Cancellation is harmless.
    """
    with waitable_copy(pidfd) as own_fd:
        poll = select.poll()
        poll.register(own_fd, select.POLLIN)
        while True:
            await trio.lowlevel.wait_readable(own_fd)
            if poll.poll(0):
                return  # a wait may end for nothing, and a death leads to kills


async def monitor_parent(
    death_fd: int,
    *,
    parent_pid: int,
    on_gone: Callable[[str], None],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `on_gone(reason)` once, with PARENT_ASKED or PARENT_GONE, and return.

    `death_fd` is our end of the death pipe, `parent_pid` the process that made it.

    *Resource handling*: opens and closes a pidfd of its own; `death_fd` stays the caller's.
    *Cancellation*: stops watching; `on_gone` is not called.
    """
    try:
        pidfd = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        task_status.started()
        on_gone(PARENT_GONE)
        return
    task_status.started()
    try:
        # A pid can be taken over by a stranger; it is our parent's as long as it is our parent.
        if os.getppid() == parent_pid:
            with waiting_for("the parent to ask or to die"):
                await _wait_any(
                    lambda: wait_process_gone(pidfd), lambda: _wait_end_of_file(death_fd)
                )
        gone = os.getppid() != parent_pid or is_exiting(parent_pid)
        on_gone(PARENT_GONE if gone else PARENT_ASKED)
    finally:
        os.close(pidfd)


def is_exiting(pid: int) -> bool:
    """Whether `pid` is dying, dead or unknown, seen before its pidfd says so.

    The kernel sets PF_EXITING first, takes long over the memory of a fat process, and leaves it
    set on the zombie. It may re-route work, but it proves nothing: only the pidfd does.
    """
    fields = _stat_fields(pid)
    return not fields or bool(int(fields[_FLAGS_FIELD - _FIRST_FIELD]) & PF_EXITING)


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped `pid`: it does nothing until it is let go on."""
    fields = _stat_fields(pid)
    return bool(fields) and fields[_STATE_FIELD - _FIRST_FIELD] in ("T", "t")


def count_oom_kills(cgroups: Path = CGROUPS) -> int:
    """How many processes of our cgroup the kernel has killed for want of memory so far.

    It counts before it kills, so a SIGKILL after which the count is the same came from elsewhere. 0
    where no version 2 of cgroups counts memory.
    """
    try:
        ours = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].partition("\n")[0]
        lines = (cgroups / ours / "memory.events").read_text().splitlines()
        return next((int(n) for name, n in map(str.split, lines) if name == "oom_kill"), 0)
    except (OSError, ValueError):
        return 0


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat after the name; [] if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The second field is the name in brackets and may hold blanks and brackets itself.
    return stat.rpartition(")")[2].split()


async def _wait_end_of_file(fd: int) -> None:
    os.set_blocking(fd, False)  # a wait may end for nothing
    while True:
        await trio.lowlevel.wait_readable(fd)
        with suppress(BlockingIOError):
            if not os.read(fd, 1):
                return  # a byte would be a stranger's; only the end means anything


async def _wait_any(*waits: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:

        async def wait_one(wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            nursery.cancel_scope.cancel("one of the witnesses has spoken")

        for wait in waits:
            nursery.start_soon(wait_one, wait)


@contextmanager
def waitable_copy(fd: int) -> Iterator[int]:
    """A duplicate that one task may wait for: trio allows one for each descriptor.

    The loop is notified of its end. It keeps descriptors in its epoll set after a wait, and the
    kernel takes one out by itself only when the file behind it is open nowhere any more: else what
    happens to that file is reported by a number that is in use for another by now.
    """
    own_fd = os.dup(fd)
    try:
        yield own_fd
    finally:
        trio.lowlevel.notify_closing(own_fd)
        os.close(own_fd)
