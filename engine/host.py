"""Cores and memory of the machine that this process may use, its processor, and PyTorch."""

import importlib.util
import os
import pathlib

CPU_QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")
CPUINFO = pathlib.Path("/proc/cpuinfo")


def cores(quota: pathlib.Path = CPU_QUOTA) -> int:
    """How many this process may use: those it may run on, or what a container's quota is worth.

    `quota` has the microseconds of all cores in a period, or "max", and those of the period.
    """
    usable = len(os.sched_getaffinity(0))
    try:
        allowed, period = quota.read_text().split()
        return max(1, min(usable, -(-int(allowed) // int(period))))
    except (OSError, ValueError, ZeroDivisionError):
        return usable  # no quota, or no such file


def threads_default() -> int:
    """Threads by default: a core less than there are, which frontend, engine and root share.

    Threads of one step wait for each other: with as many as cores, every moment of another process
    holds all of them up (measured on two cores beside one busy process: 8 ms a step with one
    thread, 55 to 185 ms with two).
    """
    return max(1, cores() - 1)


def first_processor(cpuinfo: pathlib.Path = CPUINFO) -> dict[str, str]:
    """The kernel's account of the first processor, by its own names; empty if there is none."""
    said: dict[str, str] = {}
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return said
    for line in lines:
        name, _, value = line.partition(":")
        said.setdefault(name.strip(), value.strip())
    return said


def memory_bytes() -> int:
    """Physical memory, free or not: more than that can never be had."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def has_torch() -> bool:
    """Whether PyTorch is installed; looks for it without importing it, which takes a second."""
    return importlib.util.find_spec("torch") is not None
