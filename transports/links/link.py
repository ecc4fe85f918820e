"""State machine of a link's end: numbers messages, finds losses, starts a new generation on one.

Sans-IO: headers and times in, decisions out. `linked_channel` carries the decisions out, and
`link_header` says what the kinds of header mean.

Two ends, two roles. The *spoke* opens generations: LINK_UP is repeated until the *hub* has
answered. Within a generation each DATA has the next number of its direction. Lower than expected
is a duplicate and dropped; higher is a *gap* and ends the generation: a spoke that sees one opens
the next generation, a hub asks for it with LINK_RESET, repeated until a later LINK_UP has come.
A lost *tail* leaves no gap, so what stays unacknowledged for long is followed by a PROBE, which
carries the number of the last message; probes without an answer end the generation too. Nothing is
ever sent again: what a new generation needs is for the floors above to say.

An idle link costs nothing: when all is acknowledged in both directions there is no deadline. But
between machines a hub also asks a spoke that says nothing, as `silence` has it, and reports one
that does not answer: its generation goes on, or is opened anew, as if nothing were.

State x event (a dash: nothing happens; every header of another generation but LINK_UP is stale):

    state      LINK_UP later  ACCEPT    DATA/ACK/PROBE  gap, broken     RESET      deadline
    WAITING    UP             -         -               -               -          none
    OPENING    -              UP        UP              OPENING/RESTING same       LINK_UP again
    UP (hub)   UP             -         UP              RESETTING       -          ACK, PROBE, end
    UP (spoke) -              UP        UP              OPENING/RESTING same       ACK, PROBE, end
    RESETTING  UP             -         -               -               -          LINK_RESET again
    RESTING    -              -         -               -               -          OPENING
    CLOSED     -              -         -               -               -          none
"""

import enum
import math
from collections import Counter
from collections.abc import Sequence

import attrs

from ..endpoint import GENERATION_MAX
from .link_header import FrameKind, Header, LinkSettings, Mishap
from .silence import SilenceFinding, SilenceWatch


class Side(enum.Enum):
    """Role in opening generations: the spoke opens, the hub answers."""

    HUB = "hub"
    SPOKE = "spoke"


class LinkState(enum.Enum):
    """State of one end; the table is above."""

    WAITING = "waiting"  # hub: no generation has begun yet
    OPENING = "opening"  # spoke: LINK_UP is out, no answer yet
    UP = "up"
    RESETTING = "resetting"  # hub: over; waiting for the LINK_UP of a later generation
    RESTING = "resting"  # spoke: generations ended quickly one after another, a pause first
    CLOSED = "closed"  # forgotten


# Which state may follow which; `Link` asserts it.
MOVES: dict[LinkState, frozenset[LinkState]] = {
    LinkState.WAITING: frozenset({LinkState.OPENING, LinkState.UP, LinkState.CLOSED}),
    LinkState.OPENING: frozenset(LinkState) - {LinkState.WAITING, LinkState.RESETTING},
    LinkState.UP: frozenset(LinkState) - {LinkState.WAITING},
    LinkState.RESETTING: frozenset({LinkState.UP, LinkState.CLOSED}),
    LinkState.RESTING: frozenset({LinkState.OPENING, LinkState.CLOSED}),
    LinkState.CLOSED: frozenset(),
}


@attrs.frozen
class OpenGeneration:
    """Make ready to carry this generation; what carried an older one is let go."""

    generation: int


@attrs.frozen
class Transmit:
    """Send this header alone, after everything sent so far."""

    header: Header


@attrs.frozen
class Deliver:
    """The payload that came with the header is next in order: hand it up."""


@attrs.frozen
class ReportUp:
    """The generation began: sending is allowed from here on."""

    generation: int


@attrs.frozen
class ReportDown:
    """The generation that was reported up is over."""

    reason: str


@attrs.frozen
class ReportSilent:
    """The peer has answered nothing for so long; whether it lives is open."""

    silent_s: float


@attrs.frozen
class ReportHeard:
    """The peer that was silent speaks again."""


Decision = OpenGeneration | Transmit | Deliver | ReportUp | ReportDown | ReportSilent | ReportHeard


_NOTHING: tuple[Decision, ...] = ()
# The answer to nearly every message; `linked_channel` compares it by identity.
DELIVER_ALONE: tuple[Decision, ...] = (Deliver(),)
_LISTENING = frozenset({LinkState.OPENING, LinkState.UP})
_HUB_ONLY = frozenset({FrameKind.LINK_ACCEPT, FrameKind.LINK_RESET})


@attrs.define(eq=False)
class Link:
    """An end of a link. Create it, `open` it if it is a spoke, then feed it; see the module."""

    side: Side
    settings: LinkSettings = attrs.field(factory=LinkSettings)
    # Counted for all links of a channel together.
    mishaps: Counter[Mishap] = attrs.field(factory=Counter)

    state: LinkState = attrs.field(default=LinkState.WAITING, init=False)
    # The generation that is up, being opened, or just over; 0 before the first. Never decreases.
    generation: int = attrs.field(default=0, init=False)

    # Numbers of this generation. acknowledged <= sent; ack_sent <= received.
    _sent: int = attrs.field(default=0, init=False)
    _acknowledged: int = attrs.field(default=0, init=False)
    _received: int = attrs.field(default=0, init=False)
    _ack_sent: int = attrs.field(default=0, init=False)  # the last `acknowledged` we have sent

    # math.inf unless something received / something sent is not yet acknowledged.
    _ack_at: float = attrs.field(default=math.inf, init=False)
    _probe_at: float = attrs.field(default=math.inf, init=False)
    _probes: int = attrs.field(default=0, init=False)  # in a row without an answer
    # LINK_UP or LINK_RESET again, or the end of a rest; math.inf in the other states.
    _repeat_at: float = attrs.field(default=math.inf, init=False)
    _repeat_delay_s: float = attrs.field(default=0.0, init=False)
    _opened_at: float = attrs.field(default=-math.inf, init=False)
    _short_generations: int = attrs.field(default=0, init=False)  # ended young, in a row
    _silence: SilenceWatch = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._silence = SilenceWatch(self.settings)

    @property
    def is_up(self) -> bool:
        """True while `handle_send` is allowed."""
        return self.state is LinkState.UP

    # ---- events

    def open(self, now: float) -> Sequence[Decision]:
        """Spoke, once: begin the first generation."""
        assert self.side is Side.SPOKE
        assert self.state is LinkState.WAITING
        return self._open_next(now)

    def close(self) -> None:
        """Forget the link: every later event is ignored. Reports nothing."""
        self._move(LinkState.CLOSED)

    def handle_send(self, now: float) -> Header:
        """The header of the next message, while the link is up.

        The caller looks at `is_full` first and ends the link with `handle_broken` at the fuse.
        """
        assert self.state is LinkState.UP
        if self._sent == self._acknowledged:
            self._arm_probe(now)
        self._sent += 1
        return self._make_header(FrameKind.DATA)

    @property
    def is_full(self) -> bool:
        """True if so many messages are unacknowledged that the peer must be taken as broken."""
        return self._sent - self._acknowledged >= self.settings.unacknowledged_max

    def handle_header(self, header: Header, now: float) -> Sequence[Decision]:
        """Handle a header. With `Deliver` among the decisions its payload is to be handed up."""
        self._silence.heard_at = now
        kind = header.kind
        if (
            kind is FrameKind.DATA
            and self.state is LinkState.UP
            and header.generation == self.generation
        ):
            return self._handle_data(header, now)
        if kind is FrameKind.LINK_UP:
            return self._handle_link_up(header, now)
        if header.generation != self.generation or self.state not in _LISTENING:
            self.mishaps[Mishap.STALE] += 1
            return self._reset_again(header, now)
        if not self._is_sane(header):
            self.mishaps[Mishap.VIOLATION] += 1
            return _NOTHING
        if kind is FrameKind.LINK_RESET:
            return self._end("the other side asked for a new generation", now)
        decisions: list[Decision] = []
        if self.state is LinkState.OPENING:
            decisions.extend(self._become_up(now))
        decisions.extend(self._handle_in_generation(header, now))
        return decisions

    def handle_broken(self, generation: int, reason: str, now: float) -> Sequence[Decision]:
        """End this generation, whose carrier failed; stale reports are ignored."""
        if generation != self.generation or self.state not in _LISTENING:
            return _NOTHING
        return self._end(reason, now)

    def next_deadline(self) -> float:
        """When `handle_timeout` has something to do; `math.inf` while the link is idle."""
        return min(self._ack_at, self._probe_at, self._repeat_at, self._silence.look_at)

    def handle_timeout(self, now: float) -> Sequence[Decision]:
        """Harmless when early. However late, at most one probe or repetition is sent."""
        if now >= self._silence.look_at:
            return self._look_for_peer(now)
        if now < self.next_deadline():
            return _NOTHING
        if self.state is LinkState.RESTING:
            return self._open_next(now)
        if self.state is LinkState.OPENING:
            return self._repeat(FrameKind.LINK_UP, now)
        if self.state is LinkState.RESETTING:
            return self._repeat(FrameKind.LINK_RESET, now)
        assert self.state is LinkState.UP
        return self._handle_timeout_up(now)

    def _look_for_peer(self, now: float) -> Sequence[Decision]:
        found = self._silence.look(now)
        if found is SilenceFinding.NEWS:
            return _NOTHING
        if found is SilenceFinding.HEARD:
            return (ReportHeard(),)
        asked = (Transmit(self._make_header(FrameKind.PROBE)),) if self.is_up else _NOTHING
        if found is SilenceFinding.ASK:
            return asked
        return (ReportSilent(self._silence.silent_s), *asked)

    # ---- generations

    def _handle_link_up(self, header: Header, now: float) -> Sequence[Decision]:
        if self.side is not Side.HUB:
            self.mishaps[Mishap.VIOLATION] += 1
            return _NOTHING
        if self.state is LinkState.CLOSED or header.generation < self.generation:
            self.mishaps[Mishap.STALE] += 1
            return _NOTHING
        if header.generation == self.generation:
            # Our answer was lost or is on its way; once the generation is over it needs none.
            if self.state is LinkState.UP:
                return (Transmit(self._make_header(FrameKind.LINK_ACCEPT)),)
            self.mishaps[Mishap.STALE] += 1
            return _NOTHING
        decisions: list[Decision] = []
        if self.state is LinkState.UP:
            self.mishaps[Mishap.GENERATION_ENDED] += 1
            decisions.append(ReportDown(f"the spoke opened generation {header.generation}"))
        self._reset_numbers(header.generation)
        decisions.append(OpenGeneration(header.generation))
        decisions.extend(self._become_up(now))
        decisions.append(Transmit(self._make_header(FrameKind.LINK_ACCEPT)))
        return decisions

    def _reset_again(self, header: Header, now: float) -> Sequence[Decision]:
        """A spoke that speaks in a generation that is over can be reached again: it is asked at
        once, where the repetitions have become rare while it could not."""
        is_over = self.state is LinkState.RESETTING and header.generation == self.generation
        if not is_over or self._repeat_at - now <= 2 * self.settings.repeat_delay_s:
            return _NOTHING
        self._repeat_delay_s = self.settings.repeat_delay_s
        return self._repeat(FrameKind.LINK_RESET, now)

    def _become_up(self, now: float) -> Sequence[Decision]:
        self._move(LinkState.UP)
        self._repeat_at = math.inf
        if self.side is Side.HUB:
            self._silence.begin(now)
        return (ReportUp(self.generation),)

    def _end(self, reason: str, now: float) -> Sequence[Decision]:
        """The generation is over; called while UP, or OPENING."""
        self.mishaps[Mishap.GENERATION_ENDED] += 1
        decisions: list[Decision] = []
        if self.state is LinkState.UP:
            decisions.append(ReportDown(reason))
        self._ack_at = self._probe_at = math.inf
        if self.side is Side.HUB:
            self._move(LinkState.RESETTING)
            self._repeat_delay_s = self.settings.repeat_delay_s
            decisions.extend(self._repeat(FrameKind.LINK_RESET, now))
            return decisions
        delay_s = self._rest_delay_s(now)
        if delay_s == 0:
            decisions.extend(self._open_next(now))
        else:
            self._move(LinkState.RESTING)
            self._repeat_at = now + delay_s
        return decisions

    def _rest_delay_s(self, now: float) -> float:
        """Delay before the next generation; 0 before the first, so that a single loss costs one
        round trip."""
        settings = self.settings
        if now - self._opened_at >= settings.calm_after_s:
            self._short_generations = 0
        self._short_generations += 1
        if self._short_generations == 1:
            return 0.0
        # The exponent is bounded: 2.0 ** 1100 would overflow.
        doublings = min(self._short_generations - 2, 30)
        return float(min(settings.rest_delay_s * 2**doublings, settings.rest_delay_max_s))

    def _open_next(self, now: float) -> Sequence[Decision]:
        assert self.generation < GENERATION_MAX
        if self.state is not LinkState.OPENING:
            self._move(LinkState.OPENING)
        self._reset_numbers(self.generation + 1)
        self._opened_at = now
        self._repeat_delay_s = self.settings.repeat_delay_s
        return (OpenGeneration(self.generation), *self._repeat(FrameKind.LINK_UP, now))

    def _repeat(self, kind: FrameKind, now: float) -> Sequence[Decision]:
        self._repeat_at = now + self._repeat_delay_s
        self._repeat_delay_s = min(2 * self._repeat_delay_s, self.settings.repeat_delay_max_s)
        return (Transmit(Header(kind, self.generation, 0, 0)),)

    def _reset_numbers(self, generation: int) -> None:
        self.generation = generation
        self._sent = self._acknowledged = self._received = self._ack_sent = self._probes = 0
        self._ack_at = self._probe_at = math.inf

    # ---- within a generation

    def _is_sane(self, header: Header) -> bool:
        if header.acknowledged > self._sent:
            return False
        return self.side is Side.SPOKE or header.kind not in _HUB_ONLY

    def _handle_data(self, header: Header, now: float) -> Sequence[Decision]:
        """The hot path: DATA while UP."""
        acknowledged = header.acknowledged
        if acknowledged > self._sent:
            self.mishaps[Mishap.VIOLATION] += 1
            return _NOTHING
        if acknowledged > self._acknowledged:
            self._take_acknowledged(acknowledged, now)
        if header.sequence != self._received + 1:
            if header.sequence <= self._received:
                self.mishaps[Mishap.DUPLICATE] += 1
                return _NOTHING
            return self._handle_gap(header, now)
        self._received += 1
        if self._received - self._ack_sent >= self.settings.ack_messages:
            return (*DELIVER_ALONE, Transmit(self._make_header(FrameKind.ACK)))
        if self._ack_at == math.inf:
            self._ack_at = now + self.settings.ack_delay_s
        return DELIVER_ALONE

    def _handle_in_generation(self, header: Header, now: float) -> Sequence[Decision]:
        """ACCEPT, ACK or PROBE; or DATA that arrived before the answer to LINK_UP."""
        if header.kind is FrameKind.DATA:
            return self._handle_data(header, now)
        if header.acknowledged > self._acknowledged:
            self._take_acknowledged(header.acknowledged, now)
        if header.sequence > self._received:
            return self._handle_gap(header, now)
        if header.kind is FrameKind.PROBE:
            return (Transmit(self._make_header(FrameKind.ACK)),)
        return _NOTHING

    def _handle_gap(self, header: Header, now: float) -> Sequence[Decision]:
        self.mishaps[Mishap.GAP] += 1
        expected = self._received + (header.kind is FrameKind.DATA)
        return self._end(f"gap: number {header.sequence} came instead of {expected}", now)

    def _take_acknowledged(self, acknowledged: int, now: float) -> None:
        self._acknowledged = acknowledged
        if acknowledged == self._sent:
            self._probes = 0
            self._probe_at = math.inf
        else:
            self._arm_probe(now)

    def _arm_probe(self, now: float) -> None:
        self._probes = 0
        self._probe_at = now + self.settings.probe_delay_s

    def _make_header(self, kind: FrameKind) -> Header:
        """Make a header of this generation, which by the way acknowledges everything received."""
        self._ack_sent = self._received
        self._ack_at = math.inf
        return Header(kind, self.generation, self._sent, self._received)

    def _handle_timeout_up(self, now: float) -> Sequence[Decision]:
        if now >= self._probe_at:
            if self._probes == self.settings.probes_max:
                return self._end(f"{self._probes} probes were not answered", now)
            self._probes += 1
            self.mishaps[Mishap.PROBE] += 1
            self._probe_at = now + self.settings.probe_delay_s * 2**self._probes
            return (Transmit(self._make_header(FrameKind.PROBE)),)
        return (Transmit(self._make_header(FrameKind.ACK)),)

    # ---- inspection

    def _move(self, state: LinkState) -> None:
        assert state in MOVES[self.state] or state is self.state, (self.state, state)
        self.state = state
        if state is LinkState.CLOSED:
            self._ack_at = self._probe_at = self._repeat_at = math.inf
            self._silence.end()

    def check_invariants(self) -> None:
        """Assert the invariants; for tests, after every event."""
        assert 0 <= self._acknowledged <= self._sent
        assert 0 <= self._ack_sent <= self._received
        assert 0 <= self.generation <= GENERATION_MAX
        up = self.state is LinkState.UP
        assert (self._ack_at < math.inf) == (up and self._ack_sent < self._received)
        assert (self._probe_at < math.inf) == (up and self._acknowledged < self._sent)
        repeating = self.state in {LinkState.OPENING, LinkState.RESETTING, LinkState.RESTING}
        assert (self._repeat_at < math.inf) == repeating
        assert self._probes <= self.settings.probes_max
        hub_only = {LinkState.RESETTING}
        spoke_only = {LinkState.OPENING, LinkState.RESTING}
        assert self.state not in (spoke_only if self.side is Side.HUB else hub_only)
