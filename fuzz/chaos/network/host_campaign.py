"""Campaign over several hosts: one fault after another on hosts and their links, under streams.

Each fault has a round of streams of its own, which must be, to the last token, those of an
undisturbed round, on connections that no client opens again. The fault is proven by the switch's
counters or by /proc; when its host, or its engine, is taken for silent or gone is seen in /health.
Then all must be whole again, with other lives where the fault costs them and nowhere else. At last
the head is killed, and no host computes on.
"""

import itertools
import pathlib
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence

import attrs
import trio

from ....nurseries.tasks.service import single_error
from ...observers import NotInTime, costs_of_tree, wait_until
from ...observers import name_of as title_of
from .. import faults
from ..campaign import log_violations
from ..checkers import QUARANTINED
from ..fault_plan import POISON_SEED, FaultKind, Transport, digest
from ..history import StreamHistory, Violation
from ..load import Script, read_once
from ..options import CHAOS_SERVER, ChaosOptions
from ..own_faults import ABORTED, REFUSED
from ..report.gaps import percentiles_of
from ..report.report import FaultOutcome, Report
from .host_lab import (
    HEAD,
    PORT,
    HostLab,
    differences,
    excess_gaps_s,
    is_up,
    make_scripts,
    name_of,
    open_host_lab,
    wait_tokens,
)
from .host_plan import (
    Cost,
    HostFault,
    HostFaultKind,
    Ways,
    judge_epochs_of_hosts,
    judge_times_lost,
    make_host_plan,
    make_upgrade_plan,
)
from .link_rules import Way

STREAMS, TOKENS = 16, 400
# Each is alone for a moment. What they may cost, of a core that others want, too; the process's own
# beats are in it.
STRANGERS_PER_S = 1000.0
STRANGERS_CPU_MAX, STRANGERS_MIB_MAX, STRANGERS_LINES_MAX = 0.2, 8.0, 50
# Silence of one second, and what a busy machine adds; a killed process is noticed sooner.
NOTICE_S, NOTICE_LOOK_S = 3.0, 0.02
# A fault that costs no host may never be seen: a killed engine has a successor in less.
BRIEF_S = 1.0
# Time for a host's lease to end, and for the ladder by which it ends its engines.
EMPTY_S = 6.0
# By then its host has ended an engine that stands still.
HUNG_S = 3.0
# Title of a process that computes; spares have another one.
COMPUTES = re.compile(r"triolet: (engine|worker) \d")
ENGINE, WORKER = re.compile(r"triolet: engine \d"), re.compile(r"triolet: worker \d")
FRONTEND = re.compile(r"triolet: frontend \d")


@attrs.define(eq=False)
class HostCampaign:
    """State of one campaign."""

    options: ChaosOptions
    lab: HostLab
    report: Report
    # Number of the head's own engines.
    engines: int = 1
    scripts: Sequence[Script] = attrs.field(factory=lambda: make_scripts(STREAMS, TOKENS))
    undisturbed: list[StreamHistory] = attrs.field(factory=list, init=False)
    # {kind of fault: seconds until it was noticed}, and gaps beyond the longest undisturbed one.
    noticed_s: dict[str, list[float]] = attrs.field(factory=dict, init=False)
    gaps_s: dict[str, list[float]] = attrs.field(factory=dict, init=False)
    # Seconds until each next head serves, and from then on until all hosts' engines do.
    heads_s: list[float] = attrs.field(factory=list, init=False)
    joins_s: list[float] = attrs.field(factory=list, init=False)

    async def begin(self) -> None:
        """Start the head, let each host join, and learn what is right. Raises `NotInTime`."""
        options = self.options
        computing = ("--executor", options.executor, "--null-step", str(options.step))
        journal = ("--journal", str(self.lab.folder / "journal"))
        await self.lab.start(*computing, *journal, engines=self.engines)
        async with self.lab.streams(self.scripts) as self.undisturbed:
            pass
        calm_s = max(history.gap_s for history in self.undisturbed)
        self.report.notes = [f"longest silence of {STREAMS} undisturbed streams: {calm_s:.2f} s"]

    async def run(self, plan: Sequence[HostFault]) -> None:
        """Make all faults, or as many as there is time for. Raises `NotInTime`."""
        for fault in plan:
            if trio.current_time() > self.report.began_s + self.options.most_s():
                break
            is_root = fault.kind.effect.cost is Cost.ALL
            place = "root" if is_root else f"host {fault.host}"
            outcome = FaultOutcome(fault.number, fault.kind, place)
            self.report.outcomes.append(outcome)
            await self._run_fault(fault, outcome)
            for violation in outcome.violations:
                sys.stderr.write(f"VIOLATION {violation.invariant}: {violation.evidence[:200]}\n")
            sys.stderr.write(f"{self.report.running_line(trio.current_time())}\n")
        await self.kill_head()

    async def _run_fault(self, fault: HostFault, outcome: FaultOutcome) -> None:
        kind, patience = fault.kind, self.options.patience
        before, lost_before = await self.lab.epochs(), await self._times_lost()
        is_root = kind.effect.cost is Cost.ALL
        async with self.lab.streams(self.scripts, comes_back=is_root) as histories:
            await wait_tokens(histories, fault.token)
            outcome.begin(trio.current_time())
            async with trio.open_nursery() as nursery:
                if not is_root:
                    nursery.start_soon(self.watch, fault, outcome)
                try:
                    outcome.proof = await self.make(fault)
                except faults.Void as void:
                    outcome.void = str(void)
            healed_s = trio.current_time()
            if kind.effect.cost is Cost.HOST:
                await self.restart(fault)
            await self.lab.wait_ready(len(before))
            outcome.recovery_s = trio.current_time() - healed_s
            outcome.until_s = trio.current_time()
            if is_root:
                self.joins_s.append(outcome.recovery_s)
                await self.lab.note_ranks()
        after, lost = await self.lab.epochs(), await self._times_lost()
        self._judge(outcome, histories)
        wrong = judge_epochs_of_hosts(fault, self.lab.ranks[fault.host], before, after)
        if not is_root and lost:  # the next head counts anew
            wrong += judge_times_lost(fault, name_of(fault.host), lost_before, lost)
        outcome.violations += [Violation("I11", f"{kind}: {each}") for each in wrong]
        noticed_s = self.noticed_s.get(kind, [])
        if kind.effect.cost is Cost.HOST and (not noticed_s or noticed_s[-1] > NOTICE_S * patience):
            outcome.violations.append(Violation("I8", f"{kind}: noticed after {noticed_s[-1:]} s"))
        self.report.checks.update(["I7", "I8", "I11"])

    async def _times_lost(self) -> dict[str, int]:
        """{host: how often it was lost} when monitors see all hosts up. Raises `NotInTime`."""
        found: dict[str, tuple[str, int]] = {}

        async def are_up() -> bool:
            found.clear()
            found.update(await self.lab.monitored())
            states = [state for state, _ in found.values()]
            return states == ["up"] * len(self.lab.others)

        if HEAD in self.lab.pythons:  # another build's need not show them
            return {}
        await wait_until(are_up, "monitors see all hosts up", seconds=NOTICE_S)
        return {host: count for host, (_, count) in found.items()}

    def _judge(self, outcome: FaultOutcome, histories: Sequence[StreamHistory]) -> None:
        outcome.violations += [
            Violation("I2", f"{outcome.kind}: {each}")
            for each in differences(histories, self.undisturbed)
        ]
        self.gaps_s.setdefault(outcome.kind, []).extend(excess_gaps_s(histories, self.undisturbed))
        self.report.draw_streams(histories)
        for history in histories:
            self.report.count_stream(history, None)
        self.report.checks.update({"I2": len(histories), "I3": len(histories)})

    async def watch(self, fault: HostFault, outcome: FaultOutcome) -> None:
        """Note when an engine of this host is not listed as one that takes requests."""
        assert outcome.at_s is not None
        effect = fault.kind.effect
        most_s = NOTICE_S * self.options.patience if effect.cost is Cost.HOST else BRIEF_S
        with trio.move_on_after(effect.seconds + most_s):
            while True:
                engines = await self.lab.engines()
                up = {engine["rank"] for engine in engines if is_up(engine)}
                if engines and not self.lab.ranks[fault.host] <= up:
                    passed_s = trio.current_time() - outcome.at_s
                    self.noticed_s.setdefault(fault.kind, []).append(passed_s)
                    return
                await trio.sleep(NOTICE_LOOK_S)

    async def make(self, fault: HostFault) -> str:
        """Make it, and see it over; its proof. Raises `Void`, and `NotInTime` of engines that
        compute on though their host has lost its lease, or its process."""
        effect, host = fault.kind.effect, fault.host
        computing = self._computing(host)
        if effect.ways is not Ways.NONE:
            proofs: list[str] = []

            async def spoil() -> None:
                ways = self._ways(effect.ways, host)
                proofs.append(await self.lab.spoil(ways, effect.seconds, **effect.changes))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(spoil)
                if effect.cost is Cost.HOST:
                    await self._wait_ended(host, computing)
            return proofs[0]
        match fault.kind:
            case HostFaultKind.HOST_OFF:
                return f"pids {await self.lab.host_off(host)} are gone"
            case HostFaultKind.HOST_OFF_WITH_FRONTEND:
                proof = await faults.kill(self._titled(HEAD, FRONTEND)[0])
                return f"frontend: {proof}; pids {await self.lab.host_off(host)} are gone"
            case HostFaultKind.KILL_HOST:
                pid = self.lab.kill_host_process(host)
                await self._wait_ended(host, computing)
                return f"pid {pid} is gone, and no process of its host computes"
            case HostFaultKind.LEAVE:
                python = self.lab.pythons.get(host, sys.executable)
                seconds = await self.lab.leave(host)
                return f"its process, of {python}, ended with 0, {seconds:.1f} s after SIGTERM"
            case HostFaultKind.STRANGERS:
                return await self._meet_strangers(effect.seconds)
            case HostFaultKind.KILL_ROOT:
                return await self._replace_head()
            case HostFaultKind.STOP_HOST:
                return await faults.stop(effect.seconds, self.lab.joined[host].pid)
            case HostFaultKind.HANG_ENGINE:
                pid = self._titled(host, ENGINE)[0]
                proof, took_s = await faults.hang(pid, HUNG_S * self.options.patience)
                if took_s is None:
                    raise faults.Void(f"nobody ended it: {proof}")
                return proof
            case HostFaultKind.POISON:
                return await self._poison(fault)
            case HostFaultKind.KILL_WORKER:
                return await faults.kill(self._titled(host, WORKER)[0])
            case _:
                return await faults.kill(self._titled(host, ENGINE)[0])

    async def _meet_strangers(self, seconds: float) -> str:
        """Have strangers at the door for so long; what they cost the head."""
        head = self.lab.head
        before, began_s, lines = costs_of_tree(head.pid)["root"], trio.current_time(), head.log()
        count = await self.lab.have_strangers(STRANGERS_PER_S, seconds)
        after, passed_s = costs_of_tree(head.pid)["root"], trio.current_time() - began_s
        cpu = (after.cpu_s - before.cpu_s) / passed_s
        grown_mib = after.resident_mib - before.resident_mib
        said = head.log().count("\n") - lines.count("\n")
        proof = (
            f"{count} strangers in {passed_s:.1f} s; the root took {cpu:.1%} of a core,"
            f" {grown_mib:+.1f} MiB, and wrote {said} lines"
        )
        most = STRANGERS_CPU_MAX * self.options.patience, STRANGERS_MIB_MAX, STRANGERS_LINES_MAX
        if any(found > bound for found, bound in zip((cpu, grown_mib, said), most, strict=True)):
            self.report.violations.append(Violation("I7", f"strangers: {proof}"))
        return proof

    async def _replace_head(self) -> str:
        """Kill the root and start the next one over the same journals. Raises `ServerEnded`."""
        pid, began_s = self.lab.kill_root(), trio.current_time()
        await self.lab.head.start(PORT)
        self.heads_s.append(trio.current_time() - began_s)
        return f"pid {pid} is gone, the next head serves after {self.heads_s[-1]:.1f} s"

    async def _poison(self, fault: HostFault) -> str:
        """Send a poison, and once more; what the log says. Raises `Void` if nobody died of it."""
        said, ends = len(self.lab.head.log()), list[StreamHistory]()
        body = self.scripts[0].body(input=f"I am the poison of fault {fault.number}.")
        body["runtime"]["seed"] = POISON_SEED + fault.token
        for again in ("", " again"):
            name = f"poison of fault {fault.number}{again}"
            history = StreamHistory(name, 0, Transport.SSE, trio.current_time())
            await read_once(self.lab.connection(), body, history)
            ends.append(history)
        lines = self.lab.head.log()[said:].splitlines()
        seen = [line for line in lines if ABORTED in line or REFUSED in line]
        if not any(ABORTED in line for line in seen):
            raise faults.Void(f"nobody died of it; its end was {ends[0].ending} {ends[0].message}")
        self.report.violations += [
            Violation("I13", f"{each.name}: its end was {each.code or each.ending}: {each.message}")
            for each in ends
            if each.code != QUARANTINED
        ]
        return "; ".join(seen)

    def _ways(self, ways: Ways, host: int) -> list[Way]:
        return {
            Ways.BOTH: self.lab.between(host),
            Ways.FROM_HOST: [(host, HEAD)],
            Ways.TO_HOST: [(HEAD, host)],
        }[ways]

    def _computing(self, host: int) -> list[int]:
        """Engines and workers of a host, without its spares."""
        return self._titled(host, COMPUTES)

    def _titled(self, host: int, title: re.Pattern[str]) -> list[int]:
        return [pid for pid in self.lab.network.pids(host) if title.match(title_of(pid))]

    async def _wait_ended(self, host: int, computing: Sequence[int]) -> None:
        seconds = EMPTY_S * self.options.patience
        what = f"engines of host {host} have ended"
        await wait_until(
            lambda: not set(computing) & set(self._computing(host)), what, seconds=seconds
        )

    async def restart(self, fault: HostFault) -> None:
        """Start a host again whose process is gone; any other joins again by itself."""
        if self.lab.joined[fault.host].popen.poll() is not None:
            await self.lab.network.heal(self.lab.network.ways(fault.host))
            self.lab.pythons.pop(fault.host, None)  # the next one is of this build
            self.lab.start_host(fault.host)

    async def kill_head(self) -> None:
        """The last act: no host computes on. Raises `NotInTime`."""
        outcome = FaultOutcome(len(self.report.outcomes), FaultKind.KILL_ROOT, "root")
        self.report.outcomes.append(outcome)
        computing = {host: self._computing(host) for host in self.lab.others}
        outcome.begin(trio.current_time())
        assert outcome.at_s is not None
        outcome.proof = await faults.kill(self.lab.head.pid)
        self.lab.head.popen.wait()
        for host, pids in computing.items():
            await self._wait_ended(host, pids)
        outcome.until_s = trio.current_time()
        outcome.recovery_s = outcome.until_s - outcome.at_s
        self.report.checks.update(["I5"])

    def sentences(self) -> list[str]:
        """Seconds until each kind was noticed, and by how much its streams were longer silent."""
        heads = [
            f"next heads served after p50/p99/max {percentiles_of(self.heads_s)} s, and all engines"
            f" of hosts {percentiles_of(self.joins_s)} s after that"
        ]
        return heads * bool(self.heads_s) + [
            f"{kind}: noticed p50/p99/max {percentiles_of(self.noticed_s.get(kind, []))} s,"
            f" silence beyond the undisturbed {percentiles_of(gaps_s)} s"
            for kind, gaps_s in self.gaps_s.items()
        ]


def plan_of_hosts(options: ChaosOptions, hosts: Sequence[int]) -> Sequence[HostFault]:
    """The faults of these options: hosts of another build are replaced first, one by one."""
    if not options.host_build:
        return make_host_plan(options.seed, options.count, hosts)
    upgrade = make_upgrade_plan(hosts)
    later = make_host_plan(options.seed, max(0, options.count - len(upgrade)), hosts)
    count = itertools.count(len(upgrade))
    return [*upgrade, *(attrs.evolve(fault, number=next(count)) for fault in later)]


async def run_hosts(
    options: ChaosOptions, plan: Sequence[HostFault] | None = None, *, engines: int = 1
) -> Report:
    """Run a plan, that of these options by default, to its end, over so many hosts, where the head
    has so many engines of its own.

    Raises `NoNamespaces`, and `ServerEnded` or `NotInTime` if the hosts do not even come up.
    Cancellation: nothing of it is left.
    """
    with tempfile.TemporaryDirectory(prefix="triolet-chaos-") as folder:
        async with open_host_lab(pathlib.Path(folder), options.hosts, seed=options.seed) as lab:
            lab.program = ("-m", CHAOS_SERVER, "")
            plan = plan or plan_of_hosts(options, lab.others)
            pythons = {HEAD: options.head_build, **dict.fromkeys(lab.others, options.host_build)}
            lab.pythons |= {host: python for host, python in pythons.items() if python}
            counts = Counter(str(fault.kind) for fault in plan)
            report = Report(options.seed, digest(plan), options.words_of_replay(), counts)
            campaign = HostCampaign(options, lab, report, engines)
            await campaign.begin()
            report.began_s = trio.current_time()
            try:
                await campaign.run(plan)
            except* NotInTime as group:  # what did not come back ends the campaign, in red
                report.violations.append(Violation("I8", str(single_error(group))))
            report.notes = [*report.notes, *campaign.sentences()]
            report.violations += log_violations(lab.head.log())
    report.seconds = trio.current_time() - report.began_s
    return report
