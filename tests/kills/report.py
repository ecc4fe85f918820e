"""Report of a kill campaign: kills of each kind of process apart, gaps, answers compared.

Sans-IO: counts and text.
"""

import re
from collections.abc import Sequence
from typing import Any

import attrs

from triolet.fuzz.chaos.report.gaps import gap_lines, gaps_as_json, percentiles_of

# In names of places; a worker's has its engine's before it.
RANKS = re.compile(r"\w+ \d+/| \d+")
# A kill counts only where so many streams are between these tokens.
STREAMS_MIN, TOKEN_MIN, TOKEN_MAX = 8, 20, 180
# Of answers that were not as they should be.
WRONG_SHOWN = 20


@attrs.define
class Kill:
    """One SIGKILL: what died, what it met, and how long what it met was silent."""

    place: str
    proof: str
    # Streams under way between the two tokens that count, of a frontend those of its own; and the
    # requests that it held.
    in_the_midst: int
    held: int
    # {stream: its longest silence from then on, to the next kill}, of all that were under way.
    gaps: dict[str, float] = attrs.field(factory=dict)
    recovery_s: float | None = None
    # Streams that it interrupted, where that is known: their connections broke.
    hit: set[str] | None = None
    began_s: float = 0.0

    @property
    def kind(self) -> str:
        """What died, without ranks: "worker", or "frontend with engine"."""
        return RANKS.sub("", self.place)

    @property
    def counts(self) -> bool:
        """Whether it met enough streams."""
        return self.in_the_midst >= STREAMS_MIN

    @property
    def interrupted(self) -> int:
        """Streams of the process that was hit, no more than clients saw under way."""
        return min(self.held, len(self.gaps)) if self.hit is None else len(self.hit)

    @property
    def interrupted_gaps_s(self) -> list[float]:
        """From the kill to the next token of each stream that was hit.

        Which stream was an engine's cannot be seen from outside: then these are the longest
        silences, as many as were hit, which cannot be worse.
        """
        if self.hit is not None:
            # One that was hit between two streams has no gap.
            return [self.gaps[name] for name in sorted(self.hit & self.gaps.keys())]
        return sorted(self.gaps.values(), reverse=True)[: self.interrupted]

    @property
    def bystander_gaps_s(self) -> list[float]:
        """The other silences."""
        if self.hit is not None:
            return [gap for name, gap in self.gaps.items() if name not in self.hit]
        return sorted(self.gaps.values(), reverse=True)[self.interrupted :]


@attrs.define
class KillReport:
    """All that the command says."""

    engines: int
    kills: list[Kill] = attrs.field(factory=list)
    # Answers compared, tokens in them, and those that were not as they should be.
    compared: int = 0
    output_tokens: int = 0
    wrong: list[str] = attrs.field(factory=list)
    # Other faults: processes that do not come back, what the log must not have.
    broken: list[str] = attrs.field(factory=list)
    seconds: float = 0.0
    # Connections that broke in the midst of answers, and documented refusals, as clients saw them.
    breaks: int = 0
    refusals: int = 0
    # Requests of clients, those sent again for want of a first event, those that frontends sent
    # again to engines, and what engines took in (None: engines died, whose counts are lost).
    asked: int = 0
    asked_again: int = 0
    replays: int = 0
    added: int | None = None

    @property
    def is_green(self) -> bool:
        """No answer was another, none was missing."""
        return not self.wrong and not self.broken and self.compared > 0

    def _kinds(self) -> list[str]:
        return sorted({kill.kind for kill in self.kills})

    def counted(self, kind: str = "") -> list[Kill]:
        """Kills that count, of one kind of process or all."""
        return [kill for kill in self.kills if kill.counts and kind in ("", kill.kind)]

    def as_json(self) -> dict[str, Any]:
        """In plain values."""
        return {
            "engines": self.engines,
            "green": self.is_green,
            "answers": self.compared,
            "output_tokens": self.output_tokens,
            "wrong": self.wrong,
            "broken": self.broken,
            "seconds": round(self.seconds, 1),
            "kills": {kind: self._row(self.counted(kind)) for kind in self._kinds()},
            "connections": {"broke": self.breaks, "refused": self.refusals},
            "requests": {
                "asked": self.asked,
                "asked_again": self.asked_again,
                "replayed": self.replays,
                "added": self.added,
            },
            "not_counted": len(self.kills) - len(self.counted()),
        }

    def _row(self, kills: Sequence[Kill]) -> dict[str, Any]:
        recoveries = [kill.recovery_s for kill in kills if kill.recovery_s is not None]
        return {
            "kills": len(kills),
            "interrupted": sum(kill.interrupted for kill in kills),
            "recovery_s": percentiles_of(recoveries),
            "gaps": gaps_as_json([gap for kill in kills for gap in kill.interrupted_gaps_s]),
            "bystanders": gaps_as_json([gap for kill in kills for gap in kill.bystander_gaps_s]),
        }

    def lines(self) -> list[str]:
        """For people; the last one is the verdict."""
        lines = [
            f"{self.engines} engines, {len(self.counted())} kills that count of {len(self.kills)},"
            f" {sum(kill.interrupted for kill in self.counted())} streams interrupted,"
            f" {self.seconds:.0f} s",
            f"clients: {self.breaks} breaks of connections under way, {self.refusals} refusals that"
            f" asked to come again; {self.asked} requests, {self.asked_again} of them sent again"
            f" by clients, {self.replays} by frontends,"
            f" {'?' if self.added is None else self.added} executed",
        ]
        for kind in self._kinds():
            lines += self._lines_of(kind)
        lines += [f"BROKEN {each}" for each in self.broken]
        lines += [f"WRONG {each}" for each in self.wrong[:WRONG_SHOWN]]
        if len(self.wrong) > WRONG_SHOWN:
            lines.append(f"WRONG … and {len(self.wrong) - WRONG_SHOWN} more")
        verdict = "green" if self.is_green else "RED"
        return [
            *lines,
            f"{verdict}: {self.compared} answers, {self.output_tokens} tokens compared,"
            f" {len(self.wrong)} not as the undisturbed server's",
        ]

    def _lines_of(self, kind: str) -> list[str]:
        kills = self.counted(kind)
        if not kills:
            return []
        row = self._row(kills)
        lines = [
            f"{kind}: {row['kills']} times, {row['interrupted']} streams interrupted;"
            f" whole again after p50/p99/max {row['recovery_s']} s"
        ]
        for name, gaps in (
            ("interrupted", [gap for kill in kills for gap in kill.interrupted_gaps_s]),
            ("bystanders", [gap for kill in kills for gap in kill.bystander_gaps_s]),
        ):
            lines.append(f"  gaps of {name}: p50/p99/max {percentiles_of(gaps)} s")
            lines += [f"  {line}" for line in gap_lines(gaps)]
        return lines
