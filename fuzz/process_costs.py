"""CPU time and memory of a process and all its descendants, from /proc.

Reads what the kernel counts anyway, so that measuring costs the measured nothing. Must not know
what the processes do.
"""

import os
from pathlib import Path

import attrs

from ..nurseries.processes.orphans import child_pids

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@attrs.frozen
class Cost:
    """One process at one moment. `cpu_s` is user and system time since its start."""

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
    for word in command:
        if word.startswith("triolet.") and not word.endswith("boot"):
            if ".worker." in word:
                return "worker"  # whichever executor's
            name = word.removeprefix("triolet.").removesuffix("_process").removesuffix(".process")
            return name.rpartition(".")[2]
    return "other"
