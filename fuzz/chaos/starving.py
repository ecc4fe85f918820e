"""Want of memory: a process that may have less than it has, as anybody may order.

Its next mapping, larger heap or thread fails, whatever it has given back. Proven by what /proc says
of its limits; what it has started meanwhile has the same, and loses it with it.
"""

import contextlib
import resource
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

import trio

from ..observers import PROC, NotInTime, start_ticks, state_of, wait_until
from .faults import LOOK_S, Void, is_dead

# {resource: how /proc calls its limit, and what is used of it}. The second also bounds heaps that
# grow within what their thread has reserved.
_NAMES = {
    resource.RLIMIT_AS: ("Max address space", "VmSize:"),
    resource.RLIMIT_DATA: ("Max data size", "VmData:"),
}
Sizes = dict[int, int]


def sizes_of(pid: int) -> Sizes:
    """What it has, in bytes. Raises `OSError` when it is gone, `Void` when it is a zombie."""
    found = {}
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        for number, (_, used) in _NAMES.items():
            if line.startswith(used):
                found[number] = int(line.split()[1]) * 1024
    if set(found) != set(_NAMES):
        raise Void(f"pid {pid} has no memory: it is dead")
    return found


def limits_of(pid: int) -> Sizes:
    """The most that it may have; -1 where there is no limit. Raises `OSError` when it is gone."""
    lines = (PROC / str(pid) / "limits").read_text().splitlines()
    found = {}
    for number, (name, _) in _NAMES.items():
        soft = next(line for line in lines if line.startswith(name)).removeprefix(name).split()[0]
        found[number] = resource.RLIM_INFINITY if soft == "unlimited" else int(soft)
    return found


async def starve(
    seconds: float,
    run: Callable[[], Iterable[int]],
    pid: int,
    *others: int,
    begun: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
) -> tuple[str, bool]:
    """Limit them to half of what they have, for so long or until the first one ends; the proof, and
    whether it has ended.

    `run` gives the processes that may have inherited it; `begun` is awaited when all are limited.
    Raises `Void`, and what `begun` raises. Cancellation: no limit is left.
    """
    ticks = start_ticks(pid)
    if is_dead(pid, ticks):
        raise Void("it was dead before")
    try:
        with contextlib.ExitStack() as limits, contextlib.suppress(NotInTime):
            given = [limits.enter_context(_limited(each, run)) for each in (pid, *others)]
            await begun()
            await wait_until(lambda: is_dead(pid, ticks), "it ends", seconds=seconds, look_s=LOOK_S)
    except OSError as gone:
        raise Void(f"pid {pid} is gone: {gone}") from None
    ended = is_dead(pid, ticks)
    what = f"then it was {state_of(pid)}" if ended else f"for {seconds:g} s"
    sizes = " and ".join(f"{each[resource.RLIMIT_AS] / 2**20:.0f} MiB" for each in given)
    return f"pid {pid} might have {sizes}, {what}", ended


@contextlib.contextmanager
def _limited(pid: int, run: Callable[[], Iterable[int]]) -> Iterator[Sizes]:
    """The limits. Raises `Void`, and `OSError` when it is gone."""
    given = {number: size // 2 for number, size in sizes_of(pid).items()}
    before = {number: resource.prlimit(pid, number) for number in given}
    try:
        for number, size in given.items():
            resource.prlimit(pid, number, (size, before[number][1]))
        if limits_of(pid) != given:
            raise Void(f"the limits of pid {pid} are {limits_of(pid)}, not {given}")
        yield given
    finally:
        for each in run():
            with contextlib.suppress(OSError):
                _restore(each, given, before)


def _restore(pid: int, given: Sizes, before: Mapping[int, tuple[int, int]]) -> None:
    if limits_of(pid) == given:  # its own limits, or inherited
        for number, limits in before.items():
            resource.prlimit(pid, number, limits)
