"""Storm of kills: processes of a run die at random moments, while others are being restarted.

A shell: `kill_plan` says which tiers die and when. Each death is proven by pid and start time, as
every fault is; it is over when another process serves at its place. Clients are those of chaos;
streams, blocks, descriptors and tasks are judged when the storm has a pause (`StormPlan.run`).
"""

import contextlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence

import attrs
import trio

from triolet.fuzz.chaos import faults
from triolet.fuzz.chaos.campaign import Campaign
from triolet.fuzz.chaos.fault_run import RECOVERY_S, FaultRunner
from triolet.fuzz.chaos.history import Violation
from triolet.fuzz.chaos.keepsakes import Keepsakes
from triolet.fuzz.chaos.load import Bystanders
from triolet.fuzz.chaos.options import PROGRAM, ChaosOptions
from triolet.fuzz.chaos.report.report import FaultOutcome
from triolet.fuzz.chaos.served_run import epochs_of, is_up
from triolet.fuzz.observers import NotInTime, state_of, wait_until
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.runtime.control.client import ControlCallFailed

from .kill_plan import (
    SERVING,
    Kill,
    Tier,
    count_by_kind,
    joined,
    make_kills,
    rest_of,
    tier_of,
    victims_of,
)
from .lives import Lives

# Between two quiet looks: a minute of kills.
SEGMENT_KILLS = 100
STREAMS_HTTP, STREAMS_SOCKETS = 4, 4
# Between two looks at the tree, whose every process is asked.
LOOK_S = 0.2
# For a process of a tier that has just died, and between two looks for one.
VICTIM_S, CHOICE_S = 15.0, 0.02
ATTEMPTS_MAX = 10
# Of one place without coming back.
DEATHS_MAX = 3
# Processes die in their boot, too: without the pause of seconds that a broken child has.
NO_BACKOFF = ("--backoff-max", "0.2")


@attrs.frozen(kw_only=True)
class StormOptions(ChaosOptions):
    """A campaign of chaos whose faults are kills at random."""

    faults: int = 10_000

    def words_of_serve(self) -> list[str]:
        return [*ChaosOptions.words_of_serve(self), *NO_BACKOFF]

    def program(self) -> Sequence[str]:
        return PROGRAM

    def keys(self) -> list[str]:
        """One will do: kills from outside are put down to no client."""
        return ["chaos"]

    def words_of_replay(self) -> list[str]:
        return [
            *("python", "-m", "tests.kills", "--clients", "raw", "--seed", str(self.seed)),
            *("--kills", str(self.count), "--engines", str(self.engines)),
            *("--frontends", str(self.frontends)),
        ]


@attrs.frozen
class StormPlan:
    """Kills of a storm, as a plan of chaos."""

    faults: Sequence[Kill]

    @staticmethod
    def of(options: StormOptions) -> "StormPlan":
        """Drawn by the seed of these options."""
        ranks = min(options.engines, options.frontends)
        return StormPlan(make_kills(options.seed, options.count, ranks=ranks))

    def counts(self) -> Mapping[str, int]:
        """Moments by row of the report."""
        return count_by_kind(self.faults)

    async def run(self, campaign: Campaign) -> None:
        """All of them, with a quiet look every so often. Raises `NotInTime`."""
        lives, report = Lives(), campaign.report
        for start in range(0, len(self.faults), SEGMENT_KILLS):
            if campaign.is_late():
                break
            await _run_segment(campaign, self.faults[start : start + SEGMENT_KILLS])
            await campaign.check_quiet()
            await campaign.wait_spares()
            lives.take(await campaign.served.processes(), trio.current_time())
            report.growths = lives.growths()
            campaign.show_running()
        report.violations += [found for growth in report.growths for found in growth.judge()]
        report.checks.update({"I6": len(report.growths), "I9": len(report.growths)})


@attrs.define(eq=False)
class Storm:
    """Kills of one segment. `runner` remembers what they explain."""

    campaign: Campaign
    runner: FaultRunner
    # Lives of engines and frontends that were ended, and of all others.
    lives: int = attrs.field(default=0, init=False)
    others: int = attrs.field(default=0, init=False)
    _found: Mapping[str, ProcessTree] = attrs.field(factory=dict, init=False)
    # What has died and is not back: {place: pid}.
    _open: list[tuple[FaultOutcome, dict[str, int]]] = attrs.field(factory=list, init=False)

    async def run(self, kills: Sequence[Kill]) -> None:
        """All of them, until all is back. Raises `NotInTime`."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch)
            left: list[Kill] = []
            for kill in kills:
                await trio.sleep(kill.wait_s)
                if self.campaign.is_late():
                    break
                left += await self._kill(kill)
            while left and not self.campaign.is_late():
                later, left = joined(left)
                left += await self._kill(later)
            bound_s = 2 * RECOVERY_S * self.campaign.options.patience
            await wait_until(lambda: not self._open, "what has died is back", seconds=bound_s)
            nursery.cancel_scope.cancel("all is back")

    async def _kill(self, kill: Kill) -> list[Kill]:
        """Of who is alive, as far as is known; others if one had died meanwhile.

        What is left of it: those tiers of which no process was there.
        """
        victims = await self._victims(kill)
        if not victims:
            return [kill]
        outcome = FaultOutcome(kill.number, kill.kind, "")
        self.campaign.report.outcomes.append(outcome)
        for outcome.attempts in range(1, ATTEMPTS_MAX + 1):
            outcome.place = " + ".join(victims)
            outcome.begin(trio.current_time())
            try:
                outcome.proof = await faults.kill(*victims.values())
            except faults.Void as void:
                outcome.void = str(void)
                await trio.sleep(LOOK_S)
                victims = await self._victims(kill) or victims
                continue
            outcome.void = ""
            self._open.append((outcome, victims))
            held = [place for place in victims if tier_of(place) in (Tier.ENGINE, Tier.FRONTEND)]
            self.lives += len(held)
            self.others += len(victims) - len(held)
            self.campaign.report.killed += len(victims)
            break
        return rest_of(kill, list(victims))

    async def _victims(self, kill: Kill) -> dict[str, int]:
        """{place: pid} of those of its tiers that are there.

        Who serves is waited for, and so are spares once nothing else is left to kill. What boots
        dies, too, but not for ever: who has died three times has to come back first, so that kills
        are no faster than this machine restarts.
        """
        chosen: list[str] = []
        wanted = sum(kill.is_late or tier in SERVING for tier in kill.tiers)

        def is_chosen() -> bool:
            alive = [
                place for place, process in self._found.items() if state_of(process.pid) in "RSD"
            ]
            deaths = Counter(place for _, victims in self._open for place in victims)
            tired = [place for place, count in deaths.items() if count >= DEATHS_MAX]
            chosen[:] = victims_of(kill, alive, tired)
            return len(chosen) >= wanted

        with contextlib.suppress(NotInTime):
            await wait_until(is_chosen, "a process to kill", seconds=VICTIM_S, look_s=CHOICE_S)
        return {place: self._found[place].pid for place in chosen}

    async def _watch(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Look at the tree again and again, and note who is back. Raises `NotInTime`."""
        while True:
            try:
                self._found = await self.campaign.served.processes()
            except ControlCallFailed:
                await trio.sleep(LOOK_S)
                continue
            if self._found:
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
            self._open = [each for each in self._open if not self._is_back(*each)]
            await trio.sleep(LOOK_S)

    def _is_back(self, outcome: FaultOutcome, victims: Mapping[str, int]) -> bool:
        assert outcome.at_s is not None
        now, bound_s = trio.current_time(), RECOVERY_S * self.campaign.options.patience
        needed = [place for place in victims if tier_of(place) in SERVING]
        for place in needed:
            process = self._found.get(place)
            if process is None or process.pid == victims[place] or not is_up(process):
                if now - outcome.at_s > bound_s:
                    raise NotInTime(f"{place} is back after its death", bound_s)
                return False
        outcome.until_s, outcome.recovery_s = now, now - outcome.at_s if needed else None
        for place in needed:
            self.runner.remember(outcome.kind, outcome.at_s, place, is_death="/" not in place)
        return True


async def _run_segment(campaign: Campaign, kills: Sequence[Kill]) -> None:
    served, options = campaign.served, campaign.options
    chance, key = random.Random(f"{options.seed}/{kills[0].number}"), options.keys()[-1]
    keepsakes = Keepsakes(served.port, key, not options.unlike)
    await keepsakes.make()
    before = epochs_of(await served.processes())
    bystanders = Bystanders(served.port, chance, key, options.patience)
    runner = FaultRunner(served, options.places(), options.patience)
    storm = Storm(campaign, runner)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bystanders.run, STREAMS_HTTP, STREAMS_SOCKETS)
            await storm.run(kills)
            bystanders.stopping = True
    finally:
        campaign.report.draw_streams(bystanders.histories)
    await campaign.wait_whole()
    campaign.judge(bystanders.histories, runner)
    after = epochs_of(await served.processes())
    campaign.report.violations += [
        *await keepsakes.check(),
        *judge_spawns(before, after, storm.lives, storm.others),
    ]
    campaign.report.checks.update(["kept", "I10"])


def judge_spawns(
    before: Mapping[str, int], after: Mapping[str, int], lives: int, others: int
) -> list[Violation]:
    """I10: each death of an engine or frontend took one spawn. One of a spare may have, too, which
    may have been a successor by then, and one of a worker, whose engine may have been in its boot.
    """
    spawned = max(after.values()) - max(before.values())
    if lives <= spawned <= lives + others:
        return []
    evidence = f"{spawned} engines and frontends began after {lives} deaths, and {others} of others"
    return [Violation("I10", evidence)]
