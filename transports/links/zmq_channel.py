"""Channels over ZeroMQ: a hub binds ROUTER and PULL, a spoke connects a DEALER and a PUSH per hub.

    hub (frontend)                              spoke (engine)
    input thread   ROUTER  -- DATA, ACCEPT … -->  DEALER   input thread
                           <------ LINK_UP -----
    output thread  PULL    <- DATA, ACK, PROBE -  PUSH     output thread

"Input" and "output" are the spoke's. A message is the codec's frames (mostly one), the first with
header and identity in front; a message of the link's own is these two alone. The identity is the
spoke's in both directions: a PULL does not see who sent. Each generation has new sockets at the
spoke and a new identity, so that what an older one left in a pipe cannot arrive in it.

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
from ..endpoint import IDENTITY_BYTES, BadIdentity, check_endpoint, decode_identity, encode_identity
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
from .linked_channel import CarriedChannel, LinkedChannel
from .zmq_sockets import HeldSockets, Socket, SocketSettings
from .zmq_thread import (
    Arrival,
    Burst,
    Connect,
    Disconnect,
    LinkOutbox,
    SendFrames,
    SocketThread,
    Unreachable,
)

# Room at a message's beginning: header, then identity.
_ROOM = HEADER_BYTES + IDENTITY_BYTES
# The role of those who connect to a hub; an identity carries none.
_SPOKE_ROLE = "engine"


@attrs.frozen(kw_only=True)
class ZmqSettings:
    """Bounds and times of one channel."""

    link: LinkSettings = attrs.field(factory=LinkSettings)
    sockets: SocketSettings = attrs.field(factory=SocketSettings)
    # Commands on the way to one thread for one link; the link's own fuse is lower.
    outbox_max: int = 2 * LinkSettings().unacknowledged_max


@attrs.frozen
class _Way:
    """An outbox's key on the spoke side: which link and generation a socket belongs to."""

    peer: Peer
    generation: int


@attrs.define(eq=False)
class _ZmqChannel(CarriedChannel):
    """Common part of both ends; a subclass is their carrier."""

    settings: ZmqSettings
    context: zmq.Context[Socket]
    codec_in: Codec
    codec_out: Codec
    room: int = attrs.field(default=_ROOM, init=False)
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


def _headed(header: Header, identity: bytes, frames: Sequence[Frame]) -> Sequence[Frame]:
    """The codec's frames with header and identity written into their room; or these two alone."""
    if not frames:
        frames = (bytearray(_ROOM),)
    first = frames[0]
    assert isinstance(first, bytearray)
    header.write_to(first)
    first[HEADER_BYTES:_ROOM] = identity
    return frames


@attrs.define(eq=False)
class HubChannel(_ZmqChannel):
    """`channel.HubEnd` over ZeroMQ; open it with `open_hub`."""

    _endpoints: tuple[str, str]
    # {spoke: the way of the generation in use}; tests close one to lose a message.
    outboxes: dict[Peer, LinkOutbox] = attrs.field(factory=dict, init=False)
    # {identity of the generation in use: who and which}, sparing the decoding of each message's.
    _known: dict[bytes, tuple[Peer, int]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        settings = self.settings
        self.links = LinkedChannel(Side.HUB, self, self.codec_in, self.codec_out, settings.link)
        router = HeldSockets(self.context, zmq.ROUTER, settings.sockets, self._endpoints[0])
        pull = HeldSockets(self.context, zmq.PULL, settings.sockets, self._endpoints[1])
        self._input = SocketThread("input-socket-thread", router, self._handle_input)
        self._output = SocketThread("output-socket-thread", pull, self._handle_output)

    # ---- channel.HubEnd

    @property
    def endpoints(self) -> tuple[str, str]:
        """Endpoints; a port of 0 is the real one once its task has started."""
        bound = (self._input.bound, self._output.bound)
        return bound[0] or self._endpoints[0], bound[1] or self._endpoints[1]

    # ---- linked_channel.Carrier

    def open_generation(self, peer: Peer, generation: int) -> None:
        self.close(peer)
        identity = encode_identity(peer.rank, peer.epoch, generation)
        self.outboxes[peer] = LinkOutbox(identity, self.settings.outbox_max)
        self._known[identity] = (peer, generation)

    def close(self, peer: Peer) -> None:
        """Forget the peer; the ROUTER drops the identity when the spoke closes."""
        outbox = self.outboxes.pop(peer, None)
        if outbox is not None:
            outbox.closed = True
            assert isinstance(outbox.key, bytes)
            del self._known[outbox.key]

    def transmit(self, peer: Peer, header: Header, frames: Sequence[Frame]) -> bool:
        outbox = self.outboxes[peer]
        assert isinstance(outbox.key, bytes)
        best_effort = header.kind is FrameKind.LINK_RESET
        return self._input.submit(
            SendFrames(outbox, _headed(header, outbox.key, frames), best_effort)
        )

    # ---- arrivals, in the loop

    def _handle_input(self, arrival: Arrival) -> None:
        if isinstance(arrival, Unreachable):
            identity = arrival.outbox.key
            assert isinstance(identity, bytes)
            peer, generation = self._peer_of(identity)
            self.links.handle_broken(peer, generation, f"{peer}: {arrival.reason}")
            return
        # LINK_UPs come this way and nothing else; from elsewhere one would not show that the ROUTER
        # can reach its sender.
        for message in arrival.messages:
            assert isinstance(message, list)
            opened = self._open(message[1]) if len(message) == 2 else None
            is_sender = opened is not None and bytes(message[1][HEADER_BYTES:]) == message[0]
            if opened is None or not is_sender or opened[1].kind is not FrameKind.LINK_UP:
                self.mishaps[Mishap.MALFORMED] += 1
            else:
                self.links.handle_frames(*opened, ())

    def _handle_output(self, arrival: Arrival) -> None:
        assert isinstance(arrival, Burst)
        arrived = []
        for message in arrival.messages:
            frames = (message,) if isinstance(message, bytes) else message
            opened = self._open(frames[0])
            if opened is None or opened[1].kind is FrameKind.LINK_UP:
                self.mishaps[Mishap.MALFORMED] += 1
            else:
                arrived.append((*opened, frames))
        self.links.handle_burst(arrived)

    def _open(self, frame: Frame) -> tuple[Peer, Header] | None:
        """Decode sender and header from a first frame; None if they are not sound."""
        try:
            header = decode_header(frame)
            identity = bytes(frame[HEADER_BYTES:_ROOM])
            peer, generation = self._known.get(identity) or self._peer_of(identity)
        except (MalformedHeader, BadIdentity):
            return None
        return (peer, header) if header.generation == generation else None

    def _peer_of(self, identity: bytes) -> tuple[Peer, int]:
        rank, epoch, generation = decode_identity(identity)
        return Peer(_SPOKE_ROLE, rank, epoch), generation


@attrs.define(eq=False)
class _SpokeLink:
    """Endpoints of one hub, and the two ways of the generation in use."""

    input_endpoint: str
    output_endpoint: str
    input: LinkOutbox
    output: LinkOutbox
    # Bytes behind the header of every message.
    identity: bytes = b""


@attrs.define(eq=False)
class SpokeChannel(_ZmqChannel):
    """`channel.SpokeEnd` over ZeroMQ; open it with `open_spoke`."""

    peer_self: Peer
    _hubs: dict[Peer, _SpokeLink] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        settings = self.settings
        self.links = LinkedChannel(Side.SPOKE, self, self.codec_in, self.codec_out, settings.link)
        dealers = HeldSockets(self.context, zmq.DEALER, settings.sockets)
        pushes = HeldSockets(self.context, zmq.PUSH, settings.sockets)
        self._input = SocketThread("input-socket-thread", dealers, self._handle_arrival)
        self._output = SocketThread("output-socket-thread", pushes, self._handle_arrival)

    # ---- channel.SpokeEnd

    def connect(self, peer: Peer, input_endpoint: str, output_endpoint: str) -> bool:
        """Raises `BadEndpoint`."""
        for endpoint in (input_endpoint, output_endpoint):
            check_endpoint(endpoint)
        if not self.links.may_connect(peer):
            return False
        nowhere = LinkOutbox(None, 0, closed=True)
        self._hubs[peer] = _SpokeLink(input_endpoint, output_endpoint, nowhere, nowhere)
        return self.links.connect(peer)

    # ---- linked_channel.Carrier

    def open_generation(self, peer: Peer, generation: int) -> None:
        self._disconnect(peer)
        hub = self._hubs[peer]
        hub.identity = encode_identity(self.peer_self.rank, self.peer_self.epoch, generation)
        way = _Way(peer, generation)
        hub.input = LinkOutbox(way, self.settings.outbox_max)
        hub.output = LinkOutbox(way, self.settings.outbox_max)
        self._input.submit(Connect(hub.input, hub.input_endpoint, hub.identity))
        self._output.submit(Connect(hub.output, hub.output_endpoint, hub.identity))

    def close(self, peer: Peer) -> None:
        self._disconnect(peer)
        del self._hubs[peer]

    def transmit(self, peer: Peer, header: Header, frames: Sequence[Frame]) -> bool:
        hub = self._hubs[peer]
        headed = _headed(header, hub.identity, frames)
        if header.kind is FrameKind.LINK_UP:
            # Repeated anyway, and a hub that is away fills no queue that matters.
            return self._input.submit(SendFrames(hub.input, headed, best_effort=True))
        return self._output.submit(SendFrames(hub.output, headed))

    def _disconnect(self, peer: Peer) -> None:
        hub = self._hubs[peer]
        for thread, outbox in ((self._input, hub.input), (self._output, hub.output)):
            if outbox.key is not None:
                outbox.closed = True
                thread.submit(Disconnect(outbox))

    # ---- arrivals, in the loop

    def _handle_arrival(self, arrival: Arrival) -> None:
        if isinstance(arrival, Unreachable):
            way = arrival.outbox.key
            assert isinstance(way, _Way)
            self.links.handle_broken(way.peer, way.generation, f"{way.peer}: {arrival.reason}")
            return
        way = arrival.key
        assert isinstance(way, _Way)
        arrived = []
        for message in arrival.messages:
            frames = (message,) if isinstance(message, bytes) else message
            try:
                arrived.append((way.peer, decode_header(frames[0]), frames))
            except MalformedHeader:
                self.mishaps[Mishap.MALFORMED] += 1
        self.links.handle_burst(arrived)


@asynccontextmanager
async def open_hub(
    peer_self: Peer,
    codec_in: Codec,
    codec_out: Codec,
    *,
    input_endpoint: str,
    output_endpoint: str,
    settings: ZmqSettings | None = None,
) -> AsyncIterator[HubChannel]:
    """A hub's channel. Nothing is bound before `run_input` and `run_output` have started.

    Both tasks must have ended when the block is left; leaving it waits up to the linger time for
    what they left unsent. Raises `BadEndpoint`.
    """
    for endpoint in (input_endpoint, output_endpoint):
        check_endpoint(endpoint)
    async with _open_context() as context:
        yield HubChannel(
            settings or ZmqSettings(),
            context,
            codec_in,
            codec_out,
            endpoints=(input_endpoint, output_endpoint),
        )


@asynccontextmanager
async def open_spoke(
    peer_self: Peer, codec_in: Codec, codec_out: Codec, *, settings: ZmqSettings | None = None
) -> AsyncIterator[SpokeChannel]:
    """A spoke's channel; the hubs see it as `peer_self`. For the block's end see `open_hub`."""
    async with _open_context() as context:
        yield SpokeChannel(
            settings or ZmqSettings(), context, codec_in, codec_out, peer_self=peer_self
        )


@asynccontextmanager
async def _open_context() -> AsyncIterator[zmq.Context[Socket]]:
    """Open a context for one channel: ending it ends no other channel's sockets."""
    context: zmq.Context[Socket] = zmq.Context(io_threads=1)
    try:
        yield context
    finally:
        # Bounded by the sockets' linger, as all sockets are closed; libzmq waits without the GIL.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(context.term, abandon_on_cancel=False)
