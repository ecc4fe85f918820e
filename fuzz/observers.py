"""What the kernel says about processes and connections: `/proc`, read from outside.

Nothing here asks the program under test. A process that ends while it is looked at reads as gone.
Must not know what the processes are for.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterable, Iterator

import attrs

PROC = pathlib.Path("/proc")
SHARED_MEMORY = "/dev/shm/"
# Of /proc/net/tcp: states by their hexadecimal names.
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
        # It may be closed by now; if the process is our own, that of the listing is.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[int(name)] = os.readlink(folder / name)
    return found


def open_files(pid: int) -> list[str]:
    """What each of its descriptors points to; [] when it is gone."""
    with contextlib.suppress(OSError):
        return list(descriptors(pid).values())
    return []


def resident_bytes(pid: int) -> int:
    """Its resident memory; 0 when it is gone."""
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
    """One end of a connection over IPv4 as the kernel sees it; `unsent` bytes wait in it."""

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
