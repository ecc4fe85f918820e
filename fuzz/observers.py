"""Observers of processes and connections: `/proc`, read from outside.

States, descriptors, memory, sockets, CPU time of a process tree, and waiting for what only the
kernel or a server knows. Nothing here asks the program under test, so measuring costs it nothing.
A process that ends while it is looked at reads as gone.
"""

import contextlib
import inspect
import os
import pathlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import attrs
import trio

from ..nurseries.processes.orphans import child_pids
from ..nurseries.processes.spares import FORK_SERVER, SPARE
from ..nurseries.processes.title import PREFIX

PROC = pathlib.Path("/proc")
SHARED_MEMORY = "/dev/shm/"
_MODULE = re.compile(r"\w+(\.\w+)+")
# States of /proc/net/tcp by their hexadecimal names.
ESTABLISHED, FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSE_WAIT = "01", "04", "05", "06", "08"
GONE = "gone"


def state_of(pid: int) -> str:
    """The state letter of a process (R, S, D, T, Z…), `GONE` when there is none."""
    fields = _stat(pid)
    return fields[0] if fields else GONE


def start_ticks(pid: int) -> int:
    """When it started, in clock ticks since boot: with the pid, one process for ever. 0: gone."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the name; [] for none."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return stat.rpartition(")")[2].split()


def session_of(pid: int) -> int:
    """The session that it is in; 0 when it is gone."""
    fields = _stat(pid)
    return int(fields[3]) if fields else 0


def name_of(pid: int) -> str:
    """Title of a process, else its name, for Python its module; "" when it is gone."""
    try:
        name = (PROC / str(pid) / "comm").read_text().strip()
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    if words[0].startswith(PREFIX):
        return words[0]
    modules = words[words.index("-m") + 1 :] if "-m" in words else []
    while len(modules) > 1 and _MODULE.fullmatch(modules[1]):  # one that runs another
        modules.pop(0)
    return modules[0] if modules else name


def all_pids() -> Iterator[int]:
    """Every process of the machine that we can see."""
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            yield int(folder.name)


def children_of(parent: int) -> list[int]:
    """The children of a process, dead ones that it has not reaped included."""
    return [pid for pid in all_pids() if (fields := _stat(pid)) and int(fields[1]) == parent]


def marked(mark: str) -> frozenset[int]:
    """The processes whose environment holds this text; a dead one has no environment."""
    wanted = mark.encode()
    found = set()
    for pid in all_pids():
        with contextlib.suppress(OSError):
            if wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    return frozenset(found)


def descriptors(pid: int) -> dict[int, str]:
    """{descriptor: what it points to} of a process. Raises `OSError` when it is gone."""
    folder, found = PROC / str(pid) / "fd", {}
    for name in os.listdir(folder):
        # The descriptor may be closed by now; if the process is our own, that of the listing is.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[int(name)] = os.readlink(folder / name)
    return found


def open_files(pid: int) -> list[str]:
    """Targets of its descriptors; [] when it is gone."""
    with contextlib.suppress(OSError):
        return list(descriptors(pid).values())
    return []


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def shared_memory_of(pids: Iterable[int]) -> tuple[str, ...]:
    """The files below /dev/shm that these processes have mapped or open."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in (PROC / str(pid) / "maps").read_text().splitlines():
                _, slash, name = line.partition(SHARED_MEMORY)
                if slash:
                    found.add(SHARED_MEMORY + name)
        found |= {path for path in open_files(pid) if path.startswith(SHARED_MEMORY)}
    return tuple(sorted(found))


def abstract_sockets(part: str) -> list[str]:
    """The names of the abstract Unix sockets that hold this text."""
    lines = (PROC / "net" / "unix").read_text().splitlines()
    names = [line.rpartition(" ")[2] for line in lines]
    return [name for name in names if name.startswith("@") and part in name]


@attrs.frozen
class TcpSocket:
    """End of a connection over IPv4 as the kernel sees it; `unsent` bytes wait in it."""

    local_port: int
    remote_port: int
    state: str
    unsent: int
    unread: int


def tcp_sockets() -> Iterator[TcpSocket]:
    """Every IPv4 TCP socket of this network namespace."""
    for line in (PROC / "net" / "tcp").read_text().splitlines()[1:]:
        _, local, remote, state, queues = line.split()[:5]
        unsent, _, unread = queues.partition(":")
        yield TcpSocket(_port(local), _port(remote), state, int(unsent, 16), int(unread, 16))


def tcp_socket(local_port: int, remote_port: int) -> TcpSocket | None:
    """The end at `local_port` of the connection between these two ports."""
    for each in tcp_sockets():
        if (each.local_port, each.remote_port) == (local_port, remote_port):
            return each
    return None


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@attrs.frozen
class Cost:
    """Cost of a process so far. `cpu_s` is user and system time since its start."""

    name: str
    pid: int
    cpu_s: float
    resident_mib: float


def costs_of_tree(root_pid: int) -> dict[str, Cost]:
    """The processes below `root_pid`, itself included, by name ("engine", "worker", "worker 2"…).

    Empty when there is no such process, or it is another user's.
    """
    found: dict[str, Cost] = {}
    pending = [root_pid]
    while pending:
        pid = pending.pop(0)
        cost = _cost(pid, is_root=pid == root_pid)
        if cost is not None:
            found[_free_name(cost.name, found)] = cost
            pending += child_pids(pid)
    return found


def cpu_spent(before: dict[str, Cost], after: dict[str, Cost]) -> dict[str, float]:
    """Seconds of CPU by process name between two looks; of those that were there both times."""
    return {
        name: cost.cpu_s - before[name].cpu_s
        for name, cost in after.items()
        if name in before and before[name].pid == cost.pid
    }


def _free_name(name: str, taken: dict[str, Cost]) -> str:
    """The second of a kind is "worker 2"; children are listed in the order of their start."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name} {number}"
    return free


def _cost(pid: int, *, is_root: bool) -> Cost | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return None
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    resident_mib = int(fields[21]) * _PAGE_BYTES / 2**20
    return Cost(_name(command, is_root=is_root), pid, cpu_s, resident_mib)


def _name(command: list[str], *, is_root: bool) -> str:
    if is_root:
        return "root"
    if command[0].startswith(PREFIX):
        title = command[0].removeprefix(PREFIX)
        if title == FORK_SERVER.strip():
            return title
        name, _, waiting = title.partition(",")
        return f"{SPARE}{name}" if waiting else name.partition(" ")[0]
    for word in command:
        if word.startswith("triolet.") and not word.endswith("boot"):
            if ".worker." in word:
                return "worker"  # whichever executor's
            name = word.removeprefix("triolet.").removesuffix("_process")
            name = name.removesuffix(".main").removesuffix(".process")
            return name.rpartition(".")[2]
    return "other"


# Between two looks at a condition.
LOOK_S = 0.02
# The time is waited for in so many parts: a machine that stands still uses up one of them.
PARTS = 2

Condition = Callable[[], bool | Awaitable[bool]]


@attrs.frozen
class NotInTime(Exception):
    """Something that must come to pass did not: `what`, within `seconds`."""

    what: str
    seconds: float

    def __str__(self) -> str:
        return f"within {self.seconds:g} s it did not come to pass: {self.what}"


async def wait_until(
    condition: Condition, what: str, *, seconds: float, look_s: float = LOOK_S
) -> float:
    """Return the seconds that it took until the condition held. Raises `NotInTime`."""
    began_s = trio.current_time()
    for _ in range(PARTS):
        with trio.move_on_after(seconds / PARTS):
            while True:
                held = condition()
                if inspect.isawaitable(held):
                    held = await held
                if held:
                    return trio.current_time() - began_s
                await trio.sleep(look_s)
    raise NotInTime(what, seconds)
