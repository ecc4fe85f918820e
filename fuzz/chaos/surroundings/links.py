"""Faults of the links between a frontend and an engine: cut, stalled, slow.

Links are abstract Unix sockets: the kernel loses, doubles and reorders nothing on them. What can
happen is that a connection ends, and that nothing passes for a while. Both are made from outside,
by a duplicate of the socket and by a stop of the thread that carries it; ZeroMQ connects again by
itself, and what was on its way is made good by the next generation of the link.
"""

import trio

from ...observers import wait_until
from .. import faults
from ..checkers import Disturbance, judge_epochs
from ..fault_plan import Fault, FaultKind
from ..fault_run import RECOVERY_S, FaultRunner
from ..report.report import FaultOutcome
from ..served_run import epochs_of

LINKS = "links"


async def run_link(
    runner: FaultRunner, fault: Fault, outcome: FaultOutcome, nursery: trio.Nursery
) -> None:
    """No process ends by it, and no stream shows it. Raises `Void`, `NotInTime`."""
    found = await runner.wait_there(fault)
    before, ends = epochs_of(found), [found[fault.place].pid, found[fault.also[0]].pid]
    await nursery.start(runner.run_probe, fault)
    since_s = trio.current_time()
    outcome.begin(since_s)
    try:
        outcome.proof = await _spoil(fault, ends)
        resumed_s = trio.current_time()
        await wait_until(
            lambda: runner.served.is_whole(runner.places),
            f"all are linked after fault {fault.number} ({fault.kind} {fault.place})",
            seconds=RECOVERY_S * runner.patience,
        )
        outcome.recovery_s = trio.current_time() - resumed_s
    finally:
        outcome.until_s = trio.current_time()
        met = Disturbance(place=LINKS, is_death=False, since_s=since_s, until_s=outcome.until_s)
        runner.remember(met, fault.kind)
    after = epochs_of(await runner.served.processes())
    outcome.violations += judge_epochs(before, after, {})
    runner.checks.update(["I7", "I10"])


async def _spoil(fault: Fault, ends: list[int]) -> str:
    """Of a stall or delay, that of either end: both must stand it. Raises `Void`."""
    if fault.kind is FaultKind.LINK_CUT:
        return await faults.cut_links(*ends)
    passes_s = faults.PASSES_S if fault.kind is FaultKind.LINK_DELAY else 0.0
    return await faults.stall_links(ends[fault.token % 2], fault.seconds, passes_s=passes_s)
