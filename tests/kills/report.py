"""Kills of a campaign under the SDK: what each met, and how long what it met was silent.

Sans-IO: counts and silences in; a row of chaos's report out.
"""

import re

import attrs

from triolet.fuzz.chaos.report.report import FaultOutcome

# In names of places; a worker's has its engine's before it.
RANKS = re.compile(r"\w+ \d+/| \d+")
# A kill counts only where so many streams are between these tokens.
STREAMS_MIN, TOKEN_MIN, TOKEN_MAX = 8, 20, 180


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
    streams_min: int = STREAMS_MIN

    @property
    def kind(self) -> str:
        """What died, without ranks: "worker", or "frontend with engine"."""
        return RANKS.sub("", self.place)

    @property
    def counts(self) -> bool:
        """Whether it met enough streams."""
        return self.in_the_midst >= self.streams_min

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

    def outcome(self, number: int) -> FaultOutcome:
        """As a row of the report; one that met few streams is in a row of its own."""
        few = "" if self.counts else ", few streams"
        made = FaultOutcome(number, f"kill {self.kind}{few}", self.place, self.proof or "its code")
        made.begin(self.began_s)
        made.recovery_s, made.gaps_s = self.recovery_s, self.interrupted_gaps_s
        made.until_s = self.began_s + (self.recovery_s or 0.0)
        return made
