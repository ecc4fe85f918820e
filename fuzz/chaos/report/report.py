"""Report of a campaign, as a table for people and JSON for programs.

Sans-IO: counts and text.
"""

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from rich.table import Table

from ..checkers import Disturbance
from ..fault_plan import KILLS, Family, FaultKind
from ..history import Ending, StreamHistory, Violation
from .gaps import gap_lines, gaps_as_json, percentiles_of
from .growth import Growth
from .picture import picture
from .timeline import FaultMark, StreamLine, Timeline

# Of a target's command line, in a title.
TARGET_CHARACTERS = 60
DRAWN_AS = {
    Family.POISON: "kill",
    Family.STOP: "stop",
    Family.NETWORK: "network",
    Family.LINK: "network",
    Family.MEMORY: "want",
    Family.DESCRIPTORS: "want",
    Family.DISK: "want",
}


def family_of(kind: str) -> str:
    """As what it is drawn."""
    if kind in KILLS or kind.startswith("kill"):
        return "kill"
    family = next((each.family for each in FaultKind if each == kind), Family.CLIENT)
    return DRAWN_AS.get(family, "client")


def short_name(place: str) -> str:
    """ "e0/w1" of "engine 0/worker 1"; nothing of the root."""
    parts = (part.split() for part in place.split("/") if part != "root")
    return "/".join("".join(word[0] for word in words[:-1]) + words[-1] for words in parts)


# What the invariants are about, by the numbers that violations have.
INVARIANTS = {
    "I1": "each token once",
    "I2": "the same tokens",
    "I3": "one end for each request",
    "I4": "accounts and KV blocks",
    "I5": "no process left",
    "I6": "nothing leaked",
    "I7": "others undisturbed",
    "I8": "recovery in time",
    "I9": "bounded memory",
    "I10": "restarts by policy",
    "I11": "nothing from dead epochs",
    "I12": "aborts at once",
    "I13": "clear errors",
    "I14": "faults that took effect",
    "kept": "what was promised is kept",
}


@attrs.define(eq=False)
class FaultOutcome:
    """What became of one planned fault. `recovery_s` is None where nothing has to recover.

    It was made at `at_s`, and was over at `until_s`: then all was well again.
    """

    number: int
    kind: str
    place: str
    proof: str = ""
    void: str = ""
    # How often it was tried: other faults may get in its way.
    attempts: int = 1
    recovery_s: float | None = None
    violations: list[Violation] = attrs.field(factory=list)
    at_s: float | None = None
    until_s: float = 0.0
    # The longest silence of each stream that it interrupted.
    gaps_s: list[float] = attrs.field(factory=list)

    def begin(self, now: float) -> None:
        """It is made now."""
        self.at_s = self.until_s = now

    def note_interrupted(self, histories: Sequence[StreamHistory]) -> None:
        """Of these streams, those in whose silence it was, or that fell silent while it lasted."""
        since_s = math.inf if self.at_s is None else self.at_s
        for history in histories:
            met = [
                end_s - begin_s
                for begin_s, end_s in history.pauses
                if since_s <= end_s and begin_s <= self.until_s
            ]
            if met:
                self.gaps_s.append(max(met))

    def mark(self, began_s: float) -> FaultMark:
        """As it is drawn, of a campaign that began then."""
        assert self.at_s is not None
        names = " + ".join(map(short_name, filter(None, self.place.split(" + "))))
        label = f"{'kill' if self.kind.endswith('at once') else self.kind} {names}".rstrip()
        return FaultMark(
            label=f"{label}: {max(self.gaps_s):.1f} s" if self.gaps_s else label,
            family=family_of(self.kind),
            at_s=self.at_s - began_s,
            until_s=self.until_s - began_s,
            is_proven=not self.void,
        )


@attrs.define(eq=False)
class Report:
    """Everything that the command says at the end."""

    seed: int
    digest: str
    replay: Sequence[str]
    # {kind: how many are planned}
    planned: Mapping[str, int] = attrs.field(factory=dict)
    outcomes: list[FaultOutcome] = attrs.field(factory=list)
    # Those that belong to no single fault.
    violations: list[Violation] = attrs.field(factory=list)
    endings: Counter[str] = attrs.field(factory=Counter)
    # {fault kind: {ending or error code: streams}} of streams that a fault ended.
    touched: dict[str, Counter[str]] = attrs.field(factory=dict)
    # {invariant: how often it was checked}
    checks: Counter[str] = attrs.field(factory=Counter)
    tokens: int = 0
    # The command line of a server of others: then nothing is a violation.
    target: str = ""
    # Sentences that are to be said besides; of such a server, losses.
    notes: Sequence[str] = ()
    # Processes that were killed, where kills are at random.
    killed: int = 0
    growths: list[Growth] = attrs.field(factory=list)
    # Streams whose clients came back to them on other connections, and how often they did.
    resumed: int = 0
    returns: int = 0
    # Of each bystander that went on to its end, the longest silence: while a fault was on, and not.
    gaps_at_faults_s: list[float] = attrs.field(factory=list)
    gaps_in_calm_s: list[float] = attrs.field(factory=list)
    began_s: float = 0.0
    seconds: float = 0.0
    timeline: Timeline = attrs.field(factory=Timeline)
    # Of the outcomes, those whose streams are taken in.
    _drawn: int = attrs.field(default=0, init=False)

    def draw_streams(self, histories: Sequence[StreamHistory]) -> None:
        """These streams are over, and what interrupted them: all that was since the last call."""
        for outcome in self.outcomes[self._drawn :]:
            outcome.note_interrupted(histories)
        self._drawn = len(self.outcomes)
        self.timeline.add(StreamLine.of(each, self.began_s) for each in histories)

    def count_stream(self, history: StreamHistory, kind: str | None) -> None:
        """Take in one stream that is over; `kind` is the fault that ended it, if one did."""
        ending = history.ending or Ending.HANGING
        self.endings[ending] += 1
        self.tokens += len(history.token_ids)
        self.resumed += history.returns > 0
        self.returns += history.returns
        if kind is not None:
            self.touched.setdefault(kind, Counter())[history.code or str(ending)] += 1

    def count_gap(self, history: StreamHistory, disturbances: Sequence[Disturbance]) -> None:
        """Take in the longest silence of a bystander that is over."""
        if history.ending is Ending.FINISHED:
            begun_s = history.gap_ended_s - history.gap_s
            met = any(d.meets(begun_s, history.gap_ended_s) for d in disturbances)
            (self.gaps_at_faults_s if met else self.gaps_in_calm_s).append(history.gap_s)

    def all_violations(self) -> list[Violation]:
        """Of the faults and of the whole."""
        return [*self.violations, *(v for each in self.outcomes for v in each.violations)]

    def voids(self) -> int:
        """Faults without proof."""
        return sum(1 for each in self.outcomes if each.void)

    def _made_again(self) -> int:
        """Faults that took more than one attempt."""
        return sum(1 for each in self.outcomes if each.attempts > 1)

    def is_green(self) -> bool:
        """No violation, and every fault has happened."""
        return not self.all_violations() and not self.voids()

    def as_json(self) -> dict[str, Any]:
        """All of it, in plain values."""
        return {
            "seed": self.seed,
            "plan": self.digest,
            "green": self.is_green(),
            "faults": len(self.outcomes),
            "void": self.voids(),
            "made_again": self._made_again(),
            "seconds": round(self.seconds, 1),
            "killed": self.killed,
            "growth": [attrs.asdict(each) for each in self.growths],
            "tokens_checked": self.tokens,
            "streams": dict(self.endings),
            "resumed": self.resumed,
            "returns": self.returns,
            "checks": dict(sorted(self.checks.items())),
            "gaps_at_faults": gaps_as_json(self.gaps_at_faults_s),
            "gaps_in_calm": gaps_as_json(self.gaps_in_calm_s),
            "kinds": {row["kind"]: row for row in self.rows()},
            "violations": [attrs.asdict(v) for v in self.all_violations()],
            "made": [self._made(each) for each in self.outcomes],
            "target": self.target,
            "notes": list(self.notes),
            "replay": list(self.replay),
        }

    def _made(self, outcome: FaultOutcome) -> dict[str, Any]:
        """One fault; times since the campaign began."""
        at_s = None if outcome.at_s is None else outcome.at_s - self.began_s
        values = attrs.asdict(outcome)
        return {**values, "at_s": at_s, "until_s": outcome.until_s - self.began_s}

    def rows(self) -> list[dict[str, Any]]:
        """One row for each kind that was planned or made."""
        kinds = dict.fromkeys([*self.planned, *(each.kind for each in self.outcomes)])
        return [
            self._row(kind, [each for each in self.outcomes if each.kind == kind]) for kind in kinds
        ]

    def _row(self, kind: str, mine: Sequence[FaultOutcome]) -> dict[str, Any]:
        gaps_s = [gap_s for each in mine for gap_s in each.gaps_s]
        times_s = [each.recovery_s for each in mine if each.recovery_s is not None]
        return {
            "kind": kind,
            "planned": max(self.planned.get(kind, 0), len(mine)),
            "done": sum(1 for each in mine if each.at_s is not None),
            "proven": sum(1 for each in mine if each.proof and not each.void),
            "interrupted": len(gaps_s),
            "gaps_s": percentiles_of(gaps_s),
            "streams": dict(self.touched.get(kind, Counter())),
            "recovery_s": percentiles_of(times_s),
            "violations": sum(len(each.violations) for each in mine),
        }

    def table(self) -> Table:
        """The rows for people."""
        table = Table(title=f"{self.title()} in {self.seconds:.0f} s")
        for head in ("fault", "planned", "done", "proven", "interrupted"):
            table.add_column(head)
        table.add_column("gaps p50 / p99 / max, s")
        table.add_column("streams it ended")
        table.add_column("recovery p50 / p99 / max, s")
        table.add_column("violations")
        for row in self.rows():
            counts = (str(row[name]) for name in ("planned", "done", "proven", "interrupted"))
            gaps, recovery = (
                " / ".join(f"{each:.2f}" for each in row[name]) or "-"
                for name in ("gaps_s", "recovery_s")
            )
            ended = ", ".join(f"{count} {what}" for what, count in sorted(row["streams"].items()))
            table.add_row(
                row["kind"], *counts, gaps, ended or "-", recovery, str(row["violations"])
            )
        return table

    def running_line(self, now: float) -> str:
        """How far it is, in one line."""
        streams, found = sum(self.endings.values()), len(self.all_violations())
        made = sum(1 for each in self.outcomes if each.at_s is not None)
        planned = f" of {total}" if (total := sum(self.planned.values())) else ""
        longest_s = max((gap_s for each in self.outcomes for gap_s in each.gaps_s), default=0.0)
        return (
            f"{(now - self.began_s) / 60:.0f} min: {made}{planned} faults"
            f" ({self.killed} processes killed, {self.voids()} void), {streams} streams,"
            f" {self.tokens} tokens, {self.returns} returns, longest gap {longest_s:.1f} s,"
            f" {found} violations"
        )

    def title(self) -> str:
        """Which campaign it is."""
        if self.target:
            return f"{self.target[:TARGET_CHARACTERS]}: seed {self.seed}, {self.killed} kills"
        return f"seed {self.seed}, plan {self.digest}: {len(self.outcomes)} faults"

    def picture(self) -> str:
        """An SVG document of streams and faults over time."""
        self.timeline.marks = [
            each.mark(self.began_s) for each in self.outcomes if each.at_s is not None
        ]
        streams, found = sum(self.endings.values()), len(self.all_violations())
        bad = f"!{found} violations, {self.voids()} faults without proof"
        verdict = "every invariant held, every fault was proven" if self.is_green() else bad
        seen = f"{streams} streams, {self.tokens} tokens compared, {self.resumed} streams resumed"
        sentences = self.notes if self.target else [seen, verdict]
        return picture(self.timeline, f"Chaos, {self.title()}", sentences)

    def sentences(self) -> list[str]:
        """What the table does not say; the last line is the verdict."""
        streams = ", ".join(f"{count} {what}" for what, count in sorted(self.endings.items()))
        checks = ", ".join(
            f"{count} of {INVARIANTS[name]} ({name})" for name, count in sorted(self.checks.items())
        )
        again = f"{self._made_again()} were made again, as others got in their way"
        lines = [
            f"streams: {streams}; {self.tokens} tokens compared",
            f"resumed: {self.resumed} streams, whose clients came back {self.returns} times",
            f"checks: {checks}",
            *map(str, self.growths),
            *_gap_sentences("while a fault was on", self.gaps_at_faults_s),
            *_gap_sentences("in calm", self.gaps_in_calm_s),
            *self.notes,
            *(f"void: fault {o.number} ({o.kind}): {o.void}" for o in self.outcomes if o.void),
            *(f"VIOLATION {v.invariant}: {v.evidence}" for v in self.all_violations()),
        ]
        if self.target:
            return lines
        if self.is_green():
            return [*lines, f"green: every invariant held, every fault was proven; {again}"]
        return [*lines, f"RED; the same schedule again: {shlex.join(self.replay)}"]


def _gap_sentences(when: str, gaps_s: Sequence[float]) -> list[str]:
    head = f"longest silences of bystanders {when}: p50/p99/max {percentiles_of(gaps_s)} s"
    return [head, *gap_lines(gaps_s)] if gaps_s else []
