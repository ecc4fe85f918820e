"""Checks that a block leaves nothing behind: no file descriptor, no child process, no thread.

For tests of any room: `with check_no_leaks(): …` around the whole life of what is tested. It reads
/proc, not the books of the code under test.
"""

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from triolet.fuzz.observers import descriptors

# Trio keeps idle worker threads for ten seconds; while they work they are called otherwise.
IDLE_TRIO_THREAD = "Trio thread "
# What trio starts while it is imported. Who is killed meanwhile leaves it to us who adopt orphans,
# and it ends by itself in some milliseconds.
STARTED_BY_IMPORTS = "ldconfig"


@attrs.frozen
class Holdings:
    """What this process holds. `fds` is {number: what it points to}, `children` {pid: command}."""

    fds: dict[int, str]
    children: dict[int, str]
    threads: dict[int, str]


def open_fds() -> set[str]:
    """The numbers of this process's descriptors."""
    return set(os.listdir("/proc/self/fd"))


def holdings() -> Holdings:
    """Look it up now. Zombies are children, too."""
    return Holdings(descriptors(os.getpid()), children_of(os.getpid()), _threads())


@contextmanager
def no_room_for_descriptors() -> Iterator[None]:
    """This process has as many open as it may have."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def check_no_leaks() -> Iterator[None]:
    """Fail if the block leaves more than it found. Says nothing if the block raises anyway."""
    before = holdings()
    yield
    _wait_for_what_imports_started()
    after = holdings()
    left = {
        "file descriptors": _new(before.fds, after.fds),
        "child processes": _new(before.children, after.children),
        "threads": _new(before.threads, after.threads),
    }
    assert not any(left.values()), f"left behind: { {k: v for k, v in left.items() if v} }"


def _wait_for_what_imports_started() -> None:
    for pid, command in children_of(os.getpid()).items():
        if command == STARTED_BY_IMPORTS:
            with suppress(ChildProcessError):  # its parent here has read its exit
                os.waitpid(pid, 0)


def children_of(parent_pid: int) -> dict[int, str]:
    """{pid: command} of all living and unreaped children of a process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
        name, _, rest = stat.rpartition(")")
        if int(rest.split()[1]) == parent_pid:
            found[int(folder.name)] = name.partition("(")[2]
    return found


def process_exists(pid: int) -> bool:
    """Whether `pid` is alive or unreaped."""
    return Path(f"/proc/{pid}").exists()


def _threads() -> dict[int, str]:
    return {
        thread.ident: thread.name
        for thread in threading.enumerate()
        if thread.ident is not None and not thread.name.startswith(IDLE_TRIO_THREAD)
    }


def _new(before: dict[int, str], after: dict[int, str]) -> dict[int, str]:
    return {key: value for key, value in after.items() if before.get(key) != value}
