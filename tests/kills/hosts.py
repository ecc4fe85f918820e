"""Kill campaign of hosts under the SDK: machines are lost and cut off, and every answer goes on.

The head, the hosts and the clients are in network namespaces; the clients' threads are in the
clients' one, and so are the sockets that they open. First the load runs with nothing done to it;
the same servers then lose one host after the other.
"""

import contextlib
import pathlib
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from triolet.fuzz.chaos.campaign import log_violations
from triolet.fuzz.chaos.fault_plan import digest
from triolet.fuzz.chaos.faults import Void
from triolet.fuzz.chaos.history import Violation
from triolet.fuzz.chaos.network.host_campaign import HostCampaign
from triolet.fuzz.chaos.network.host_lab import API_KEY, HEAD, PORT, HostLab, open_host_lab
from triolet.fuzz.chaos.network.host_plan import (
    Cost,
    HostFault,
    HostFaultKind,
    judge_epochs_of_hosts,
    make_host_plan,
)
from triolet.fuzz.chaos.options import ChaosOptions
from triolet.fuzz.chaos.report.gaps import gap_lines, percentiles_of
from triolet.fuzz.chaos.report.report import FaultOutcome, Report
from triolet.fuzz.doubles.clients import HttpClient
from triolet.fuzz.observers import NotInTime, wait_until
from triolet.nurseries.tasks.service import single_error

from .campaign import LAST_ANSWERS_S, PATIENCE, WHOLE_S, KillOptions
from .load import Load
from .report import TOKEN_MAX, TOKEN_MIN, Kill
from .slots import Account

# One half of the faults switch a host off.
DECK = (
    *(8 * [HostFaultKind.HOST_OFF]),
    *(2 * [HostFaultKind.KILL_HOST]),
    HostFaultKind.CUT_FROM_HOST,
    HostFaultKind.CUT_TO_HOST,
    *(2 * [HostFaultKind.CUT]),
    *(2 * [HostFaultKind.HOST_OFF_WITH_FRONTEND]),
)
# The clients share their cores with all servers.
TIMES = 10.0
CALM_S = 5.0
# A fault meets so many requests on its host, if they come within `held_s`.
HELD_MIN, HELD_LOOK_S = 3, 0.02


async def run_host_kills(options: KillOptions, say: Callable[[str], object]) -> Report:
    """The load undisturbed, and under `options.kills` faults.

    Raises `NoNamespaces`; `ServerEnded` or `NotInTime` if the hosts do not come up,
    `AssertionError` if they serve badly with nothing done to them. Cancellation: no process is
    left.
    """
    with tempfile.TemporaryDirectory(prefix="triolet-kills-") as folder:
        async with open_host_lab(pathlib.Path(folder), options.hosts, seed=options.seed) as lab:
            plan = make_host_plan(options.seed, options.kills, lab.others, DECK)
            counts = Counter(str(fault.kind) for fault in plan)
            report = Report(options.seed, digest(plan), options.words_of_replay(), counts)
            await lab.start(*PATIENCE)
            oracle = _load(options, lab, Account())
            await oracle.run()
            assert not oracle.account.wrong, f"undisturbed: {oracle.account.wrong[:3]}"
            load = _load(options, lab, Account(oracle.account.recorded))
            chaos = ChaosOptions(hosts=options.hosts, seed=options.seed, patience=TIMES)
            campaign = HostKills(options, HostCampaign(chaos, lab, report), load, say)
            report.began_s = trio.current_time()
            await campaign.run(plan)
            report.seconds = trio.current_time() - report.began_s
            campaign.fill_report()
            report.violations += log_violations(lab.head.log())
    return report


def _load(options: KillOptions, lab: HostLab, account: Account) -> Load:
    load = options.load(f"http://{lab.network.address(HEAD)}:{PORT}", None)
    load.account, load.api_key = account, API_KEY
    load.within = partial(lab.network.inside, lab.clients)
    return load


@attrs.define(eq=False)
class HostKills:
    """The faults of one run, under its load."""

    options: KillOptions
    chaos: HostCampaign
    load: Load
    say: Callable[[str], object]
    kills: list[Kill] = attrs.field(factory=list, init=False)
    # Nothing, for as long as nothing happens.
    calm: Kill = attrs.field(factory=lambda: Kill("nothing", "", 0, 0), init=False)

    @property
    def lab(self) -> HostLab:
        """Servers and clients."""
        return self.chaos.lab

    async def run(self, plan: Sequence[HostFault]) -> None:
        """All faults; return when the last answers are there."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.load.run)
            try:
                await self._make_all(plan)
            except* NotInTime as late:
                self._violate("I8", str(single_error(late)))
            finally:
                with contextlib.suppress(NotInTime):
                    await self._end_load()

    async def _end_load(self) -> None:
        """Threads end with their streams, or with the servers. Raises `NotInTime`."""
        self.load.account.stopping = True
        try:
            await wait_until(self._is_over, "the last answers", seconds=LAST_ANSWERS_S)
        except (NotInTime, trio.Cancelled):
            for slot in self.load.slots:
                if slot.answer is not None and not slot.answer.ended:
                    self._violate("I8", f"{slot.name}: no end after {slot.answer.tokens} tokens")
            self.lab.close()
            raise

    def _is_over(self) -> bool:
        return all(slot.answer is not None and slot.answer.ended for slot in self.load.slots)

    def _violate(self, invariant: str, evidence: str) -> None:
        self.chaos.report.violations.append(Violation(invariant, evidence))

    async def _make_all(self, plan: Sequence[HostFault]) -> None:
        began_s = trio.current_time()
        await self._wait_streams()
        self._watch(self.calm)
        await trio.sleep(CALM_S)
        for fault in plan:
            if trio.current_time() > began_s + 60 * self.options.minutes:
                break
            await self._make(fault)
        self._watch(None)

    async def _wait_streams(self) -> None:
        await wait_until(
            lambda: self._in_the_midst() >= self.options.streams_wanted,
            "enough streams are under way",
            seconds=WHOLE_S,
        )

    def _in_the_midst(self) -> int:
        answers = [slot.answer for slot in self.load.slots if slot.is_under_way]
        return sum(TOKEN_MIN <= answer.tokens <= TOKEN_MAX for answer in answers if answer)

    async def _make(self, fault: HostFault) -> None:
        lab, report = self.lab, self.chaos.report
        await self._wait_streams()
        before = await lab.epochs()
        held = await self._wait_held(fault.host)
        made = Kill(str(fault.kind), "", self._in_the_midst(), held)
        made.began_s, made.streams_min = trio.current_time(), self.options.streams_min
        self._watch(made)
        outcome = FaultOutcome(fault.number, fault.kind, f"host {fault.host}")
        outcome.begin(made.began_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.chaos.watch, fault, outcome)
            try:
                made.proof = await self.chaos.make(fault)
            except Void as void:
                outcome.void = str(void)
        if fault.kind.effect.cost is Cost.HOST:
            await self.chaos.restart(fault)
        await lab.wait_ready(len(before))
        made.recovery_s = trio.current_time() - made.began_s
        after = await lab.epochs()
        for wrong in judge_epochs_of_hosts(fault, lab.ranks[fault.host], before, after):
            outcome.violations.append(Violation("I11", f"{fault.kind}: {wrong}"))
        report.outcomes.append(outcome)
        self.kills.append(made)
        self.say(
            f"{len(self.kills)}/{self.options.kills} {fault.kind}: {made.in_the_midst} in the"
            f" midst, {made.held} held, whole after {made.recovery_s:.1f} s; answers"
            f" {self.load.account.compared}, wrong so far {len(self.load.account.wrong)}"
            f" {self.load.account.wrong[-1:]}"
        )

    def _watch(self, kill: Kill | None) -> None:
        for slot in self.load.slots:
            slot.watch(kill)

    async def _wait_held(self, host: int) -> int:
        """How many requests the engines of a host have, enough of them if that can be had."""
        held = 0

        async def is_enough() -> bool:
            nonlocal held
            held = await self._held(host)
            return held >= HELD_MIN

        with contextlib.suppress(NotInTime):
            seconds = self.options.held_s
            await wait_until(is_enough, "it has enough", seconds=seconds, look_s=HELD_LOOK_S)
        return held

    async def _held(self, host: int) -> int:
        async with self.lab.connection() as connection:
            headers = {"authorization": f"Bearer {API_KEY}"}
            http = HttpClient(connection.stream)
            text = (await http.request("GET", "/metrics", headers=headers)).body.decode()
        starts = tuple(
            f'triolet_num_requests_{state}{{engine="{rank}"'
            for state in ("running", "waiting")
            for rank in self.lab.ranks[host]
        )
        lines = [line for line in text.splitlines() if line.startswith(starts)]
        return round(sum(float(line.rpartition(" ")[2]) for line in lines))

    def fill_report(self) -> None:
        """All that was seen. A gap is what goes beyond the longest one while nothing happened."""
        account, report = self.load.account, self.chaos.report
        calm_s = max(self.calm.gaps.values(), default=0.0)
        of_kind: dict[str, list[float]] = {}
        for kill, outcome in zip(self.kills, report.outcomes, strict=True):
            outcome.proof, outcome.recovery_s = kill.proof, kill.recovery_s
            outcome.gaps_s = [max(0.0, gap_s - calm_s) for gap_s in kill.interrupted_gaps_s]
            outcome.until_s = kill.began_s + (kill.recovery_s or 0.0)
            of_kind.setdefault(kill.place, []).extend(outcome.gaps_s)
        report.endings["answered"], report.tokens = account.compared, account.output_tokens
        report.checks["I2"] = account.compared
        report.violations += [Violation("I2", each) for each in account.wrong]
        notes = [
            f"requests: {self.load.asked()[0]}; longest silence of {CALM_S:g} s of calm:"
            f" {calm_s:.2f} s; gaps are what is beyond it"
        ]
        for kind, gaps_s in of_kind.items():
            noticed = percentiles_of(self.chaos.noticed_s.get(kind, []))
            notes.append(f"{kind}: noticed p50/p99/max {noticed} s; gaps {percentiles_of(gaps_s)}")
            notes += gap_lines(gaps_s)
        report.notes = notes
