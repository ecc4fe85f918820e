"""Channel over links, for any carrier of frames: links, events, deadlines.

A `LinkedChannel` owns one `Link` per peer, carries out what the links decide, and keeps the events
for the one task that receives. A *carrier* below it moves frames: ZeroMQ (`zmq_channel`) or memory
(`memory_channel`). Nothing here waits but `receive` and `run_deadlines`, so that nothing is ever
half done when a task is cancelled. All of it belongs to the loop's thread.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol, assert_never

import attrs
import trio

from ..array import Frame
from ..codec import Codec, MalformedMessage
from .channel import (
    ChannelEvent,
    Misread,
    Peer,
    PeerDown,
    PeerHeard,
    PeerNotConnected,
    PeerSilent,
    PeerUp,
    Received,
)
from .link import (
    DELIVER_ALONE,
    Decision,
    Deliver,
    Link,
    OpenGeneration,
    ReportDown,
    ReportHeard,
    ReportSilent,
    ReportUp,
    Side,
    Transmit,
)
from .link_header import FrameKind, Header, LinkSettings, Mishap

# A fuse against a reader that has stopped: credits keep the events of all peers far below it.
EVENTS_MAX = 131072
# Links of one hub: a rank per engine; more peers than this are strays and are ignored.
PEERS_MAX = 4096
_NO_READER = "the messages of this channel are not read"


class Carrier(Protocol):
    """Moves frames of link generations. Nothing here waits or raises."""

    # Bytes at the front of a message's first frame that are the carrier's, for header and address.
    room: int

    def open_generation(self, peer: Peer, generation: int) -> None:
        """Get ready to carry this generation; what carried an older one of the peer is let go."""

    def close(self, peer: Peer) -> None:
        """Let go of everything of this peer, what is queued included."""

    def transmit(self, peer: Peer, header: Header, frames: Sequence[Frame]) -> bool:
        """Queue one message behind the earlier ones; False if the queue's bound is reached.

        `frames` are the codec's, with room left at the front, or none for a header alone.
        """


@attrs.define(eq=False)
class LinkedChannel:
    """The part that all channels share; implements `channel.Channel` for one side."""

    side: Side
    carrier: Carrier
    codec_in: Codec
    codec_out: Codec
    settings: LinkSettings = attrs.field(factory=LinkSettings)
    events_max: int = EVENTS_MAX
    mishaps: Counter[Mishap] = attrs.field(factory=Counter, init=False)

    _links: dict[Peer, Link] = attrs.field(factory=dict, init=False)
    # The links whose generation is up and known to the reader.
    _open: dict[Peer, Link] = attrs.field(factory=dict, init=False)
    # {(role, rank): highest epoch that was forgotten}; everything up to it is fenced.
    _fences: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)
    # Bounded by events_max plus two events per peer (`_make_room`).
    _events: deque[ChannelEvent] = attrs.field(factory=deque, init=False)
    # The task that waits for events. Parked by hand, as a step of an engine wakes it often.
    _receiver: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    # The scope's deadline is never later than the earliest of the links'; it may be earlier.
    _deadline_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    # ---- channel.Channel

    def send(self, peer: Peer, message: object) -> None:
        """See `channel.Channel.send`; also raises what `Codec.encode` does, having sent nothing."""
        link = self._open.get(peer)
        if link is None:
            raise PeerNotConnected(peer)
        frames = self.codec_out.encode(message, self.carrier.room)
        now = trio.current_time()
        if link.is_full:
            reason = f"{self.settings.unacknowledged_max} messages were not acknowledged"
            self._end_link(peer, link, reason)
            raise PeerNotConnected(peer)
        header = link.handle_send(now)
        if not self.carrier.transmit(peer, header, frames):
            self._end_link(peer, link, "the outbox is full")
            raise PeerNotConnected(peer)
        self._heed_deadline(link.next_deadline())

    async def receive(self) -> list[ChannelEvent]:
        if self._receiver is not None:
            raise trio.BusyResourceError("another task receives from this channel")
        if self._events:
            await trio.lowlevel.checkpoint()
        while not self._events:
            self._receiver = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
        return self._take()

    def break_link(self, peer: Peer, reason: str) -> None:
        link = self._open.get(peer)
        if link is not None:
            self._end_link(peer, link, reason)

    def forget(self, peer: Peer) -> None:
        """See `channel.Channel.forget`. Fences this epoch of the peer's rank and all older ones."""
        key = (peer.role, peer.rank)
        self._fences[key] = max(self._fences.get(key, -1), peer.epoch)
        link = self._links.pop(peer, None)
        if link is None:
            return
        up_for_reader = self._drop_events(peer, is_up=link.is_up)
        link.close()
        self._open.pop(peer, None)
        self.carrier.close(peer)
        if up_for_reader:
            self._append_event(PeerDown(peer, "the peer was forgotten"))

    @property
    def peers(self) -> list[Peer]:
        """Peers that have a link, up or not."""
        return list(self._links)

    # ---- for the channel around it

    def connect(self, peer: Peer) -> bool:
        """Spoke: open a link; False, and nothing happens, if it is there or the peer is fenced."""
        if not self.may_connect(peer):
            return False
        link = self._links[peer] = self._make_link(self.settings)
        self._carry_out(peer, link, link.open(trio.current_time()), ())
        return True

    def may_connect(self, peer: Peer) -> bool:
        """Whether the peer is neither connected nor fenced."""
        return peer not in self._links and not self._is_fenced(peer)

    def handle_frames(self, peer: Peer, header: Header, frames: Sequence[Frame]) -> None:
        """Handle a message. Faults of it are counted; nothing is raised."""
        self.handle_burst(((peer, header, frames),))

    def handle_burst(
        self,
        arrived: Iterable[tuple[Peer, Header, Sequence[Frame]]],
        settings: LinkSettings | None = None,
    ) -> None:
        """Messages arrived, in this order and at the same time; as `handle_frames` for each.

        `settings` are those of links that begin with them, if not the channel's.
        """
        now = trio.current_time()
        before: Link | None = None
        for peer, header, frames in arrived:
            link = self._links.get(peer)
            if link is None:
                if not self._is_welcome(peer, header):
                    self.mishaps[Mishap.STRAY] += 1
                    continue
                link = self._links[peer] = self._make_link(settings or self.settings)
            decisions = link.handle_header(header, now)
            if decisions is DELIVER_ALONE:  # nearly always: what is due may wait for the others
                if not self._deliver(peer, frames):
                    self._end_link(peer, link, _NO_READER)
                if link is not before and before is not None:
                    self._heed_deadline(before.next_deadline())
                before = link
            else:
                self._carry_out(peer, link, decisions, frames)
        if before is not None:
            self._heed_deadline(before.next_deadline())
        if self._events:
            self._wake_receiver()

    def handle_broken(self, peer: Peer, generation: int, reason: str) -> None:
        """The carrier cannot reach the peer in this generation any more."""
        link = self._links.get(peer)
        if link is not None:
            decisions = link.handle_broken(generation, reason, trio.current_time())
            self._carry_out(peer, link, decisions, ())

    async def run_deadlines(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Background task: gives every link its timeouts. One wake-up per deadline, none if idle.

        Never returns unless cancelled; holds nothing.
        """
        task_status.started()
        while True:
            deadlines = [link.next_deadline() for link in self._links.values()]
            with trio.CancelScope(deadline=min(deadlines, default=math.inf)) as scope:
                self._deadline_scope = scope
                await trio.sleep_forever()
            now = trio.current_time()
            for peer, link in list(self._links.items()):
                self._carry_out(peer, link, link.handle_timeout(now), ())

    # ---- links

    def _make_link(self, settings: LinkSettings) -> Link:
        return Link(self.side, settings, self.mishaps)

    def _is_fenced(self, peer: Peer) -> bool:
        return peer.epoch <= self._fences.get((peer.role, peer.rank), -1)

    def _is_welcome(self, peer: Peer, header: Header) -> bool:
        return (
            self.side is Side.HUB
            and header.kind is FrameKind.LINK_UP
            and len(self._links) < PEERS_MAX
            and not self._is_fenced(peer)
        )

    def _end_link(self, peer: Peer, link: Link, reason: str) -> None:
        decisions = link.handle_broken(link.generation, reason, trio.current_time())
        self._carry_out(peer, link, decisions, ())

    def _carry_out(
        self, peer: Peer, link: Link, decisions: Iterable[Decision], frames: Sequence[Frame]
    ) -> None:
        """`frames` is the payload that came with the header the decisions are about."""
        broken = ""
        for decision in decisions:
            match decision:
                case Deliver():
                    if not self._deliver(peer, frames):
                        broken = _NO_READER
                case Transmit(header=header):
                    if not self.carrier.transmit(peer, header, ()):
                        broken = "the outbox is full"
                case OpenGeneration(generation=generation):
                    self.carrier.open_generation(peer, generation)
                case ReportUp(generation=generation):
                    self._append_event(PeerUp(peer, generation))
                case ReportDown(reason=reason):
                    self._open.pop(peer, None)
                    self._append_event(PeerDown(peer, reason))
                case ReportSilent(silent_s=silent_s):
                    self._append_event(PeerSilent(peer, silent_s))
                case ReportHeard():
                    self._append_event(PeerHeard(peer))
                case _:
                    assert_never(decision)
        if broken:
            self._end_link(peer, link, broken)
        self._heed_deadline(link.next_deadline())

    def _heed_deadline(self, deadline: float) -> None:
        if deadline < self._deadline_scope.deadline:
            self._deadline_scope.deadline = deadline

    # ---- events

    def _take(self) -> list[ChannelEvent]:
        """Take all waiting events up to a PeerUp behind another event; see
        `channel.Channel.receive`."""
        waiting, taken = self._events, list[ChannelEvent]()
        while waiting and isinstance(up := waiting[0], PeerUp):
            taken.append(waiting.popleft())
            link = self._links.get(up.peer)
            if link is not None and link.is_up and link.generation == up.generation:
                self._open[up.peer] = link
        while waiting and not isinstance(waiting[0], PeerUp):
            taken.append(waiting.popleft())
        return taken

    def _deliver(self, peer: Peer, frames: Sequence[Frame]) -> bool:
        """False if there is no room for events; then all that waits of this peer was dropped."""
        event: ChannelEvent
        try:
            room = self.carrier.room
            event = Received(peer, self.codec_in.decode(frames, room), frames[0], room)
        except MalformedMessage as error:
            # A peer of the same build does not send these; a new generation would not cure it.
            self.mishaps[Mishap.MALFORMED] += 1
            if error.known is None:
                return True
            event = Misread(peer, error)
        if len(self._events) >= self.events_max:
            self.mishaps[Mishap.OVERFLOW] += 1
            return False
        self._events.append(event)
        return True

    def _append_event(self, event: ChannelEvent) -> None:
        if len(self._events) >= self.events_max and not self._make_room(event):
            return
        self._events.append(event)
        self._wake_receiver()

    def _wake_receiver(self) -> None:
        if self._receiver is not None:
            trio.lowlevel.reschedule(self._receiver)
            self._receiver = None

    def _stop_waiting(self, _: object) -> trio.lowlevel.Abort:
        self._receiver = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _make_room(self, event: ChannelEvent) -> bool:
        """At the bound a peer keeps only its newest change; is this event to be kept?

        The reader still sees PeerUp and PeerDown alternate.
        """
        comes_up = isinstance(event, PeerUp)
        up_for_reader = self._drop_events(event.peer, is_up=not comes_up)
        if comes_up and up_for_reader:
            self._events.append(PeerDown(event.peer, _NO_READER))
        return comes_up or up_for_reader

    def _drop_events(self, peer: Peer, *, is_up: bool) -> bool:
        """Take back what waits of this peer; is it up for the reader, who saw none of that?"""
        kept: deque[ChannelEvent] = deque()  # bounded by what `_events` holds
        changes: list[ChannelEvent] = []
        for event in self._events:
            if event.peer != peer:
                kept.append(event)
            elif isinstance(event, PeerUp | PeerDown):
                changes.append(event)
        self._events = kept
        return isinstance(changes[0], PeerDown) if changes else is_up


@attrs.define(eq=False)
class CarriedChannel:
    """Base of a channel that is its own carrier: `channel.Channel`, done by its links."""

    links: LinkedChannel = attrs.field(init=False)

    def send(self, peer: Peer, message: object) -> None:
        self.links.send(peer, message)

    async def receive(self) -> list[ChannelEvent]:
        return await self.links.receive()

    async def run_deadlines(self, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        await self.links.run_deadlines(task_status=task_status)

    def break_link(self, peer: Peer, reason: str) -> None:
        self.links.break_link(peer, reason)

    def forget(self, peer: Peer) -> None:
        self.links.forget(peer)

    @property
    def mishaps(self) -> Counter[Mishap]:
        return self.links.mishaps
