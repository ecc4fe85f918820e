"""Decides how a process is brought to its end: ask, then SIGTERM, then SIGKILL, then report.

Sans-IO: no clock, no signals, no processes. `process.py` carries out what is decided here.

    RUNNING -begin-> ASKED -ask_s-> TERMINATED -terminate_s-> KILLED -kill_s-> STUCK
                       |                |                       |               |
                       +-------------- exit --------------------+---------------+--> GONE

Asking means ending the death pipe: a child in good order then cancels its work and exits with code
0; one that still imports its modules does so on SIGTERM. A process in uninterruptible sleep
outlives even SIGKILL, so the last wait is bounded too, and its end is reported instead of hidden.
N ladders run side by side: the bound is one ladder's.
"""

import enum
import math

import attrs


@attrs.frozen
class LadderTimes:
    """Seconds to wait on each step before the next one; their sum bounds every shutdown."""

    ask_s: float = attrs.field(default=0.5, validator=attrs.validators.ge(0))
    terminate_s: float = attrs.field(default=1.0, validator=attrs.validators.ge(0))
    # A killed process gives its memory back before it is gone: seconds for a hundred GiB, or on a
    # machine that is short of processors.
    kill_s: float = attrs.field(default=10.0, validator=attrs.validators.ge(0))


@attrs.frozen
class Ask:
    """End the death pipe."""


@attrs.frozen
class Terminate:
    """Send SIGTERM to the process."""


@attrs.frozen
class Kill:
    """Send SIGKILL to the whole process group, so that grandchildren go too."""


@attrs.frozen
class ReportStuck:
    """Give up waiting and say so: the process ignored SIGKILL for `waited_s` seconds."""

    waited_s: float


Decision = Ask | Terminate | Kill | ReportStuck


class LadderState(enum.Enum):
    """The rungs, in order. From each of them the exit leads to GONE."""

    RUNNING = enum.auto()  # it is not to end
    ASKED = enum.auto()
    TERMINATED = enum.auto()
    KILLED = enum.auto()
    STUCK = enum.auto()  # reported; nothing more can be done
    GONE = enum.auto()


@attrs.define(eq=False)
class ShutdownLadder:
    """One descent. Each rung is entered once, in order, however late the timeouts are handled."""

    times: LadderTimes

    state: LadderState = attrs.field(default=LadderState.RUNNING, init=False)
    # When the next rung is due; infinite exactly in RUNNING, STUCK and GONE.
    _deadline: float = attrs.field(default=math.inf, init=False)

    def begin(self, now: float) -> Decision | None:
        """The process shall end. None if it is on its way already, or gone."""
        if self.state is not LadderState.RUNNING:
            return None
        return self._enter(LadderState.ASKED, now + self.times.ask_s, Ask())

    def next_deadline(self) -> float:
        """When `handle_timeout` has something to decide; `math.inf` if never."""
        return self._deadline

    def handle_timeout(self, now: float) -> Decision | None:
        """The next rung if its time has come, else None. A spurious call is harmless."""
        if now < self._deadline:
            return None
        if self.state is LadderState.ASKED:
            return self._enter(LadderState.TERMINATED, now + self.times.terminate_s, Terminate())
        if self.state is LadderState.TERMINATED:
            return self._enter(LadderState.KILLED, now + self.times.kill_s, Kill())
        assert self.state is LadderState.KILLED
        return self._enter(LadderState.STUCK, math.inf, ReportStuck(self.times.kill_s))

    def handle_exit(self) -> None:
        """The process is gone; nothing is due any more."""
        self.state = LadderState.GONE
        self._deadline = math.inf

    def _enter(self, state: LadderState, deadline: float, decision: Decision) -> Decision:
        self.state = state
        self._deadline = deadline
        return decision

    def check_invariants(self) -> None:
        """Asserts what must hold after every event."""
        timeless = (LadderState.RUNNING, LadderState.STUCK, LadderState.GONE)
        assert (self._deadline == math.inf) == (self.state in timeless)
