"""Chaos campaign: a real tree, bystanders on it, one fault after another.

A shell: `fault_plan` says what comes, `faults` makes and proves it, `checkers` judge. Faults come
in segments; between two the bystanders end and the run must be as it was in the beginning. The
root is killed last.
"""

import contextlib
import random
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import trio

from ...runtime.control.client import ControlCallFailed
from ..observers import NotInTime, wait_until
from . import faults
from .checkers import (
    DISK_FULL,
    GIVEN_UP,
    Disturbance,
    QuietLook,
    judge_abort,
    judge_free,
    judge_quiet,
    judge_root_death,
    judge_stream,
)
from .clients import open_events
from .fault_plan import DECK, Family, Fault, FaultKind, Transport
from .fault_run import RECOVERY_S, FaultRunner
from .form_faults import run_form_fault
from .history import Ending, StreamHistory, Violation
from .keepsakes import Keepsakes
from .learning import Answers, answers_of, judge_null, run_scripts
from .load import LAST_TOKENS, PROBES, STREAM_DEADLINE_S, Bystanders, read_once, start_history
from .options import ChaosOptions
from .own_faults import run_poison, run_want
from .report.report import FaultOutcome, Report
from .served_run import ServedRun
from .surroundings.disk import run_full_disk, run_torn_journals
from .surroundings.network import run_network

# Faults between two quiet looks: one of each kind.
SEGMENT_FAULTS = len(DECK)
BYSTANDERS_HTTP, BYSTANDERS_SOCKETS = 2, 2
# A quiet run is as it was within this: the last abort, the last close, the last report of load; and
# the end of streams that waited half a minute for clients who left when their frontend died.
QUIET_S = 50.0
SETTLED_LOOK_S = 0.1
# "Nothing is left behind within a second."
ROOT_DEATH_S = 1.0
# Where a line of the log begins that is not the rest of one, and what says that memory was wanting,
# or room on a disk. The last is what `hashlib`, as it is imported, makes of a part of it that finds
# no memory to be loaded into.
_RECORDS = re.compile(r"^(?=\d\d:\d\d:\d\d )", re.MULTILINE)
_WANT = re.compile(
    r"MemoryError|Cannot allocate memory|can't start new thread|failed to map segment"
    rf"|{GIVEN_UP}.*{DISK_FULL}|ValueError: unsupported hash type \w+"
)
# Ways to abort that are tried alone, in turn: after each segment one over SSE, one on a socket.
ABORTS = (
    (FaultKind.HALF_CLOSE, FaultKind.CANCEL_SOCKET),
    (FaultKind.RST, FaultKind.LEAVE),
    (FaultKind.CANCEL_HTTP, FaultKind.HALF_CLOSE),
    (FaultKind.FIN, FaultKind.RST),
)


def log_violations(log: str) -> list[Violation]:
    """What must never be in the log of a run whose processes are killed: but for want of memory,
    which is an error with its traceback."""
    records = _RECORDS.split(log)
    return [
        Violation("I10", f"the log has {word!r}: {record[:100]} … {record[-300:]}")
        for number, record in enumerate(records)
        for word in ("Traceback", "given up")
        if word in record and not _WANT.search(_with_rest(records[number:]))
    ]


def _with_rest(records: Sequence[str]) -> str:
    """The first with the rest of its traceback: an interpreter that cannot even import prints one
    line by line, and others' records come between."""
    whole = records[0]
    for record in records[1:]:
        if not whole.rstrip().rpartition("\n")[2].startswith(" "):
            break  # the line that names the error
        whole += record.partition("\n")[2]
    return whole


async def settled(
    look: Callable[[], Awaitable[QuietLook]],
    judge: Callable[[QuietLook], list[Violation]],
    seconds: float,
) -> list[Violation]:
    """Look until nothing is wrong; what still is after so many seconds."""
    deadline_s = trio.current_time() + seconds
    while True:
        try:
            found = judge(await look())
        except ControlCallFailed as failed:
            found = [Violation("I8", f"the run's tree: {failed}")]
        if not found or trio.current_time() > deadline_s:
            return found
        await trio.sleep(SETTLED_LOOK_S)


@attrs.define(eq=False)
class Campaign:
    """The campaign's state: what is expected, what was done, what was seen."""

    options: ChaosOptions
    served: ServedRun
    report: Report
    # Of each script; learnt where it is empty.
    answers: Answers = attrs.field(factory=list)
    disturbances: list[Disturbance] = attrs.field(factory=list, init=False)
    _baseline: QuietLook | None = attrs.field(default=None, init=False)
    _keepsakes: Keepsakes = attrs.field(init=False)
    _shown: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        options = self.options
        self._keepsakes = Keepsakes(self.served.port, options.keys()[-1], not options.unlike)

    async def begin(self) -> None:
        """Wait for all of it, learn what is right, and what it holds. Raises `NotInTime`."""
        await self.wait_whole()
        await self._learn()
        await self._keepsakes.make()
        await self.wait_spares()
        self._baseline = await self.served.quiet_look()

    async def run_faults(self, plan: Sequence[Fault]) -> None:
        """All segments, or as many as there is time for. Raises `NotInTime`."""
        for start in range(0, len(plan), SEGMENT_FAULTS):
            if self.is_late():
                break
            await self._run_segment(plan[start : start + SEGMENT_FAULTS])
            await self.check_quiet()
            over_sse, on_socket = ABORTS[start // SEGMENT_FAULTS % len(ABORTS)]
            await self._check_abort(over_sse, Transport.SSE)
            await self._check_abort(on_socket, Transport.SOCKET)
            self.show_running()

    def show_running(self) -> None:
        """How far it is, in a line on stderr, and what is wrong since the last one."""
        found = self.report.all_violations()
        for violation in found[self._shown :]:
            sys.stderr.write(f"VIOLATION {violation.invariant}: {violation.evidence[:200]}\n")
        self._shown = len(found)
        sys.stderr.write(f"{self.report.running_line(trio.current_time())}\n")

    def is_late(self) -> bool:
        """Whether its time is over."""
        return trio.current_time() > self.report.began_s + self.options.most_s()

    async def wait_whole(self) -> None:
        """Raises `NotInTime`."""
        places, bound_s = self.options.places(), RECOVERY_S * self.options.patience
        await wait_until(lambda: self.served.is_whole(places), "the tree is whole", seconds=bound_s)

    async def wait_spares(self) -> None:
        """Raises `NotInTime`."""
        spares, bound_s = self.options.spares(), RECOVERY_S * self.options.patience
        await wait_until(lambda: self.served.has_spares(spares), "it has spares", seconds=bound_s)

    async def _learn(self) -> None:
        """The right answers, where they are not known, and that undisturbed streams have them."""
        histories = await run_scripts(self.served, self.options.keys()[0])
        self.answers = self.answers or answers_of(histories)
        for history in histories:
            self.report.violations += self._judge_one(history, [])
        if self.options.executor == "null":
            self.report.violations += judge_null(histories)

    # ---- a segment

    async def _run_segment(self, plan: Sequence[Fault]) -> None:
        chance = random.Random(f"{self.options.seed}/{plan[0].number}")
        key, patience = self.options.keys()[plan[0].number], self.options.patience
        bystanders = Bystanders(self.served.port, chance, key, patience)
        runner = FaultRunner(self.served, self.options.places(), self.options.patience)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bystanders.run, BYSTANDERS_HTTP, BYSTANDERS_SOCKETS)
                await self._make_faults(plan, bystanders, runner)
                bystanders.stopping = True
        finally:
            self.report.draw_streams([*bystanders.histories, *runner.histories])
        self.judge([*bystanders.histories, *runner.histories], runner)
        for history in bystanders.histories:
            self.report.count_gap(history, runner.disturbances)

    async def _make_faults(
        self, plan: Sequence[Fault], bystanders: Bystanders, runner: FaultRunner
    ) -> None:
        keys = self.options.keys()
        async with trio.open_nursery() as slow:
            for fault in plan:
                if self.is_late():
                    break
                outcome = FaultOutcome(fault.number, fault.kind, fault.place)
                self.report.outcomes.append(outcome)
                bystanders.key = runner.key = keys[fault.number]
                await _run_fault(runner, fault, outcome, slow)
                await self._check_keepsakes(fault, outcome)

    async def _check_keepsakes(self, fault: Fault, outcome: FaultOutcome) -> None:
        """Of frontends that have died; with a journal that was given up, they are forgotten."""
        if fault.kind is FaultKind.FULL_DISK:
            await self._keepsakes.make()
        if any(place.startswith("frontend") for place in (fault.place, *fault.also)):
            outcome.violations += await self._keepsakes.check()
            self.report.checks.update(["kept"])

    def judge(self, histories: Sequence[StreamHistory], runner: FaultRunner) -> None:
        """What these streams were, all of them over, with what `runner` remembers."""
        for history in histories:
            self.report.violations += self._judge_one(history, runner.disturbances)
            self.report.count_stream(history, runner.blame(history))
        self.report.checks.update(
            {"I1": len(histories), "I3": len(histories), "I7": len(histories)}
        )
        self.report.checks.update(runner.checks)
        self.disturbances = runner.disturbances

    def _judge_one(
        self, history: StreamHistory, disturbances: Sequence[Disturbance]
    ) -> list[Violation]:
        return judge_stream(
            history,
            self.answers[history.script],
            disturbances,
            engines=self.options.engines,
            patience=self.options.patience,
        )

    # ---- between segments

    async def check_quiet(self) -> None:
        """Wait until the run is as it was; what still is not after a while is a violation."""
        baseline = self._baseline
        assert baseline is not None
        self.report.violations += await self._settled(partial(judge_quiet, baseline))
        self.report.checks.update(["I4", "I5", "I6", "I9"])

    async def _check_abort(self, kind: FaultKind, transport: Transport) -> None:
        """I12 with nothing else under way: the engine's own step counter tells how long it took."""
        fault = Fault(
            number=len(self.report.outcomes),
            kind=kind,
            rank=0,
            transport=transport,
            script=0,
            token=8,
            seconds=0.0,
        )
        outcome = FaultOutcome(fault.number, kind, "")
        runner = FaultRunner(self.served, self.options.places(), self.options.patience)
        runner.key = self.options.keys()[-1]
        async with trio.open_nursery() as nursery:
            await runner.run(fault, outcome, nursery)
        at_end = await self._engine_steps()
        kept = await self._settled(judge_free)
        when_free = await self._engine_steps()
        self.report.violations += [
            *outcome.violations,
            *kept,
            *([Violation("I14", f"an abort without load: {outcome.void}")] if outcome.void else []),
            *judge_abort(at_end, when_free, self.options.step_s(), self.options.patience),
        ]
        if self.options.step_s():  # else no number of steps is too many
            self.report.checks.update(["I12"])
        self.report.draw_streams(runner.histories)
        self.judge(runner.histories, runner)

    async def _settled(self, judge: Callable[[QuietLook], list[Violation]]) -> list[Violation]:
        return await settled(self.served.quiet_look, judge, QUIET_S * self.options.patience)

    async def _engine_steps(self) -> dict[str, int]:
        processes = await self.served.processes()
        return {
            place: int(process.facts["step"])
            for place, process in processes.items()
            if place.startswith("engine") and "/" not in place
        }

    async def kill_root(self) -> None:
        """The last act, with streams under way."""
        death_s = ROOT_DEATH_S * self.options.patience
        number = len(self.report.outcomes)
        outcome = FaultOutcome(number, FaultKind.KILL_ROOT, "root")
        self.report.outcomes.append(outcome)
        histories: list[StreamHistory] = []

        async def stream(transport: Transport) -> None:
            name = f"stream over {transport} at the root's death"
            history = start_history(name, PROBES[0], transport)
            histories.append(history)
            opened = open_events(transport, self.served.port, key=self.options.keys()[-1])
            await read_once(opened, PROBES[0].body(max_output_tokens=LAST_TOKENS), history)

        def have_begun() -> bool:
            return len(histories) == len(Transport) and all(h.token_ids for h in histories)

        async with trio.open_nursery() as nursery:
            for transport in Transport:
                nursery.start_soon(stream, transport)
            await wait_until(have_begun, "the last streams begin", seconds=STREAM_DEADLINE_S)
            # One may have come to its end while the others began.
            running = [h for h in histories if h.ending is None]
            began_s = trio.current_time()
            outcome.begin(began_s)
            try:
                outcome.proof = await faults.kill(self.served.pid)
            except faults.Void as void:
                outcome.void = str(void)
            self.served.popen.wait()
            with contextlib.suppress(NotInTime):
                await wait_until(
                    lambda: not any(self.served.remains()), "all is gone", seconds=death_s
                )
            outcome.recovery_s = trio.current_time() - began_s
            remains = self.served.remains()
        open_ = [f"{h.name} ({h.ending})" for h in running if h.ending is not Ending.LOST]
        outcome.violations += judge_root_death(*remains, open_, death_s)
        for history in histories:
            self.report.count_stream(history, FaultKind.KILL_ROOT)
        self.report.draw_streams(histories)
        self.report.checks.update(["I5", "I6"])


async def _run_fault(
    runner: FaultRunner, fault: Fault, outcome: FaultOutcome, nursery: trio.Nursery
) -> None:
    """Make any fault and see its recovery."""
    match fault.kind.family:
        case Family.POISON:
            make = partial(run_poison, runner, fault, outcome)
        case Family.MEMORY | Family.DESCRIPTORS:
            make = partial(run_want, runner, fault, outcome, nursery)
        case Family.DISK if fault.kind is FaultKind.FULL_DISK:
            make = partial(run_full_disk, runner, fault, outcome, nursery)
        case Family.DISK:
            make = partial(run_torn_journals, runner, fault, outcome, nursery)
        case Family.FORM:
            make = partial(run_form_fault, runner, fault, outcome)
        case Family.NETWORK:
            make = partial(run_network, runner, fault, outcome)
        case _:
            await runner.run(fault, outcome, nursery)
            return
    await runner.make(outcome, make)
