"""CPU and memory of processes, as the kernel counts them; and whether one is stopped.

A process's CPU clock (clock_getcpuclockid(3)) has nanoseconds, where `/proc/PID/stat` has ticks of
10 ms; it costs a microsecond, of any process of the same user.
"""

import os
import resource
import time
from collections.abc import Iterable
from typing import Any

import attrs

# A constant of <linux/posix-timers.h>: a process's clock of scheduled time.
_CPUCLOCK_SCHED = 2
_PAGE_BYTES = resource.getpagesize()
# Small changes are of no interest, and each would be said.
_CPU_STEP = 0.01
# When a process was looked at, its CPU seconds then, and the CPU that was said.
Look = tuple[float, float, float]
_MEMORY_STEP_BYTES = 64 * 2**10
# A row of a table of processes; see `watched`.
Row = dict[str, Any]
# Fields of /proc/PID/stat behind the name, which may have blanks and brackets.
_STATE, _RSS = 0, 21


def cpu_clock_s(pid: int) -> float:
    """CPU seconds that a process has used, all its threads together. Raises `OSError`."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def read_proc(path: str) -> bytes:
    """A short file of /proc, in the fewest calls: half of what `Path` takes. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(read_proc("/proc/self/statm").split()[1]) * _PAGE_BYTES


@attrs.frozen
class ProcessUsage:
    """`cpu`: cores in use since the look before. `memory`: resident bytes."""

    cpu: float
    memory: int
    is_stopped: bool


NO_USAGE = ProcessUsage(0.0, 0, is_stopped=False)


@attrs.define(eq=False)
class UsageMeter:
    """Usage of processes, from one look at each to the next."""

    # By pid.
    _before: dict[int, Look] = attrs.field(factory=dict, init=False)

    def _look(self, pid: int, now_s: float, before: dict[int, Look]) -> ProcessUsage:
        """Measure a process since its last look; zeros at the first, or when it is gone."""
        try:
            used_s = cpu_clock_s(pid)
            fields = read_proc(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
        except OSError:
            return NO_USAGE
        then_s, before_s, said = before.get(pid, (now_s, used_s, 0.0))
        cpu = round((used_s - before_s) / (now_s - then_s), 2) if now_s > then_s else 0.0
        cpu = cpu if abs(cpu - said) > _CPU_STEP else said
        self._before[pid] = now_s, used_s, cpu
        memory = int(fields[_RSS]) * _PAGE_BYTES // _MEMORY_STEP_BYTES * _MEMORY_STEP_BYTES
        return ProcessUsage(cpu, memory, fields[_STATE] in (b"T", b"t"))

    def add_usage(self, rows: Iterable[Row], now_s: float) -> list[Row]:
        """Rows of processes with `cpu` and `memory`, and `state` where they are stopped.

        Those of no process (pid 0), or of one that is gone, use nothing.
        """
        found: list[Row] = []
        before, self._before = self._before, {}
        for row in rows:
            usage = self._look(row["pid"], now_s, before) if row["pid"] else NO_USAGE
            stopped = {"state": "stopped"} if usage.is_stopped else {}
            found.append(row | {"cpu": usage.cpu, "memory": usage.memory} | stopped)
        return found
