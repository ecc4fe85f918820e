"""Merging of reports: one campaign in several sittings, each with a seed and a server of its own.

Sans-IO: the JSON of reports in, one report out. Sittings must be of the same code, shape and
profile, and no two of one seed: else their sum would be of nothing.
"""

import json
from collections import Counter
from collections.abc import Sequence

import attrs
import msgspec

from ..history import Violation
from .growth import Growth, mean_growth
from .report import FaultOutcome, Report
from .timeline import STRIP_S, StreamLine

# What may differ between the commands of two sittings, each with its value.
SITTING_WORDS = ("--seed", "--faults")


@attrs.frozen
class CannotMerge(Exception):
    """These reports are of no one campaign; `reason` says why."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@attrs.frozen(kw_only=True)
class SavedFault:
    """One fault, as the report's JSON has it; times since its campaign began."""

    number: int
    kind: str
    place: str
    attempts: int
    proof: str
    void: str
    at_s: float | None
    until_s: float
    recovery_s: float | None
    gaps_s: list[float]
    violations: list[Violation]

    def outcome(self, offset_s: float) -> FaultOutcome:
        """Of a campaign that began at 0, in which its own began then."""
        made = FaultOutcome(self.number, self.kind, self.place, self.proof, self.void)
        made.attempts, made.recovery_s = self.attempts, self.recovery_s
        made.at_s = None if self.at_s is None else self.at_s + offset_s
        made.until_s = self.until_s + offset_s
        made.gaps_s, made.violations = self.gaps_s, self.violations
        return made


@attrs.frozen(kw_only=True)
class SavedReport:
    """Of a report's JSON, what its sum with others needs."""

    seed: int
    plan: str
    code: str
    replay: list[str]
    planned: dict[str, int]
    seconds: float
    killed: int
    tokens_checked: int
    resumed: int
    returns: int
    streams: dict[str, int]
    touched: dict[str, dict[str, int]]
    checks: dict[str, int]
    growth: list[Growth]
    gaps_at_faults_s: list[float]
    gaps_in_calm_s: list[float]
    made: list[SavedFault]
    violations: list[Violation]
    timeline: list[StreamLine]
    sittings: list[str]

    @property
    def shape(self) -> list[str]:
        """Its command without what makes it this sitting."""
        words = self.replay
        return [
            word
            for place, word in enumerate(words)
            if not {word, words[place - 1] if place else ""} & set(SITTING_WORDS)
        ]


def read_report(data: bytes) -> SavedReport:
    """Of the file that `--json` has written. Raises `CannotMerge`."""
    try:
        return msgspec.convert(json.loads(data), SavedReport)
    except ValueError as error:  # of msgspec, too
        raise CannotMerge(f"is no report of a campaign: {error}") from None


def merged(parts: Sequence[SavedReport]) -> Report:
    """Their sum, one after the other. Raises `CannotMerge`."""
    first = parts[0]
    for part in parts:
        if part.sittings:
            raise CannotMerge("one of the reports is a sum: merge the reports of its sittings")
        if part.code != first.code:
            raise CannotMerge(f"seed {part.seed} ran other code than seed {first.seed}")
        if part.shape != first.shape:
            raise CannotMerge(f"{part.shape} is another campaign than {first.shape}")
    if len({part.seed for part in parts}) < len(parts):
        raise CannotMerge("two reports have the same seed: the same kills would count twice")
    planned: Counter[str] = Counter()
    report = Report(first.seed, first.plan, first.replay, planned, code=first.code)
    places: dict[str, list[Growth]] = {}
    offset_s = 0.0
    for part in parts:
        for life in part.growth:
            places.setdefault(life.process.partition(" (pid ")[0], []).append(life)
        planned.update(part.planned)
        _add(report, part, offset_s)
        # The strips of its picture stay strips.
        offset_s += STRIP_S * (1 + part.seconds // STRIP_S)
    for place, lives in places.items():
        mean = mean_growth(place, lives)
        if mean is not None:
            report.growths.append(mean)
            report.violations += [each for each in mean.judge() if each.invariant == "I9"]
    return report


def _add(report: Report, part: SavedReport, offset_s: float) -> None:
    report.sittings.append(
        f"seed {part.seed}, plan {part.plan}: {part.killed} killed in {part.seconds:.0f} s"
    )
    report.seconds += part.seconds
    report.killed += part.killed
    report.tokens += part.tokens_checked
    report.resumed += part.resumed
    report.returns += part.returns
    report.endings.update(part.streams)
    report.checks.update(part.checks)
    for kind, counts in part.touched.items():
        report.touched.setdefault(kind, Counter()).update(counts)
    report.gaps_at_faults_s += part.gaps_at_faults_s
    report.gaps_in_calm_s += part.gaps_in_calm_s
    report.growths += [
        attrs.evolve(g, process=f"seed {part.seed} {g.process}") for g in part.growth
    ]
    report.outcomes += [each.outcome(offset_s) for each in part.made]
    # Those of faults are listed behind all others.
    others = len(part.violations) - sum(len(each.violations) for each in part.made)
    report.violations += [
        attrs.evolve(each, evidence=f"seed {part.seed}: {each.evidence}")
        for each in part.violations[:others]
    ]
    report.timeline.add(_moved(each, part.seed, offset_s) for each in part.timeline)


def _moved(line: StreamLine, seed: int, offset_s: float) -> StreamLine:
    return attrs.evolve(
        line,
        name=f"seed {seed}: {line.name}",
        begin_s=line.begin_s + offset_s,
        end_s=line.end_s + offset_s,
        pauses=[(begin_s + offset_s, end_s + offset_s) for begin_s, end_s in line.pauses],
        returns=[at_s + offset_s for at_s in line.returns],
    )
