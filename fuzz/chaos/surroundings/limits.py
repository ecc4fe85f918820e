"""Limits of another process's resources: given by `prlimit`, proven by /proc, and lifted again."""

import contextlib
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping

from ...observers import PROC, descriptors
from ..faults import Void

# {resource: what /proc calls its limit}. The data size also bounds heaps that grow within what
# their thread has reserved.
LIMITS = {
    resource.RLIMIT_NOFILE: "Max open files",
    resource.RLIMIT_FSIZE: "Max file size",
    resource.RLIMIT_AS: "Max address space",
    resource.RLIMIT_DATA: "Max data size",
}
# {resource: what /proc calls the memory that counts against it}
_USED = {resource.RLIMIT_AS: "VmSize:", resource.RLIMIT_DATA: "VmData:"}
Limits = Mapping[int, int]


def limit_of(pid: int, which: int) -> int:
    """Most that it may have; -1 where there is no limit. Raises `OSError` when it is gone."""
    lines = (PROC / str(pid) / "limits").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(LIMITS[which]))
    soft = line.removeprefix(LIMITS[which]).split()[0]
    return resource.RLIM_INFINITY if soft == "unlimited" else int(soft)


@contextlib.contextmanager
def limited(pid: int, most: Limits, heirs: Callable[[], Iterable[int]] = tuple) -> Iterator[None]:
    """Allow it no more than `most` of each resource, and nor what it starts meanwhile.

    `heirs` gives the processes that may have inherited the limits. Raises `Void`.
    """
    try:
        before = {which: resource.prlimit(pid, which) for which in most}
        for which, limit in most.items():
            resource.prlimit(pid, which, (limit, before[which][1]))
        given = {which: limit_of(pid, which) for which in most}
    except OSError as gone:
        raise Void(f"pid {pid} is gone: {gone}") from None
    try:
        if given != most:
            raise Void(f"the limits of pid {pid} are {given}, not {dict(most)}")
        yield
    finally:
        for each in {pid, *heirs()}:
            with contextlib.suppress(OSError):
                _lift(each, most, before)


def _lift(pid: int, most: Limits, before: Mapping[int, tuple[int, int]]) -> None:
    if all(limit_of(pid, which) == limit for which, limit in most.items()):  # its own, or inherited
        for which, limits in before.items():
            resource.prlimit(pid, which, limits)


def half_of_memory(pid: int) -> Limits:
    """Half of what it has: its next mapping, larger heap or thread fails. Raises `Void`."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError as gone:
        raise Void(f"pid {pid} is gone: {gone}") from None
    found = {
        which: int(line.split()[1]) * 1024 // 2
        for line in lines
        for which, used in _USED.items()
        if line.startswith(used)
    }
    if found.keys() != _USED.keys():
        raise Void(f"pid {pid} has no memory: it is dead")
    return found


def open_descriptors(pid: int) -> Limits:
    """Its lowest free descriptor, so that not even a gap can be filled. Raises `Void`."""
    try:
        taken = descriptors(pid)
    except OSError as gone:
        raise Void(f"pid {pid} is gone: {gone}") from None
    free = next(number for number in range(len(taken) + 1) if number not in taken)
    return {resource.RLIMIT_NOFILE: free}
