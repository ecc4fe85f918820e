"""Faults of forms in mid-check: of who checks them, of a form itself, of who waits for the check.

A few clients ask for answers of forms whose checks linger, each a new one, on connections of their
own, which must last whatever dies: every answer is that of an undisturbed server. Where a form is
a bomb it is refused, and those beside it are answered.
"""

import contextlib

import trio

from ...nurseries.processes.orphans import child_pids
from ...nurseries.processes.spares import SPARE
from ...nurseries.tasks.service import single_errors_unwrapped
from ...nurseries.tasks.task_tree import ProcessTree
from ...runtime.control.client import ControlCallFailed
from . import faults
from .checkers import NO_FORMS, judge_form_fault, judge_lives
from .fault_plan import Fault, FaultKind
from .fault_run import HANG_S, FaultRunner
from .history import StreamHistory, Violation
from .load import FORMED, STREAM_DEADLINE_S, read_once, start_history
from .own_faults import settled
from .poisoned_forms import FormBurden
from .report.report import FaultOutcome
from .served_run import epochs_of, serving

# Some at once, and as many as it takes to meet the form process of this rank: who accepts a
# connection is the root's choice.
ASKERS_MIN, ASKERS_MAX = 3, 6
# A check that was seen twice lingers; others are over by then.
LOOKS_S = 0.1


async def run_form_fault(runner: FaultRunner, fault: Fault, outcome: FaultOutcome) -> None:
    """Make one while a form is checked. Raises `Void`, `NotInTime`."""
    before, since_s = await runner.wait_there(fault), trio.current_time()
    asked: list[StreamHistory] = []
    bombs: list[StreamHistory] = []
    try:
        with single_errors_unwrapped():
            async with trio.open_nursery() as nursery:
                copy = await _begin_checks(runner, fault, nursery, asked)
                outcome.begin(began_s := trio.current_time())
                if fault.kind is FaultKind.FORM_BOMB:
                    burden = (FormBurden.FILL, FormBurden.BURN)[fault.token % 2]
                    bombs.append(await _ask(runner, fault, "bomb", burden))
                    outcome.proof = f"{burden}: {bombs[0].message}"
                else:
                    outcome.proof = await _end(runner, fault, outcome, copy)
                    outcome.proof += f", while pid {copy} checked a form"
        outcome.until_s = trio.current_time()
        outcome.recovery_s = outcome.until_s - began_s
        await settled(runner, fault)
    finally:
        runner.histories.extend(asked)
        runner.remember(fault.kind, since_s, fault.place, is_death=bool(fault.deaths))
    after = await runner.served.processes()
    pids = [{place: each.pid for place, each in serving(tree).items()} for tree in (before, after)]
    outcome.violations += judge_lives(fault, epochs_of(before), epochs_of(after))
    outcome.violations += judge_form_fault(fault, asked, bombs, pids)
    runner.checks.update(["I7", "I10", "I11", "I13"])


async def _end(runner: FaultRunner, fault: Fault, outcome: FaultOutcome, copy: int) -> str:
    """Kill what this kind kills, or stop it until somebody ends it. Raises `Void`."""
    is_check = fault.kind in (FaultKind.KILL_CHECK, FaultKind.HANG_CHECK)
    pid = copy if is_check else (await runner.served.processes())[fault.place].pid
    if fault.kind not in (FaultKind.HANG_FORMS, FaultKind.HANG_CHECK):
        return await faults.kill(pid)
    bound_s = HANG_S * runner.patience
    proof, ended_s = await faults.hang(pid, bound_s)
    if ended_s is None:
        evidence = f"{fault.kind} {fault.place}: for {bound_s:g} s nothing ended it"
        outcome.violations.append(Violation("I8", evidence))
    return proof


async def _begin_checks(
    runner: FaultRunner, fault: Fault, nursery: trio.Nursery, asked: list[StreamHistory]
) -> int:
    """Ask until a check lingers below the form process of this rank: its pid. Raises `Void`."""

    async def ask(number: int) -> None:
        asked.append(await _ask(runner, fault, str(number), FormBurden.LINGER))

    for number in range(ASKERS_MAX):
        nursery.start_soon(ask, number)
        if number + 1 < ASKERS_MIN:
            continue
        seen = await _copies(runner, fault.rank)
        await trio.sleep(LOOKS_S)
        if lingering := seen & await _copies(runner, fault.rank):
            return lingering.pop()
    raise faults.Void(f"forms {fault.rank} checked none of {ASKERS_MAX} forms")


async def _copies(runner: FaultRunner, rank: int) -> set[int]:
    """The copies of a form process that check something."""
    found: dict[str, ProcessTree] = {}
    with contextlib.suppress(ControlCallFailed):
        found = await runner.served.processes()
    place = f"forms {rank}"
    if place not in found:
        return set()
    spares = {each.pid for each in found[place].processes if each.name.startswith(SPARE)}
    return set(child_pids(found[place].pid)) - spares


async def _ask(runner: FaultRunner, fault: Fault, who: str, burden: FormBurden) -> StreamHistory:
    """Ask with a new form, and with the same again where a busy machine is late to check it."""
    name = f"form {who} of fault {fault.number} ({fault.kind} {fault.place})"
    script = FORMED[(fault.number + len(who)) % len(FORMED)]
    body = script.body(f"{trio.current_time()} {name} {burden}")
    while True:
        history = start_history(name, script, fault.transport, key=runner.key)
        seconds = STREAM_DEADLINE_S * runner.patience
        await read_once(runner.open(fault), body, history, seconds)
        if history.code != NO_FORMS or runner.patience == 1:
            return history
