"""Report of a campaign, as a table for people and JSON for programs.

Sans-IO: counts and text.
"""

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs
from rich.table import Table

from ...api.commands.figures import percentile
from .checkers import Disturbance
from .fault_plan import FaultKind
from .gaps import gap_lines, gaps_as_json, percentiles_of
from .history import Ending, StreamHistory, Violation

# What is told of recovery times.
PERCENTS = (50, 99, 100)


@attrs.define(eq=False)
class FaultOutcome:
    """What became of one planned fault. `recovery_s` is None where nothing has to recover."""

    number: int
    kind: FaultKind
    place: str
    proof: str = ""
    void: str = ""
    # How often it was tried: other faults may get in its way.
    attempts: int = 1
    recovery_s: float | None = None
    violations: list[Violation] = attrs.field(factory=list)


@attrs.define(eq=False)
class Report:
    """Everything that the command says at the end."""

    seed: int
    digest: str
    replay: Sequence[str]
    outcomes: list[FaultOutcome] = attrs.field(factory=list)
    # Those that belong to no single fault.
    violations: list[Violation] = attrs.field(factory=list)
    endings: Counter[str] = attrs.field(factory=Counter)
    # {fault kind: {ending or error code: streams}} of streams that a fault ended.
    touched: dict[FaultKind, Counter[str]] = attrs.field(factory=dict)
    # {invariant: how often it was checked}
    checks: Counter[str] = attrs.field(factory=Counter)
    tokens: int = 0
    # Streams whose clients came back to them on other connections, and how often they did.
    resumed: int = 0
    returns: int = 0
    # Of each bystander that went on to its end, the longest silence: while a fault was on, and not.
    gaps_at_faults_s: list[float] = attrs.field(factory=list)
    gaps_in_calm_s: list[float] = attrs.field(factory=list)
    seconds: float = 0.0

    def count_stream(self, history: StreamHistory, kind: FaultKind | None) -> None:
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
            "tokens_checked": self.tokens,
            "streams": dict(self.endings),
            "resumed": self.resumed,
            "returns": self.returns,
            "checks": dict(sorted(self.checks.items())),
            "gaps_at_faults": gaps_as_json(self.gaps_at_faults_s),
            "gaps_in_calm": gaps_as_json(self.gaps_in_calm_s),
            "kinds": {row["kind"]: row for row in self.rows()},
            "violations": [attrs.asdict(v) for v in self.all_violations()],
            "voids": [
                {"number": each.number, "kind": each.kind, "reason": each.void}
                for each in self.outcomes
                if each.void
            ],
            "proofs": [
                {"number": each.number, "kind": each.kind, "place": each.place, "proof": each.proof}
                for each in self.outcomes
                if not each.void
            ],
            "replay": shlex.join(self.replay),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row for each kind that was planned."""
        rows = []
        for kind in FaultKind:
            mine = [each for each in self.outcomes if each.kind is kind]
            if mine:
                times = sorted(o.recovery_s for o in mine if o.recovery_s is not None)
                rows.append(
                    {
                        "kind": str(kind),
                        "planned": len(mine),
                        "proven": sum(1 for each in mine if not each.void),
                        "streams": dict(self.touched.get(kind, Counter())),
                        "recovery_s": [round(percentile(times, p), 2) for p in PERCENTS]
                        if times
                        else [],
                        "violations": sum(len(each.violations) for each in mine),
                    }
                )
        return rows

    def table(self) -> Table:
        """The rows for people."""
        title = f"seed {self.seed}, plan {self.digest}: {len(self.outcomes)} faults"
        table = Table(title=f"{title} in {self.seconds:.0f} s")
        for head in ("fault", "planned", "proven", "streams it ended"):
            table.add_column(head)
        table.add_column("recovery p50 / p99 / max, s")
        table.add_column("violations")
        for row in self.rows():
            ended = ", ".join(f"{count} {what}" for what, count in sorted(row["streams"].items()))
            recovery = " / ".join(f"{each:.2f}" for each in row["recovery_s"]) or "-"
            counts = (str(row["planned"]), str(row["proven"]))
            table.add_row(row["kind"], *counts, ended or "-", recovery, str(row["violations"]))
        return table

    def sentences(self) -> list[str]:
        """What the table does not say; the last line is the verdict."""
        streams = ", ".join(f"{count} {what}" for what, count in sorted(self.endings.items()))
        checks = ", ".join(f"{name} {count}" for name, count in sorted(self.checks.items()))
        again = f"{self._made_again()} were made again, as others got in their way"
        lines = [
            f"streams: {streams}; {self.tokens} tokens compared",
            f"resumed: {self.resumed} streams, whose clients came back {self.returns} times",
            f"checks: {checks}",
            *_gap_sentences("while a fault was on", self.gaps_at_faults_s),
            *_gap_sentences("in calm", self.gaps_in_calm_s),
            *(f"void: fault {o.number} ({o.kind}): {o.void}" for o in self.outcomes if o.void),
            *(f"VIOLATION {v.invariant}: {v.evidence}" for v in self.all_violations()),
        ]
        if self.is_green():
            return [*lines, f"green: every invariant held, every fault was proven; {again}"]
        return [*lines, f"RED; the same schedule again: {shlex.join(self.replay)}"]


def _gap_sentences(when: str, gaps_s: Sequence[float]) -> list[str]:
    head = f"longest silences of bystanders {when}: p50/p99/max {percentiles_of(gaps_s)} s"
    return [head, *gap_lines(gaps_s)] if gaps_s else []
