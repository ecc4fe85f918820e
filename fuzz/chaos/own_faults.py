"""Faults whose end is the server's own affair: a poison, and want of memory or descriptors.

How many lives they cost is seen, not known before: at most two a poison, whose client has a typed
refusal; none or one a process that gets no memory, or can open nothing more.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

import trio

from ...nurseries.processes.orphans import child_pids
from ...nurseries.tasks.task_tree import ProcessTree
from ..observers import NotInTime, start_ticks, state_of, wait_until
from . import faults
from .checkers import judge_poison, judge_starved
from .clients import PATH, Lost, open_stream
from .fault_plan import POISON_SEED, SPARE_ENGINE, Family, Fault, FaultKind, Transport
from .fault_run import RECOVERY_S, FaultRunner
from .history import StreamHistory
from .load import (
    FEW_GUESTS,
    GLUTTON_BYTES,
    GLUTTONS,
    GUEST,
    GUESTS,
    PROBES,
    STREAM_DEADLINE_S,
    forget,
    read_history,
    run_script,
)
from .report.report import FaultOutcome
from .served_run import epochs_of
from .surroundings.limits import LIMITS, Limits, half_of_memory, limited, open_descriptors

# A process that cannot go on has ended by then.
SETTLE_S = 1.0
# How a log tells of deaths by a poison, and of its refusal.
ABORTED, REFUSED = "SIGABRT", "it is refused from now on"


async def run_poison(runner: FaultRunner, fault: Fault, outcome: FaultOutcome) -> None:
    """Send one, and once more when it is refused. Raises `Void`, `Lost`, `NotInTime`."""
    served, began_s = runner.served, trio.current_time()
    before, log_began = epochs_of(await served.processes()), len(served.log())
    outcome.begin(began_s)
    name = f"fault {fault.number}, attempt {outcome.attempts}"
    first = await _send_poison(runner, fault, name)
    after = await settled(runner, fault)
    outcome.until_s = trio.current_time()
    outcome.recovery_s = outcome.until_s - began_s - SETTLE_S
    died = [place for place, epoch in before.items() if after.get(place) != epoch]
    runner.remember(fault.kind, began_s, *died, is_death=True)
    log = served.log()[log_began:].splitlines()
    seen = [line for line in log if ABORTED in line or REFUSED in line]
    if not any(ABORTED in line for line in seen):
        raise faults.Void(f"nobody died of it; its end was {first.ending} {first.message}")
    outcome.proof = "; ".join(seen)
    again = await _send_poison(runner, fault, name)
    at_last = epochs_of(await served.processes())
    outcome.violations += judge_poison(first, again, (before, after, at_last))
    runner.checks.update(["I10", "I13"])


async def _send_poison(runner: FaultRunner, fault: Fault, name: str) -> StreamHistory:
    """What became of it. Its stream has no right answer, but one right end."""
    history = StreamHistory(f"poison of {name}", 0, fault.transport, trio.current_time())
    body = PROBES[fault.script].body(input=f"I am the poison of {name}.")
    body["runtime"]["seed"] = POISON_SEED + fault.token
    with trio.move_on_after(STREAM_DEADLINE_S):
        async with runner.open(fault) as connection:
            await connection.create(body)
            await read_history(connection, history)
    history.give_up(trio.current_time())
    return history


async def run_want(
    runner: FaultRunner, fault: Fault, outcome: FaultOutcome, nursery: trio.Nursery
) -> None:
    """Let a process have no more memory, or descriptors, for a while, in which guests come.

    Raises `Void`, `NotInTime`.
    """
    served, is_memory = runner.served, fault.kind.family is Family.MEMORY
    found = await runner.wait_there(fault)
    before, wanting = epochs_of(found), [found[fault.place].pid]
    if fault.kind is FaultKind.STARVE_BOOT:
        spare = await _warm_spare(runner)
        wanting = spare[fault.number % 2 :]  # both, and the worker alone, in turn
    await nursery.start(runner.run_probe, fault)
    for number in range(GUESTS if is_memory else FEW_GUESTS):
        nursery.start_soon(run_guest, runner, fault, number)
    for number in range(GLUTTONS if is_memory else 0):
        nursery.start_soon(_run_glutton, runner, fault, number)
    since_s, after, place = trio.current_time(), before, fault.place.partition("/")[0]
    outcome.begin(since_s)
    try:
        most = half_of_memory if is_memory else open_descriptors
        limits = {pid: most(pid) for pid in wanting}
        begun = partial(_kill_beside, fault, found)
        outcome.proof, ended = await want(fault.seconds, limits, served.pids, begun)
        resumed_s = trio.current_time()
        after = await settled(runner, fault, *([wanting[0]] if ended else []))
        outcome.until_s = trio.current_time()
        outcome.recovery_s = outcome.until_s - resumed_s - SETTLE_S
    finally:
        is_death = after[place] != before[place]
        runner.remember(fault.kind, since_s, fault.place, is_death=is_death, is_want=True)
    outcome.violations += judge_starved(fault, before, after)
    runner.checks.update(["I7", "I10", "I11"])


async def want(
    seconds: float,
    limits: Mapping[int, Limits],
    run: Callable[[], Iterable[int]],
    begun: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
) -> tuple[str, bool]:
    """Limit processes for so long, or until the first one ends; the proof, and whether it has.

    `run` gives the processes that may have inherited it; `begun` is awaited when all are limited.
    Raises `Void`, and what `begun` raises. Cancellation: no limit is left.
    """
    pid = next(iter(limits))
    ticks = start_ticks(pid)
    if faults.is_dead(pid, ticks):
        raise faults.Void("it was dead before")
    with contextlib.ExitStack() as stack, contextlib.suppress(NotInTime):
        for each, most in limits.items():
            stack.enter_context(limited(each, most, run))
        await begun()
        await wait_until(
            lambda: faults.is_dead(pid, ticks), "it ends", seconds=seconds, look_s=faults.LOOK_S
        )
    ended = faults.is_dead(pid, ticks)
    what = f"then it was {state_of(pid)}" if ended else f"for {seconds:g} s"
    had = [f"{LIMITS[which].lower()} {n}" for most in limits.values() for which, n in most.items()]
    return f"pid {pid} had {', '.join(had)}, {what}", ended


async def run_guest(runner: FaultRunner, fault: Fault, number: int) -> None:
    """One who comes while something is wanting."""
    transport = list(Transport)[number % 2]
    name = f"guest {number} of fault {fault.number} ({fault.kind} {fault.place})"
    port, patience = runner.served.port, runner.patience
    history = await run_script(port, GUEST, name, transport, key=runner.key, patience=patience)
    await forget(port, history)
    runner.histories.append(history)


async def _run_glutton(runner: FaultRunner, fault: Fault, number: int) -> None:
    """A request whose body is long, and never ends."""
    with trio.move_on_after(fault.seconds), contextlib.suppress(Lost, trio.BrokenResourceError):
        async with open_stream(runner.served.port) as stream:
            length = f"content-length: {2 * GLUTTON_BYTES}"
            who = f"authorization: Bearer {runner.key}"
            head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\n{who}\r\n{length}\r\n\r\n"
            await stream.send_all(head.encode())
            await stream.send_all(GLUTTON_BYTES * b" ")
            await trio.sleep_forever()


async def _warm_spare(runner: FaultRunner) -> list[int]:
    """Who will succeed an engine that dies now, and the worker that comes along."""
    pids: list[int] = []

    async def is_warm() -> bool:
        spare = (await runner.served.processes()).get(SPARE_ENGINE)
        if spare is None or spare.facts["phase"] != "warm":
            return False
        pids[:] = [spare.pid, *child_pids(spare.pid)]
        return len(pids) > 1

    seconds = RECOVERY_S * runner.patience
    await wait_until(is_warm, "there is a spare engine, and a worker of it", seconds=seconds)
    return pids


async def _kill_beside(fault: Fault, found: Mapping[str, ProcessTree]) -> None:
    """Kill the worker of an engine that wants something, which it needs for the next one; or the
    engine that one in its boot is to succeed. Raises `Void`."""
    if fault.kind in (FaultKind.STARVE_ENGINE, FaultKind.NO_FDS_ENGINE):
        with contextlib.suppress(faults.Void):  # its engine has ended, and it with it
            await faults.kill(found[f"{fault.place}/worker {fault.worker}"].pid)
    elif fault.kind is FaultKind.STARVE_BOOT:
        await faults.kill(found[fault.place].pid)


async def settled(runner: FaultRunner, fault: Fault, *gone: int) -> dict[str, int]:
    """{place: epoch} when the tree is whole, and still is a while later: what is about to end is in
    the tree until it has ended."""
    before: dict[str, int] = {}
    while True:
        await wait_until(
            lambda: runner.served.is_whole(runner.places, gone),
            f"the tree is whole after fault {fault.number} ({fault.kind} {fault.place})",
            seconds=RECOVERY_S * runner.patience,
        )
        now = epochs_of(await runner.served.processes())
        if now == before:
            return now
        before = now
        await trio.sleep(SETTLE_S)
