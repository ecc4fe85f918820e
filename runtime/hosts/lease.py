"""Lease of a host: how long it may compute for its head without hearing of it, and what each end
concludes from silence.

Both ends send beats by timers of their own, numbered, and each says the newest number that it got
of the other one's. The host's end, `HostLease`, runs from the *sending* of the newest beat that was
echoed; the head's end, `HostWatch`, from the *receiving* of the newest beat that it may have
echoed, with a margin for clocks that differ in rate. A beat is sent before it is received: so the
host stops first, whatever the delay, and no clock is compared with another's.

The head calls a host SILENT when its beats confirm no newer echo for a while: nothing comes from
there, or nothing arrives there. From then on it echoes nothing newer, else a host that speaks and
hears nothing would never be given up; one that confirms that last echo is UP again. SILENT proves
no death, and costs nothing but a new way for streams. LOST is for ever: the lease is over, or the
connection was reset while beats came, and was not opened again.

    state     means                                      left by
    UP        it speaks, and hears                       silence, a reset, over a lease
    SILENT    no beat, or none that confirms an echo     a beat that does; the lease's end; gone
    LOST      its engines are fenced; it ends them, too  -

A connection that ends after a silence, of either way, says no more than the silence did: cables
that are pulled end connections, too, and a host that hears nothing ends its own. Who looks a beat
late or more was away itself, and reads first what waits.

Before the first echo the lease runs from the sending of the `Join` that was answered, and the
head's end from its receiving; one that asks again, as no answer has come, has both begin anew.

Sans-IO: beats, and `now`, in; beats and states out. Times are seconds of each end's own clock, one
that goes on in suspend: a lease is over on waking up.
"""

import enum
import heapq
import math
from collections import deque

import attrs

from .host_messages import HeadBeat, HostBeat, LeaseSettings

# Clocks of two machines differ in rate by less (quartz: 0.01 %); and by what a timer may be late
# at a host that ends itself.
DRIFT_MAX = 0.05
LATE_S = 0.1
# Distances of beats that tell how regular the link is: 10 s of them, whose second largest is p99.
DISTANCES = 100
SUSPECT_FACTOR = 8
# A connection that ends after this many beats' time without a confirmed echo ended for that.
QUIET_BEATS = 5
# Sendings that are remembered, should beats be sent more often than agreed.
SENDINGS_MAX = 1024


class HostState(enum.Enum):
    """State of a host, from its head's point of view."""

    UP = "up"
    SILENT = "silent"
    LOST = "lost"


@attrs.define(eq=False)
class HostLease:
    """The host's end. A lease that is over stays over, whatever comes then.

    `begun` is when the `Join` was sent whose `attempt` the `Welcome` names: no later time will do.
    """

    settings: LeaseSettings
    # When it ends; before the first echo, counted from the beginning.
    ends_s: float = attrs.field(init=False)
    _begun: float
    _number: int = attrs.field(default=0, init=False)
    _echoed: int = attrs.field(default=0, init=False)
    # {number: when it was sent} of beats that were not echoed, the oldest first.
    _sent: dict[int, float] = attrs.field(factory=dict, init=False)
    _is_over: bool = attrs.field(default=False, init=False)
    # When the head was heard last.
    _heard_s: float = attrs.field(init=False)
    # The quickest way there and back since it was taken; 0 before the first.
    _round_trip_s: float = attrs.field(default=0.0, init=False)
    _is_round_trip_taken: bool = attrs.field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        self.ends_s = self._begun + self.settings.lease_s
        self._heard_s = self._begun

    def handle_sent(self, now: float) -> HostBeat:
        """Return the beat that is sent now, by the loop that supervises the engines."""
        self._number += 1
        self._sent[self._number] = now
        while len(self._sent) > SENDINGS_MAX or self._oldest_s() <= now - self.settings.lease_s:
            del self._sent[next(iter(self._sent))]  # its echo would prolong nothing
        return HostBeat(self._number, self._echoed)

    def _oldest_s(self) -> float:
        return next(iter(self._sent.values()), math.inf)

    def handle_beat(self, beat: HeadBeat, now: float) -> bool:
        """Note what the head has heard; harmless when it is told late, or twice.

        Whether to confirm it at once: after a silence the head waits for that, and the lease may be
        nearly over.
        """
        if self.is_over(now):
            return False
        was_quiet, self._heard_s = now - self._heard_s > QUIET_BEATS * self.settings.beat_s, now
        if not self._echoed < beat.echoed <= self._number:
            return was_quiet
        self._echoed = beat.echoed
        sent_s = self._sent.get(beat.echoed, -math.inf)
        self._note_round_trip(now - sent_s - beat.held_s)
        self.ends_s = max(self.ends_s, sent_s + self.settings.lease_s)
        for number in [number for number in self._sent if number <= beat.echoed]:
            del self._sent[number]
        return was_quiet

    def _note_round_trip(self, round_trip_s: float) -> None:
        if math.isfinite(round_trip_s):
            least_s = math.inf if self._is_round_trip_taken else self._round_trip_s
            self._round_trip_s = max(0.0, min(round_trip_s, least_s))
            self._is_round_trip_taken = False

    def take_round_trip(self) -> float:
        """Return the quickest round trip since the last call, in seconds; or that one again."""
        self._is_round_trip_taken = True
        return self._round_trip_s

    def is_over(self, now: float) -> bool:
        """Whether the host may compute no more; it ends its engines then."""
        self._is_over |= now >= self.ends_s
        return self._is_over

    def check_invariants(self) -> None:
        """Asserts what must hold after every event."""
        assert 0 <= self._echoed <= self._number
        assert len(self._sent) <= SENDINGS_MAX
        assert all(number > self._echoed for number in self._sent)


@attrs.define(eq=False)
class HostWatch:
    """The head's end for one incarnation of a host. Each event returns the new state if it changed.

    `silent_since` is the time of the last sign that both ways worked, while the host is SILENT.
    """

    settings: LeaseSettings
    _begun: float
    state: HostState = attrs.field(default=HostState.UP, init=False)
    # Beats of the host that did not come.
    beats_lost: int = attrs.field(default=0, init=False)
    _number: int = attrs.field(default=0, init=False)
    # The newest beat that may be echoed, and when it came.
    _echo: int = attrs.field(default=0, init=False)
    _echo_s: float = attrs.field(init=False)
    # The newest beat of all.
    _seen: int = attrs.field(default=0, init=False)
    # The newest echo that the host has confirmed, and when.
    _confirmed: int = attrs.field(default=0, init=False)
    _confirmed_s: float = attrs.field(init=False)
    _distances: deque[float] = attrs.field(factory=lambda: deque(maxlen=DISTANCES), init=False)
    # When a connection that was reset must be there again.
    _reopen_s: float = attrs.field(default=math.inf, init=False)
    # When somebody who can know said that the host is gone.
    _gone_s: float = attrs.field(default=math.inf, init=False)
    # After a late look: what waits is read first.
    _patient_until: float = attrs.field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._echo_s = self._confirmed_s = self._begun

    @property
    def silent_since(self) -> float | None:
        """Time of the last sign that both ways worked, unless the host is UP."""
        return None if self.state is HostState.UP else self._confirmed_s

    @property
    def suspect_s(self) -> float:
        """Time without a confirmed echo that makes the host SILENT: more on an irregular link."""
        usual_s = min(heapq.nlargest(2, self._distances), default=0.0)
        settings = self.settings
        return min(max(settings.suspect_s, SUSPECT_FACTOR * usual_s), settings.suspect_max_s)

    @property
    def lease_s(self) -> float:
        """Time after the last beat that may have been echoed at which the host has surely ended."""
        return self.settings.lease_s * (1 + DRIFT_MAX) + LATE_S

    def lease_left_s(self, now: float) -> float:
        """Time until a host of which nothing more is heard is LOST."""
        return max(0.0, self._echo_s + self.lease_s - now)

    def next_beat(self, now: float) -> HeadBeat:
        """Return the beat that is sent now."""
        self._number += 1
        return HeadBeat(self._number, self._echo, max(0.0, now - self._echo_s))

    def handle_beat(self, beat: HostBeat, now: float) -> HostState | None:
        """A beat came; ignored if it came before, or speaks of echoes that were none."""
        if self.state is HostState.LOST or beat.number <= self._seen or beat.echoed > self._echo:
            return None
        self.beats_lost += beat.number - self._seen - 1
        self._seen = beat.number
        if now > self._gone_s + self.settings.suspect_s:
            self._gone_s = math.inf  # what was said of it was wrong
        is_confirming = beat.echoed > self._confirmed
        if self.state is HostState.SILENT and not is_confirming:
            return None
        self._echo, self._echo_s = beat.number, now
        if is_confirming:
            self._distances.append(now - self._confirmed_s)
            self._confirmed, self._confirmed_s = beat.echoed, now
        return self._move(HostState.UP)

    def handle_join(self, now: float) -> HostState | None:
        """The host asks to be let in, perhaps again; until it beats, all begins anew by that."""
        if self._seen or self.state is HostState.LOST:
            return None
        self._echo_s = self._confirmed_s = now
        return self._move(HostState.UP)

    def handle_down(self, now: float) -> HostState | None:
        """The connection ended. The host opens it again at once, unless it is no more."""
        if now - self._confirmed_s > QUIET_BEATS * self.settings.beat_s:
            return None
        self._reopen_s = now + self.settings.reopen_s
        return self._move(HostState.LOST) if self._gone_s <= now else None

    def handle_up(self) -> None:
        """The connection is open, perhaps again; harmless if it was."""
        self._reopen_s = math.inf

    def handle_gone(self, now: float) -> HostState | None:
        """Who started the host says that it is no more: true, if nothing is heard of it either."""
        self._gone_s = now
        is_heard = self.state is HostState.UP and self._reopen_s == math.inf
        return None if is_heard else self._move(HostState.LOST)

    def next_deadline(self) -> float:
        """When to look next; inf when the host is LOST."""
        if self.state is HostState.LOST:
            return math.inf
        return max(self._due_s(), self._patient_until)

    def _due_s(self) -> float:
        is_up = self.state is HostState.UP
        silence_s = self._confirmed_s + self.suspect_s if is_up else self._echo_s + self.lease_s
        return min(self._reopen_s, silence_s)

    def handle_timeout(self, now: float) -> HostState | None:
        """Time has passed. Harmless when called early."""
        beat_s = self.settings.beat_s
        if self._patient_until < self._due_s() < now - beat_s:
            self._patient_until = now + beat_s
        if now < self.next_deadline():
            return None
        is_silent_only = self.state is HostState.UP and now < min(self._reopen_s, self._gone_s)
        return self._move(HostState.SILENT if is_silent_only else HostState.LOST)

    def _move(self, state: HostState) -> HostState | None:
        if state is self.state:
            return None
        self.state = state
        return state

    def check_invariants(self) -> None:
        """Asserts what must hold after every event."""
        assert 0 <= self._confirmed <= self._echo <= self._seen
        assert self._confirmed_s <= self._echo_s
