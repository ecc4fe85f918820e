"""Carries out one fault of the plan against the served run: probe, moment, fault, proof, recovery.

Every fault has a probe, a stream of its own whose progress says when. What is killed must come back
alone and be told by /health; what is stopped must go on; a stream that is aborted or left must be
gone on the server's side.
"""

import math
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import attrs
import trio

from ...engine.control_messages import BootPhase
from ...nurseries.tasks.task_tree import ProcessTree
from ..doubles.tcp_client import reset
from ..observers import CLOSE_WAIT, ESTABLISHED, NotInTime, tcp_socket, wait_until
from . import faults
from .checkers import Disturbance, judge_health, judge_lives
from .clients import EventConnection, Lost, open_events
from .fault_plan import CANCELS, CONTROL_CUTS, HANGS, KILLS, SLOW, TWICE, Family, Fault, FaultKind
from .history import TERMINAL, Ending, StreamHistory, Violation
from .load import (
    BULK,
    LAST_TOKENS,
    PROBES,
    STREAM_DEADLINE_S,
    read_history,
    read_whole,
    start_history,
)
from .report.report import FaultOutcome
from .served_run import ServedRun, epochs_of

# A null engine is back in two seconds on a quiet machine, a torch one in five; two busy cores
# need a multiple.
RECOVERY_S = 60.0
# From a client's end to the server's own end of the connection.
NOTICE_S = 10.0
# A hang is noticed by the deadline of a step, 0.5 s at least; long steps and busy cores have more.
HANG_S = 5.0
# For /health to tell of a death at all; how late it may be is the checkers' affair.
HEALTH_S = 5.0
# A fault that another one got in the way of is made again, so often and so much later: what is
# killed is back after five seconds at most.
ATTEMPTS_MAX = 12
AGAIN_S = 1.0


@attrs.define(eq=False)
class FaultRunner:
    """Makes the faults of one segment and remembers what they explain."""

    served: ServedRun
    places: list[str]
    # So many times longer than promised all may take.
    patience: float = 1.0
    # Of the clients of its faults.
    key: str = ""
    histories: list[StreamHistory] = attrs.field(factory=list, init=False)
    disturbances: list[Disturbance] = attrs.field(factory=list, init=False)
    checks: Counter[str] = attrs.field(factory=Counter, init=False)
    # {history's name: the kind of fault that its client suffered}
    _victims: dict[str, str] = attrs.field(factory=dict, init=False)
    _kinds: dict[Disturbance, str] = attrs.field(factory=dict, init=False)

    async def run(self, fault: Fault, outcome: FaultOutcome, nursery: trio.Nursery) -> None:
        """Make one fault and see its recovery; `nursery` holds what outlasts it.

        Raises `NotInTime` when the run does not come back: then nothing further makes sense.
        """
        if fault.kind in SLOW:
            nursery.start_soon(self.make, outcome, partial(self._hold, fault, outcome))
        elif fault.kind.family in (Family.KILL, Family.STOP, Family.LINK):
            await self.make(outcome, partial(self._run_on_process, fault, outcome, nursery))
        else:
            await self.make(outcome, partial(self._run_on_client, fault, outcome))

    async def make(self, outcome: FaultOutcome, once: Callable[[], Awaitable[None]]) -> None:
        """Make a fault; again when another one got in its way, so that each is made."""
        for outcome.attempts in range(1, ATTEMPTS_MAX + 1):
            try:
                await once()
                outcome.void = ""
                return
            except faults.Void as void:
                outcome.void = str(void)
            except Lost as lost:
                outcome.void = f"its probe lost the connection: {lost}"
            await trio.sleep(AGAIN_S)

    def blame(self, history: StreamHistory) -> str | None:
        """The fault that ended this stream, if one did."""
        if history.name in self._victims:
            return self._victims[history.name]
        if history.ending not in (Ending.FAILED, Ending.REFUSED, Ending.LOST):
            return None
        met = [
            kind
            for disturbance, kind in self._kinds.items()
            if disturbance.is_death and disturbance.meets(history.ended_s, history.ended_s)
        ]
        return met[0] if met else None

    # ---- faults on processes

    async def _run_on_process(
        self, fault: Fault, outcome: FaultOutcome, nursery: trio.Nursery
    ) -> None:
        before = await self.wait_there(fault)
        await nursery.start(self.run_probe, fault)
        since_s = trio.current_time()
        outcome.begin(since_s)
        is_death = fault.kind in KILLS
        pids = [before[place].pid for place in (fault.place, *fault.also)]
        try:
            if is_death:
                await self._kill(fault, outcome, pids, epochs_of(before))
            elif fault.kind is FaultKind.FREEZE_TREE:
                outcome.proof = await faults.stop(fault.seconds, *self.served.pids())
            elif fault.kind.family is Family.LINK:
                outcome.proof = await faults.spoil_links(fault, *pids)
            else:
                outcome.proof = await faults.stop(fault.seconds, *pids)
            resumed_s = trio.current_time()
            await wait_until(
                lambda: self.served.is_whole(self.places, pids if is_death else ()),
                f"the tree is whole after fault {fault.number} ({fault.kind} {fault.place})",
                seconds=RECOVERY_S * self.patience,
            )
            outcome.recovery_s = trio.current_time() - (since_s if is_death else resumed_s)
        finally:
            outcome.until_s = trio.current_time()
            places = (fault.place, *fault.also)
            self.remember(fault.kind, since_s, *places, is_death=bool(fault.deaths))
        after = epochs_of(await self.served.processes())
        outcome.violations += judge_lives(fault, epochs_of(before), after)
        self.checks.update(["I7", "I10", "I11"])

    async def wait_there(self, fault: Fault) -> dict[str, ProcessTree]:
        """The tree with all that this fault needs: a new spare takes its time."""
        found: dict[str, ProcessTree] = {}

        async def is_there() -> bool:
            nonlocal found
            found = await self.served.processes()
            return set(fault.also) <= set(found)

        await wait_until(
            is_there, f"there is {', '.join(fault.also)}", seconds=RECOVERY_S * self.patience
        )
        return found

    async def _kill(
        self, fault: Fault, outcome: FaultOutcome, pids: list[int], before: dict[str, int]
    ) -> None:
        if fault.kind is FaultKind.KILL_STOPPED:
            outcome.proof = await faults.kill_stopped(*pids)
        elif fault.kind is FaultKind.CRASH_WORKER:
            outcome.proof = f"SIGSEGV: {await faults.kill(*pids, by=signal.SIGSEGV)}"
        elif fault.kind in HANGS:
            outcome.proof = await self._hang(fault, outcome, *pids)
        elif fault.kind in CONTROL_CUTS:
            outcome.proof = await faults.cut_control(pids[0], self.served.pid)
        else:
            outcome.proof = await faults.kill(*pids)
        if fault.kind in TWICE:  # before all else: a successor boots in some tenths of a second
            outcome.proof += f", {await self._end_successor(fault, outcome, pids)}"
        elif any(each.startswith("engine") for each in fault.deaths):  # a worker's may be unseen
            await self._check_health(fault, outcome, before)

    async def _hang(self, fault: Fault, outcome: FaultOutcome, pid: int) -> str:
        bound_s = HANG_S * self.patience
        proof, ended_s = await faults.hang(pid, bound_s)
        if ended_s is None:
            evidence = f"{fault.place} stood still for {bound_s:g} s, and nothing ended it"
            outcome.violations.append(Violation("I8", evidence))
        return proof

    async def _end_successor(self, fault: Fault, outcome: FaultOutcome, pids: list[int]) -> str:
        """Kill or stop the process that took this one's place: in a phase of its boot, or so long
        after it was seen first. Its pid joins `pids`; what is the proof."""
        found = ProcessTree(fault.place, pids[0], {})

        async def is_there() -> bool:
            nonlocal found
            found = (await self.served.processes()).get(fault.place, found)
            return found.pid != pids[0] and has_reached(found, fault.phase)

        await wait_until(
            is_there, f"{fault.place} has a successor", seconds=RECOVERY_S * self.patience
        )
        await trio.sleep(fault.seconds)
        pids.append(found.pid)
        is_hang = fault.kind is FaultKind.HANG_BOOT
        end = self._hang(fault, outcome, found.pid) if is_hang else faults.kill(found.pid)
        return f"{await end} in phase {found.facts.get('phase', 'serve')}"

    def remember(
        self,
        kind: str,
        since_s: float,
        *places: str,
        is_death: bool = False,
        is_want: bool = False,
        forgets_s: float = -math.inf,
    ) -> None:
        """A fault of these places is over: what happened since then may be put down to it."""
        for place in places:
            disturbance = Disturbance(
                place=place,
                is_death=is_death,
                since_s=since_s,
                until_s=trio.current_time(),
                is_want=is_want,
                forgets_s=forgets_s,
            )
            self.disturbances.append(disturbance)
            self._kinds[disturbance] = kind

    async def _check_health(
        self, fault: Fault, outcome: FaultOutcome, before: dict[str, int]
    ) -> None:
        engine = next(place for place in fault.deaths if place.startswith("engine"))

        async def is_reported() -> bool:
            try:
                return (await self.served.engine_states())[engine] != (before[engine], "ready")
            except Lost:
                return False

        noticed_s: float | None = None
        try:
            noticed_s = await wait_until(
                is_reported, "/health tells", seconds=HEALTH_S * self.patience
            )
        except NotInTime:
            pass
        outcome.violations += judge_health(engine, noticed_s, self.patience)
        self.checks.update(["I10"])

    async def run_probe(
        self,
        fault: Fault,
        port: int = 0,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """A stream that goes on to its end; started when the fault's moment has come."""
        history = self.begin(fault)
        history.comes_back = True
        moment = trio.Event()

        def look() -> None:
            if len(history.token_ids) >= fault.token and not moment.is_set():
                moment.set()
                task_status.started()

        body = PROBES[fault.script].body()
        port = port or self.served.port
        await read_whole(port, body, history, on_event=look, patience=self.patience)
        if not moment.is_set():
            task_status.started()

    # ---- faults of clients

    async def _run_on_client(self, fault: Fault, outcome: FaultOutcome) -> None:
        history = self.begin(fault, is_victim=True)
        try:
            with trio.move_on_after(STREAM_DEADLINE_S):
                async with open_events(
                    fault.transport, self.served.port, key=self.key
                ) as connection:
                    # What is sent before it is read must not be all of it.
                    is_half = fault.kind is FaultKind.HALF_CLOSE
                    longer = {"max_output_tokens": LAST_TOKENS} if is_half else {}
                    await self._reach(fault, connection, history, **longer)
                    if fault.kind in CANCELS:
                        await self._cancel(fault, outcome, connection, history)
                    else:
                        await self._disconnect(fault, outcome, connection, history)
        except Lost as lost:
            history.lose(str(lost), trio.current_time())
            raise
        finally:
            history.give_up(trio.current_time())

    async def _reach(
        self, fault: Fault, connection: EventConnection, history: StreamHistory, **fields: Any
    ) -> None:
        """Ask, with these fields, and read as far as the fault's moment. Raises `Lost`."""
        await connection.create(PROBES[fault.script].body(**fields))
        while len(history.token_ids) < fault.token and history.ending is None:
            history.see(await connection.receive(), trio.current_time())

    async def _cancel(
        self,
        fault: Fault,
        outcome: FaultOutcome,
        connection: EventConnection,
        history: StreamHistory,
    ) -> None:
        outcome.begin(trio.current_time())
        outcome.proof = await faults.cancel(fault, self.served.port, connection, history)
        await read_history(connection, history)
        if history.ending is not Ending.CANCELLED:
            raise faults.Void(f"the stream's end was {history.ending} {history.message}")
        self.checks.update(["I12"])

    async def _disconnect(
        self,
        fault: Fault,
        outcome: FaultOutcome,
        connection: EventConnection,
        history: StreamHistory,
    ) -> None:
        port = self.served.port
        mine = connection.stream.socket.getsockname()[1]
        began_s, notice_s = trio.current_time(), NOTICE_S * self.patience
        outcome.begin(began_s)
        outcome.proof = await faults.disconnect(fault, port, connection, history)

        async def is_closed() -> bool:
            end = tcp_socket(port, mine)
            return end is None or end.state not in (ESTABLISHED, CLOSE_WAIT)

        with trio.move_on_after(notice_s) as scope:
            if fault.kind is FaultKind.HALF_CLOSE:
                if await reads_to_its_end(connection):
                    evidence = f"{history.name}: it went on to its end though its client had left"
                    outcome.violations.append(Violation("I12", evidence))
                history.leave(trio.current_time())
            await wait_until(is_closed, "the server closes its end", seconds=math.inf)
            outcome.recovery_s = trio.current_time() - began_s
        if scope.cancelled_caught:
            history.leave(trio.current_time())
            outcome.violations.append(
                Violation("I6", f"the server holds a connection {notice_s:g} s after its client")
            )
        self.checks.update(["I6"])

    async def _hold(self, fault: Fault, outcome: FaultOutcome) -> None:
        """A slow reader, while other faults happen. Raises `Void`, `Lost`."""
        history = self.begin(fault, is_victim=True)
        try:
            async with self.open(fault, tiny=True) as connection:
                await self._reach(fault, connection, history, metadata=BULK)
                outcome.begin(trio.current_time())
                try:
                    outcome.proof = await faults.hold(fault, self.served.port, connection)
                finally:
                    history.leave(trio.current_time())
                    reset(connection.stream)
        except (Lost, trio.BrokenResourceError) as lost:
            history.lose(str(lost), trio.current_time())
            raise Lost(str(lost)) from lost

    def open(
        self, fault: Fault, *, tiny: bool = False
    ) -> AbstractAsyncContextManager[EventConnection]:
        """A connection of a fault's own. Raises `Lost`."""
        return open_events(fault.transport, self.served.port, key=self.key, tiny=tiny)

    def begin(self, fault: Fault, *, is_victim: bool = False) -> StreamHistory:
        """The history of a fault's probe; a victim is one that the fault itself will end."""
        name = f"probe of fault {fault.number} ({fault.kind} {fault.place})"
        history = start_history(name, PROBES[fault.script], fault.transport, key=self.key)
        self.histories.append(history)
        if is_victim:
            self._victims[name] = fault.kind
        return history


def has_reached(process: ProcessTree, phase: str) -> bool:
    """Whether a process that boots is in this phase, or beyond: some take no time to be seen."""
    order = [str(each) for each in BootPhase]
    now = process.facts.get("phase")
    return not phase or now not in order or order.index(str(now)) >= order.index(phase)


async def reads_to_its_end(connection: EventConnection) -> bool:
    """Read away what still comes; whether the last of it is the end of a whole stream."""
    status = ""
    try:
        while True:
            event = await connection.receive()
            if event["type"] in TERMINAL:
                status = event.get("response", {}).get("status", "")
    except Lost:
        return status in ("completed", "incomplete")
