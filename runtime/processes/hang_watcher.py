"""Hang watcher of one child: reads its progress page and /proc, and reports what stands still.

The shell over `HangWatch`. Nothing else in a run declares a process lost that is still there.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import NoReturn

import trio

from ...nurseries.processes.death_watch import PF_EXITING
from ...nurseries.processes.hang_watch import Hang, HangWatch, ProcessLook, ProcessState
from ...nurseries.processes.progress_page import ProgressPage
from ...nurseries.processes.usage import read_proc
from ...nurseries.tasks.background import always_waits_for

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


async def run_hang_watcher(
    page: ProgressPage,
    *,
    patience_s: float,
    blocked_s: Callable[[], float | None] = lambda: None,
    pids: Callable[[], Mapping[int, int]] = dict,
    on_hang: Callable[[Hang], None],
) -> NoReturn:
    """Watch the processes that have a slot on the page; never returns unless cancelled.

    `blocked_s` and `pids` (see `HangWatch`) are asked for at each look. `on_hang` has to kill, and
    must not raise. Holds nothing.
    """
    always_waits_for("a process that stands still")
    watch = HangWatch(page.slots, patience_s)
    while True:
        watch.blocked_s = blocked_s()
        await trio.sleep(watch.period_s)
        still = watch.handle_page(page.read(), trio.current_time(), pids())
        looks = {
            place: look_at_process(pid, every_thread=watch.owes(place))
            for place, pid in still.items()
        }
        for hang in watch.handle_looks(looks):
            on_hang(hang)


def look_at_process(pid: int, *, every_thread: bool = True) -> ProcessLook:
    """What its threads do now. Never waits; one whose first thread has ended, or is about to, is
    GONE, whatever keeps the others.

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
