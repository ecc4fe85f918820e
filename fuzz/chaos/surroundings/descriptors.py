"""Want of descriptors: a process that can open none more for a while, as anybody may order.

Its next connection, pipe or memory file fails; what is open stays. Proven by /proc: the limit is
that of the lowest free descriptor, so that not even a gap can be filled.
"""

import contextlib
import resource
from collections.abc import Iterator

import trio

from ....nurseries.tasks.task_tree import ProcessTree
from ...observers import PROC, descriptors, start_ticks
from .. import faults
from ..checkers import Disturbance, judge_starved
from ..fault_plan import Fault, FaultKind
from ..fault_run import FaultRunner
from ..own_faults import run_guest, settled
from ..report.report import FaultOutcome
from ..served_run import epochs_of

GUESTS = 8
# {resource: how /proc calls its limit}
NAMES = {resource.RLIMIT_NOFILE: "Max open files", resource.RLIMIT_FSIZE: "Max file size"}


async def run_without_descriptors(
    runner: FaultRunner, fault: Fault, outcome: FaultOutcome, nursery: trio.Nursery
) -> None:
    """A process without, while guests come; the worker of an engine dies besides. Raises `Void`."""
    found = await runner.wait_there(fault)
    before, pid = epochs_of(found), found[fault.place].pid
    await nursery.start(runner.run_probe, fault)
    since_s, after = trio.current_time(), before
    outcome.begin(since_s)
    try:
        with no_descriptors(pid) as outcome.proof:
            for number in range(GUESTS):
                nursery.start_soon(run_guest, runner, fault, number)
            if fault.kind is FaultKind.NO_FDS_ENGINE:
                await _kill_worker(found, fault)
            await trio.sleep(fault.seconds)
        after = await settled(runner, fault)
        outcome.until_s = trio.current_time()
    finally:
        want = Disturbance(
            place=fault.place,
            is_death=after[fault.place] != before[fault.place],
            since_s=since_s,
            until_s=trio.current_time(),
            is_want=True,
        )
        runner.remember(want, fault.kind)
    outcome.violations += judge_starved(fault, before, after)
    runner.checks.update(["I7", "I10", "I11"])


async def _kill_worker(found: dict[str, ProcessTree], fault: Fault) -> None:
    """Its engine needs descriptors for the next one."""
    with contextlib.suppress(faults.Void):
        await faults.kill(found[f"{fault.place}/worker {fault.worker}"].pid)


@contextlib.contextmanager
def no_descriptors(pid: int) -> Iterator[str]:
    """The limit; what is the proof. Raises `Void`."""
    try:
        taken = descriptors(pid)
        free = next(number for number in range(len(taken) + 1) if number not in taken)
    except OSError as gone:
        raise faults.Void(f"pid {pid} is gone: {gone}") from None
    with limited(pid, resource.RLIMIT_NOFILE, free):
        yield f"pid {pid} might open none beside its {len(taken)}"


@contextlib.contextmanager
def limited(pid: int, which: int, most: int) -> Iterator[None]:
    """It may have no more of this resource, as /proc shows. Raises `Void`."""
    try:
        ticks, before = start_ticks(pid), resource.prlimit(pid, which)
        resource.prlimit(pid, which, (most, before[1]))
        if limit_of(pid, which) != most:
            raise faults.Void(f"{NAMES[which]} of pid {pid} is {limit_of(pid, which)}, not {most}")
    except OSError as gone:
        raise faults.Void(f"pid {pid} is gone: {gone}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if start_ticks(pid) == ticks:
                resource.prlimit(pid, which, before)


def limit_of(pid: int, which: int = resource.RLIMIT_NOFILE) -> int:
    """Most that it may have; -1 where there is no limit. Raises `OSError` when it is gone."""
    lines = (PROC / str(pid) / "limits").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(NAMES[which]))
    soft = line.removeprefix(NAMES[which]).split()[0]
    return resource.RLIM_INFINITY if soft == "unlimited" else int(soft)
