"""A hub and a spoke with a network between them that loses and delays on order.

Sans-IO: frames are put on wires and taken off again, time is a number. What arrives is checked at
once: in order, once, and up and down alternate.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable

import attrs

from ...transports.links.link import (
    Decision,
    Deliver,
    Link,
    OpenGeneration,
    ReportDown,
    ReportUp,
    Side,
    Transmit,
)
from ...transports.links.link_header import Header, LinkSettings
from .link_faults import NthFault

# Small counts reach every branch; the times are the real ones.
SETTINGS = LinkSettings(ack_messages=3)
# Time from a fault to both sides up again: probes given up, then LINK_UP or LINK_RESET at their
# slowest, with a rest between.
RECOVERY_MAX_S = 8.0
OTHER = {Side.HUB: Side.SPOKE, Side.SPOKE: Side.HUB}
MakeLink = Callable[[Side, LinkSettings], Link]


@attrs.define(eq=False)
class LinkPair:
    """A hub and a spoke. A payload is its own number; what arrives is checked at once."""

    faults: list[NthFault] = attrs.field(factory=list)
    make_link: MakeLink = Link
    now: float = 0.0
    ends: dict[Side, Link] = attrs.field(init=False)
    # Towards each side, oldest first; bounded by what a run sends.
    wires: dict[Side, deque[Header]] = attrs.field(factory=lambda: {s: deque() for s in Side})
    sent: dict[tuple[Side, int], int] = attrs.field(factory=dict)
    delivered: dict[tuple[Side, int], int] = attrs.field(factory=dict)
    ups: dict[Side, int] = attrs.field(factory=lambda: dict.fromkeys(Side, 0))

    def __attrs_post_init__(self) -> None:
        self.ends = {side: self.make_link(side, SETTINGS) for side in Side}
        self.apply(Side.SPOKE, self.ends[Side.SPOKE].open(self.now))

    def put(self, sender: Side, frame: Header) -> None:
        """Send a frame on its way, past the faults."""
        frames = [frame]
        for fault in self.faults:
            frames = [out for item in frames for out in fault.pass_on(OTHER[sender], item)]
        self.wires[OTHER[sender]].extend(frames)

    def apply(self, side: Side, decisions: Iterable[Decision], number: int = 0) -> None:
        """Carry out what one end decided; `number` is the payload's that came with the header."""
        link = self.ends[side]
        for decision in decisions:
            match decision:
                case Transmit(header=frame):
                    self.put(side, frame)
                case Deliver():
                    key = (side, link.generation)
                    assert number == self.delivered.get(key, 0) + 1, "in order, once"
                    self.delivered[key] = number
                case ReportUp():
                    self.ups[side] += 1
                    assert self.ups[side] == 1, "up and down alternate"
                case ReportDown():
                    self.ups[side] -= 1
                    assert self.ups[side] == 0, "up and down alternate"
                case OpenGeneration(generation=generation):
                    assert generation == link.generation
        for end in self.ends.values():
            end.check_invariants()

    def send(self, side: Side) -> None:
        """Send a message from this side, if its link is up."""
        link = self.ends[side]
        if link.is_up:
            frame = link.handle_send(self.now)
            self.sent[side, frame.generation] = frame.sequence
            self.put(side, frame)

    def deliver(self, side: Side) -> None:
        """The oldest frame under way to this side arrives."""
        if self.wires[side]:
            frame = self.wires[side].popleft()
            self.apply(side, self.ends[side].handle_header(frame, self.now), frame.sequence)

    def break_link(self, side: Side) -> None:
        """Fail what carries this side's generation."""
        link = self.ends[side]
        self.apply(side, link.handle_broken(link.generation, "it was told to break", self.now))

    def fire(self) -> None:
        """Let the earliest deadline come."""
        deadline = min(link.next_deadline() for link in self.ends.values())
        if deadline < math.inf:
            self.now = max(self.now, deadline)
            for side, link in self.ends.items():
                self.apply(side, link.handle_timeout(self.now))

    def settle(self) -> None:
        """No more faults from here: run until nothing is under way, in bounded time."""
        start = self.now
        while True:
            while any(self.wires.values()):
                for side in Side:
                    self.deliver(side)
            if all(link.next_deadline() == math.inf for link in self.ends.values()):
                break
            assert self.now - start < RECOVERY_MAX_S, "it recovers in bounded time"
            self.fire()
        hub, spoke = self.ends[Side.HUB], self.ends[Side.SPOKE]
        assert hub.is_up
        assert spoke.is_up
        assert hub.generation == spoke.generation
        # Never a silent loss: in the generation that is still up, all that was sent has arrived.
        for side in Side:
            sent = self.sent.get((side, hub.generation), 0)
            assert self.delivered.get((OTHER[side], hub.generation), 0) == sent
