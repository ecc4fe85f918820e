"""What a link decides and what it is set to: the values around `link.Link`.

Sans-IO: values only. Must not know how a decision comes about (`link`) nor how it is carried out
(`linked_channel`).
"""

import enum

import attrs

from .link_header import Header


class Side(enum.Enum):
    """Who opens generations (the spoke) and who answers (the hub)."""

    HUB = "hub"
    SPOKE = "spoke"


class LinkState(enum.Enum):
    """Where one end stands; the table is in the module's docstring."""

    WAITING = "waiting"  # hub: no generation has begun yet
    OPENING = "opening"  # spoke: LINK_UP is out, no answer yet
    UP = "up"
    RESETTING = "resetting"  # hub: over; waiting for the LINK_UP of a later generation
    RESTING = "resting"  # spoke: generations ended quickly one after another, a pause first
    CLOSED = "closed"  # forgotten, or out of generations


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
class LinkSettings:
    """Times and bounds of a link. Both ends should have the same; nothing breaks if they differ."""

    # An ACK of its own after so many messages, or so long after the first that was not yet
    # acknowledged by the way. 1024 keeps far from the fuse below and wakes the sending thread
    # rarely (each time costs both ends a wake-up of two threads); 50 ms is far below a probe.
    ack_messages: int = 1024
    ack_delay_s: float = 0.05
    # A probe after 5 acknowledgement delays, doubling: 0.25, 0.5, 1, 2 s; given up after 3.75 s.
    probe_delay_s: float = 0.25
    probes_max: int = 3
    # LINK_UP and LINK_RESET again, doubling. The cap bounds how long a returned peer waits.
    repeat_delay_s: float = 0.05
    repeat_delay_max_s: float = 1.0
    # A generation that ended younger than this makes the next wait, doubling up to the cap.
    calm_after_s: float = 1.0
    rest_delay_s: float = 0.01
    rest_delay_max_s: float = 1.0
    # A fuse: credits keep a link far below it, and it bounds every queue on the way.
    unacknowledged_max: int = 65536


@attrs.frozen
class OpenGeneration:
    """Make ready to carry this generation, and let go of what carried an older one."""

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


Decision = OpenGeneration | Transmit | Deliver | ReportUp | ReportDown


@attrs.frozen
class LinkNotUp(Exception):
    """A message was to be sent while no generation is up."""

    def __str__(self) -> str:
        return "the link is not up"


@attrs.frozen
class LinkStatistics:
    """One end of a link at one moment. Counts are over all generations but the first five."""

    state: str
    generation: int
    sent: int  # in this generation, as the three below
    acknowledged: int
    received: int
    unacknowledged: int
    duplicates: int
    stale: int  # headers of another generation
    violations: int  # headers that this side never gets from a sane peer
    gaps: int
    probes: int
    generations_ended: int
