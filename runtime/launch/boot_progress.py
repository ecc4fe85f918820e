"""Boot progress of a child process: the phases that it reports, and how long each took."""

import attrs

from ...engine.control_messages import BootPhase


@attrs.frozen
class EndedPhase:
    """`phase` is over; it took `seconds`."""

    phase: str
    seconds: float


@attrs.define(eq=False)
class BootProgress:
    """Boot progress of one child, from its spawn at `began_s` on the caller's clock: which phase,
    how much of it, since when.

    Sans-IO: reports and `now` in, ended phases out. Phases follow each other without a gap, so the
    times of all add up to the time of the start, however late or rarely a child reports.
    """

    began_s: float
    # The last report; before there is any, the child is starting its process.
    phase: str = attrs.field(default=str(BootPhase.START), init=False)
    fraction: float = attrs.field(default=0.0, init=False)
    # Phases that are over, each once; the last may be `phase`, when its fraction is 1.
    _ended: list[str] = attrs.field(factory=list, init=False)
    # When the phase before the one that goes on ended.
    _since_s: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._since_s = self.began_s

    def handle_report(self, phase: str, fraction: float, now: float) -> list[EndedPhase]:
        """The child is at `fraction` of `phase`; returns which phases are over by that.

        A phase that is over stays over, whatever is said of it later.
        """
        if phase in self._ended:
            return []
        ended = [] if phase == self.phase else self._end_phase(now)
        self.phase, self.fraction = phase, fraction
        return ended + (self._end_phase(now) if fraction >= 1 else [])

    def handle_ready(self, now: float) -> list[EndedPhase]:
        """The child is ready: its phase is over. That it started goes without saying."""
        return [] if self.phase == BootPhase.START else self._end_phase(now)

    def phase_s(self, now: float) -> float:
        """Seconds that the present phase has lasted."""
        return now - self._since_s

    def _end_phase(self, now: float) -> list[EndedPhase]:
        if self.phase in self._ended:
            return []
        ended = EndedPhase(self.phase, now - self._since_s)
        self._ended.append(self.phase)
        self._since_s = now
        return [ended]

    def check_invariants(self) -> None:
        """No phase ends twice, and time does not go back."""
        assert len(set(self._ended)) == len(self._ended)
        assert self._since_s >= self.began_s
        assert self.phase not in self._ended[:-1]
