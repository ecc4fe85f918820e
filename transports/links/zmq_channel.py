"""Channels over ZeroMQ: a hub binds ROUTER and PULL, a spoke connects a DEALER and a PUSH per hub.

    hub (frontend)                              spoke (engine, `zmq_spoke`)
    input thread   ROUTER  -- DATA, ACCEPT … -->  DEALER   input thread
                           <------ LINK_UP -----
    output thread  PULL    <- DATA, ACK, PROBE -  PUSH     output thread

"Input" and "output" are the spoke's. A message is the codec's frames (mostly one), the first with
header and identity in front; a message of the link's own is these two alone. The identity is the
spoke's in both directions: a PULL does not see who sent. Each generation has new sockets at the
spoke and a new identity, so that what an older one left in a pipe cannot arrive in it.

A hub may have two such pairs, in the same two threads: one for its own host, and a *remote side*
for others, with keys. Where an output endpoint is "" there is one port: the ROUTER and the DEALER
carry everything, which suits few messages, as each is asked for its sender and its end.

Decides nothing: `link` does, `linked_channel` carries out, `zmq_thread` moves.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

import attrs
import trio
import zmq

from ..array import Frame
from ..codec import Codec
from ..endpoint import (
    IDENTITY_BYTES,
    BadIdentity,
    check_endpoint,
    decode_identity,
    encode_identity,
    is_local,
)
from .channel import Peer
from .link import Side
from .link_header import (
    HEADER_BYTES,
    FrameKind,
    Header,
    LinkSettings,
    MalformedHeader,
    Mishap,
    decode_header,
)
from .link_keys import AllowedKeys, Guests, LinkKeys
from .linked_channel import CarriedChannel, LinkedChannel
from .zmq_sockets import Addressee, BoundEnd, Enveloped, HeldSockets, Socket, SocketSettings
from .zmq_thread import Arrival, Burst, LinkOutbox, SendFrames, SocketThread, Unreachable

# Room at a message's beginning: header, then identity.
ROOM = HEADER_BYTES + IDENTITY_BYTES
# The role of those who connect to a hub; an identity carries none.
_SPOKE_ROLE = "engine"


@attrs.frozen(kw_only=True)
class ZmqSettings:
    """Bounds and times of one channel."""

    link: LinkSettings = attrs.field(factory=LinkSettings)
    # Probes of silence to peers that came over a network, if `link` has none for all.
    remote_silence_probe_s: float = 0.25
    sockets: SocketSettings = attrs.field(factory=SocketSettings)
    # Commands on the way to one thread for one link; the link's own fuse is lower.
    outbox_max: int = 2 * LinkSettings().unacknowledged_max

    def link_by(self, endpoint: str) -> LinkSettings:
        """Settings of the links of peers that come by this endpoint."""
        if is_local(endpoint):
            return self.link
        silence_probe_s = min(self.link.silence_probe_s, self.remote_silence_probe_s)
        return attrs.evolve(self.link, silence_probe_s=silence_probe_s)


@attrs.frozen
class HubSide:
    """Where spokes reach a hub: both endpoints, the output's "" for one port."""

    input_endpoint: str
    output_endpoint: str
    # The hub's, for this side; None: everybody is let in who reaches it.
    keys: LinkKeys | None = None

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The one or two that there are."""
        return (self.input_endpoint, self.output_endpoint)[: 2 if self.output_endpoint else 1]


@attrs.define(eq=False)
class ZmqChannel(CarriedChannel):
    """Common part of both ends; a subclass is their carrier."""

    settings: ZmqSettings
    context: zmq.Context[Socket]
    codec_in: Codec
    codec_out: Codec
    room: int = attrs.field(default=ROOM, init=False)
    _input: SocketThread = attrs.field(init=False)
    _output: SocketThread = attrs.field(init=False)

    async def run_input(self, *, task_status: trio.TaskStatus[str]) -> NoReturn:
        """See `channel.RunnableChannel`; a hub's raises `EndpointInUse` in a group.

        Owns the ROUTER, or the DEALERs.
        """
        await self._input.run(task_status=task_status)

    async def run_output(self, *, task_status: trio.TaskStatus[str]) -> NoReturn:
        """See `channel.RunnableChannel`; a hub's raises `EndpointInUse` in a group.

        Owns the PULL, or the PUSHes.
        """
        await self._output.run(task_status=task_status)


def headed(header: Header, identity: bytes, frames: Sequence[Frame]) -> Sequence[Frame]:
    """The codec's frames with header and identity written into their room; or these two alone."""
    if not frames:
        frames = (bytearray(ROOM),)
    first = frames[0]
    assert isinstance(first, bytearray)
    header.write_to(first)
    first[HEADER_BYTES:ROOM] = identity
    return frames


@attrs.define(eq=False)
class HubChannel(ZmqChannel):
    """`channel.HubEnd` over ZeroMQ; open it with `open_hub`."""

    # That of its own host, and the remote one if there is one.
    _sides: tuple[HubSide, ...]
    # Per side, settings of the links that begin by it.
    _link_settings: list[LinkSettings] = attrs.field(init=False)
    # {spoke: the way of the generation in use}; tests close one to lose a message.
    outboxes: dict[Peer, LinkOutbox] = attrs.field(factory=dict, init=False)
    # Per side {identity of the generation in use: who and which}, sparing the decoding of each
    # message's.
    _known: list[dict[bytes, tuple[Peer, int]]] = attrs.field(init=False)
    _guests: Guests = attrs.field(factory=Guests, init=False)
    # The side of which arrivals are handled now: a generation that begins is its.
    _arriving: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        settings = self.settings
        self.links = LinkedChannel(Side.HUB, self, self.codec_in, self.codec_out, settings.link)
        self._known = [{} for _ in self._sides]
        self._link_settings = [settings.link_by(side.input_endpoint) for side in self._sides]
        routers, pulls = dict[int, BoundEnd](), dict[int, BoundEnd]()
        for number, side in enumerate(self._sides):
            is_only = not side.output_endpoint
            routers[number] = BoundEnd(side.input_endpoint, side.keys, is_only=is_only)
            if not is_only:
                pulls[number] = BoundEnd(side.output_endpoint, side.keys)
        router = HeldSockets(
            self.context, zmq.ROUTER, settings.sockets, routers, guests=self._guests
        )
        pull = HeldSockets(self.context, zmq.PULL, settings.sockets, pulls)
        self._input = SocketThread("input-socket-thread", router, self._handle_input)
        self._output = SocketThread("output-socket-thread", pull, self._handle_output)

    # ---- channel.HubEnd

    @property
    def endpoints(self) -> tuple[str, str]:
        """Endpoints; a port of 0 is the real one once its task has started."""
        return self._bound(0)

    @property
    def remote_endpoints(self) -> tuple[str, str]:
        """Those of the remote side, likewise; "" both if there is none."""
        return self._bound(1) if len(self._sides) > 1 else ("", "")

    def _bound(self, number: int) -> tuple[str, str]:
        side = self._sides[number]
        return (
            (self._input.bound or {}).get(number, side.input_endpoint),
            (self._output.bound or {}).get(number, side.output_endpoint),
        )

    def allow(self, keys: AllowedKeys) -> None:
        """Let spokes with these keys in by a side with keys, each as its ranks; and no others.

        Links that are up stay up: whoever takes a key away forgets its peers as well.
        """
        self._guests.allow(keys)

    @property
    def refusals(self) -> int:
        """Connections by keys that are not allowed, so far; one that stays away is not known."""
        return self._guests.refusals

    # ---- linked_channel.Carrier

    def open_generation(self, peer: Peer, generation: int) -> None:
        self.close(peer)
        identity = encode_identity(peer.rank, peer.epoch, generation)
        self.outboxes[peer] = LinkOutbox(
            Addressee(self._arriving, identity), self.settings.outbox_max
        )
        self._known[self._arriving][identity] = (peer, generation)

    def close(self, peer: Peer) -> None:
        """Forget the peer; the ROUTER drops the identity when the spoke closes."""
        outbox = self.outboxes.pop(peer, None)
        if outbox is not None:
            outbox.closed = True
            assert isinstance(outbox.key, Addressee)
            del self._known[outbox.key.end][outbox.key.identity]

    def transmit(self, peer: Peer, header: Header, frames: Sequence[Frame]) -> bool:
        outbox = self.outboxes[peer]
        assert isinstance(outbox.key, Addressee)
        best_effort = header.kind is FrameKind.LINK_RESET
        return self._input.submit(
            SendFrames(outbox, headed(header, outbox.key.identity, frames), best_effort)
        )

    # ---- arrivals, in the loop

    def _handle_input(self, arrival: Arrival) -> None:
        if isinstance(arrival, Unreachable):
            assert isinstance(arrival.outbox.key, Addressee)
            peer, generation = _peer_of(arrival.outbox.key.identity)
            self.links.handle_broken(peer, generation, f"{peer}: {arrival.reason}")
            return
        assert isinstance(arrival.key, int)
        side = self._sides[arrival.key]
        arrived = []
        for message in arrival.messages:
            assert isinstance(message, Enveloped)
            opened = self._open(message.frames[0], arrival.key)
            if opened is None:
                continue
            if not _is_sound(message, opened[1], side):
                self.mishaps[Mishap.MALFORMED] += 1
            elif side.keys and not self._guests.may_come_as(message.shown_key, opened[0].rank):
                self.mishaps[Mishap.UNWELCOME] += 1
            else:
                arrived.append((*opened, message.frames))
        self._handle_burst(arrival.key, arrived)

    def _handle_output(self, arrival: Arrival) -> None:
        assert isinstance(arrival, Burst)
        assert isinstance(arrival.key, int)
        arrived = []
        for message in arrival.messages:
            assert not isinstance(message, Enveloped)
            frames: Sequence[Frame] = (message,) if isinstance(message, bytes) else message
            opened = self._open(frames[0], arrival.key)
            if opened is None:
                continue
            if opened[1].kind is FrameKind.LINK_UP:
                self.mishaps[Mishap.MALFORMED] += 1
            else:
                arrived.append((*opened, frames))
        self._handle_burst(arrival.key, arrived)

    def _handle_burst(
        self, side: int, arrived: Sequence[tuple[Peer, Header, Sequence[Frame]]]
    ) -> None:
        self._arriving = side
        self.links.handle_burst(arrived, self._link_settings[side])

    def _open(self, frame: Frame, side: int) -> tuple[Peer, Header] | None:
        """Decode sender and header from a first frame; None, and counted, if they are not sound."""
        try:
            header = decode_header(frame)
            identity = bytes(frame[HEADER_BYTES:ROOM])
            known = self._known[side].get(identity)
            peer, generation = known or _peer_of(identity)
        except (MalformedHeader, BadIdentity):
            self.mishaps[Mishap.MALFORMED] += 1
            return None
        if header.generation != generation:
            self.mishaps[Mishap.MALFORMED] += 1
            return None
        if (
            known is None
            and header.kind is not FrameKind.LINK_UP
            and self._is_elsewhere(peer, side)
        ):
            self.mishaps[Mishap.UNWELCOME] += 1
            return None
        return peer, header

    def _is_elsewhere(self, peer: Peer, side: int) -> bool:
        """Whether its generation in use came by another side."""
        outbox = self.outboxes.get(peer)
        if outbox is None:
            return False
        assert isinstance(outbox.key, Addressee)
        return outbox.key.end != side


def _is_sound(message: Enveloped, header: Header, side: HubSide) -> bool:
    """Whether it is its sender's own, and what comes by this side's ROUTER.

    Where there is a PULL, LINK_UPs do and nothing else; by the PULL one would not show that the
    ROUTER can reach its sender.
    """
    if bytes(message.frames[0][HEADER_BYTES:ROOM]) != message.identity:
        return False
    if header.kind is not FrameKind.LINK_UP:
        return not side.output_endpoint
    return len(message.frames) == 1 and len(message.frames[0]) == ROOM


def _peer_of(identity: bytes) -> tuple[Peer, int]:
    rank, epoch, generation = decode_identity(identity)
    return Peer(_SPOKE_ROLE, rank, epoch), generation


@asynccontextmanager
async def open_hub(
    peer_self: Peer,
    codec_in: Codec,
    codec_out: Codec,
    *,
    input_endpoint: str,
    output_endpoint: str,
    keys: LinkKeys | None = None,
    remote: HubSide | None = None,
    settings: ZmqSettings | None = None,
) -> AsyncIterator[HubChannel]:
    """A hub's channel. Nothing is bound before `run_input` and `run_output` have started.

    An output endpoint of "" makes it one port; `keys` are for spokes that come over a network. Both
    tasks must have ended when the block is left; leaving it waits up to the linger time for what
    they left unsent. Raises `BadEndpoint`.
    """
    home = HubSide(input_endpoint, output_endpoint, keys)
    sides = (home,) if remote is None else (home, remote)
    for side in sides:
        for endpoint in side.endpoints:
            check_endpoint(endpoint)
    async with open_context() as context:
        yield HubChannel(settings or ZmqSettings(), context, codec_in, codec_out, sides=sides)


@asynccontextmanager
async def open_context() -> AsyncIterator[zmq.Context[Socket]]:
    """Open a context for one channel: ending it ends no other channel's sockets."""
    context: zmq.Context[Socket] = zmq.Context(io_threads=1)
    try:
        yield context
    finally:
        # Bounded by the sockets' linger, as all sockets are closed; libzmq waits without the GIL.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(context.term, abandon_on_cancel=False)
