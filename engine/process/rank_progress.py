"""How far several ranks are that start side by side: as far as the one that is furthest behind.

Sans-IO: reports in, what to tell out. All ranks go through the same phases in the same order; which
phases there are is learnt from the ranks, so this must not know what they mean.
"""

import attrs

from ..messages import BootPhase


@attrs.define(eq=False)
class RankProgress:
    """Merges the reports of `ranks` ranks into those of one."""

    ranks: int
    # In the order in which some rank first began them; every rank begins in the first.
    _phases: list[str] = attrs.field(factory=lambda: [str(BootPhase.START)], init=False)
    # Of each rank: which phase it is in, and how far. Never goes back.
    _places: list[tuple[int, float]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._places = [(0, 0.0)] * self.ranks

    def handle_report(self, rank: int, phase: str, fraction: float) -> tuple[str, float]:
        """Rank `rank` is so far; returns how far all are, as phase and fraction.

        A report that is behind what the same rank said before changes nothing.
        """
        if phase not in self._phases:
            self._phases.append(phase)
        self._places[rank] = max(self._places[rank], (self._phases.index(phase), fraction))
        place, least = min(self._places)
        return self._phases[place], least

    def check_invariants(self) -> None:
        """Every place is in a phase that there is."""
        assert len(self._places) == self.ranks
        assert len(set(self._phases)) == len(self._phases)
        assert all(0 <= place < len(self._phases) for place, _ in self._places)
