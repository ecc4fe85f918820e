"""Want of memory: a process that gets no more address space than it has, as anybody may order.

Its next mapping, larger heap or thread fails, as under a limit of the host. Proven by what
/proc says of its limits; what it has started meanwhile has the same, and loses it with it.
"""

import contextlib
import os
import resource
from collections.abc import Callable, Iterable, Iterator

from ..observers import PROC, NotInTime, start_ticks, state_of, wait_until
from .faults import LOOK_S, Void, is_dead

_LIMIT = "Max address space"


def address_space(pid: int) -> int:
    """What it has mapped. Raises `OSError` when it is gone."""
    return int((PROC / str(pid) / "statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def limit_of(pid: int) -> int:
    """The most that it may map; -1 where there is no limit. Raises `OSError` when it is gone."""
    for line in (PROC / str(pid) / "limits").read_text().splitlines():
        if line.startswith(_LIMIT):
            soft = line.removeprefix(_LIMIT).split()[0]
            return resource.RLIM_INFINITY if soft == "unlimited" else int(soft)
    raise ProcessLookupError(f"process {pid} is dead: it has no limits")


async def starve(pid: int, seconds: float, run: Callable[[], Iterable[int]]) -> tuple[str, bool]:
    """Limit it to what it has, for so long or until it ends; the proof, and whether it has ended.

    `run` gives the processes that may have inherited it. Raises `Void`.
    Cancellation: no limit is left.
    """
    ticks = start_ticks(pid)
    if is_dead(pid, ticks):
        raise Void("it was dead before")
    try:
        with _limited(pid, run) as given, contextlib.suppress(NotInTime):
            await wait_until(lambda: is_dead(pid, ticks), "it ends", seconds=seconds, look_s=LOOK_S)
    except OSError as gone:
        raise Void(f"pid {pid} is gone: {gone}") from None
    ended = is_dead(pid, ticks)
    what = f"then it was {state_of(pid)}" if ended else f"for {seconds:g} s"
    return f"pid {pid} had no more than {given / 2**20:.0f} MiB, {what}", ended


@contextlib.contextmanager
def _limited(pid: int, run: Callable[[], Iterable[int]]) -> Iterator[int]:
    """The limit. Raises `Void`, and `OSError` when it is gone."""
    before, given = resource.prlimit(pid, resource.RLIMIT_AS), address_space(pid)
    try:
        resource.prlimit(pid, resource.RLIMIT_AS, (given, before[1]))
        if limit_of(pid) != given:
            raise Void(f"the limit of pid {pid} is {limit_of(pid)}, not {given}")
        yield given
    finally:
        for each in run():
            with contextlib.suppress(OSError):
                if limit_of(each) == given:
                    resource.prlimit(each, resource.RLIMIT_AS, before)
