"""The spoke's end of channels over ZeroMQ; `zmq_channel` says what is on the way between the ends.

Decides nothing, as the hub's.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import zmq

from ..array import Frame
from ..codec import Codec
from ..endpoint import check_endpoint, encode_identity
from .channel import Peer
from .link import Side
from .link_header import FrameKind, Header, MalformedHeader, Mishap, decode_header
from .link_keys import LinkKeys
from .linked_channel import LinkedChannel
from .zmq_channel import HubSide, ZmqChannel, ZmqSettings, headed, open_context
from .zmq_sockets import Enveloped, HeldSockets, Target
from .zmq_thread import (
    Arrival,
    Connect,
    Disconnect,
    LinkOutbox,
    SendFrames,
    SocketThread,
    Unreachable,
)


@attrs.frozen
class _Way:
    """An outbox's key on the spoke side: which link and generation a socket belongs to."""

    peer: Peer
    generation: int


@attrs.define(eq=False)
class _SpokeLink:
    """Where one hub is reached, and the two ways of the generation in use."""

    input_endpoint: str
    output_endpoint: str
    server_key: bytes
    input: LinkOutbox
    # The same one where there is one port.
    output: LinkOutbox
    # Bytes behind the header of every message.
    identity: bytes = b""


@attrs.define(eq=False)
class SpokeChannel(ZmqChannel):
    """`channel.SpokeEnd` over ZeroMQ; open it with `open_spoke`."""

    peer_self: Peer
    # Shown to hubs that are connected with a server key.
    keys: LinkKeys | None = None
    _hubs: dict[Peer, _SpokeLink] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        settings = self.settings
        self.links = LinkedChannel(Side.SPOKE, self, self.codec_in, self.codec_out, settings.link)
        dealers = HeldSockets(self.context, zmq.DEALER, settings.sockets, keys=self.keys)
        pushes = HeldSockets(self.context, zmq.PUSH, settings.sockets, keys=self.keys)
        self._input = SocketThread("input-socket-thread", dealers, self._handle_arrival)
        self._output = SocketThread("output-socket-thread", pushes, self._handle_arrival)

    # ---- channel.SpokeEnd

    def connect(
        self, peer: Peer, input_endpoint: str, output_endpoint: str, server_key: bytes = b""
    ) -> bool:
        """Raises `BadEndpoint`. An output endpoint of "": the hub has one port."""
        for endpoint in HubSide(input_endpoint, output_endpoint).endpoints:
            check_endpoint(endpoint)
        if server_key and self.keys is None:
            raise ValueError(f"{peer} asks for keys, and this channel has none")
        if not self.links.may_connect(peer):
            return False
        nowhere = LinkOutbox(None, 0, closed=True)
        self._hubs[peer] = _SpokeLink(input_endpoint, output_endpoint, server_key, nowhere, nowhere)
        return self.links.connect(peer)

    # ---- linked_channel.Carrier

    def open_generation(self, peer: Peer, generation: int) -> None:
        self._disconnect(peer)
        hub = self._hubs[peer]
        hub.identity = encode_identity(self.peer_self.rank, self.peer_self.epoch, generation)
        way = _Way(peer, generation)
        hub.input = hub.output = LinkOutbox(way, self.settings.outbox_max)
        key, is_only = hub.server_key, not hub.output_endpoint
        target = Target(hub.input_endpoint, hub.identity, key, is_only)
        self._input.submit(Connect(hub.input, target))
        if not is_only:
            hub.output = LinkOutbox(way, self.settings.outbox_max)
            target = Target(hub.output_endpoint, hub.identity, key)
            self._output.submit(Connect(hub.output, target))

    def close(self, peer: Peer) -> None:
        self._disconnect(peer)
        del self._hubs[peer]

    def transmit(self, peer: Peer, header: Header, frames: Sequence[Frame]) -> bool:
        hub = self._hubs[peer]
        framed = headed(header, hub.identity, frames)
        if header.kind is FrameKind.LINK_UP:
            # Repeated anyway, and a hub that is away fills no queue that matters.
            return self._input.submit(SendFrames(hub.input, framed, best_effort=True))
        way_out = self._output if hub.output_endpoint else self._input
        return way_out.submit(SendFrames(hub.output, framed))

    def _disconnect(self, peer: Peer) -> None:
        hub = self._hubs[peer]
        ways = [(self._input, hub.input)]
        if hub.output_endpoint:
            ways.append((self._output, hub.output))
        for thread, outbox in ways:
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
            assert not isinstance(message, Enveloped)
            frames: Sequence[Frame] = (message,) if isinstance(message, bytes) else message
            try:
                arrived.append((way.peer, decode_header(frames[0]), frames))
            except MalformedHeader:
                self.mishaps[Mishap.MALFORMED] += 1
        self.links.handle_burst(arrived)


@asynccontextmanager
async def open_spoke(
    peer_self: Peer,
    codec_in: Codec,
    codec_out: Codec,
    *,
    keys: LinkKeys | None = None,
    settings: ZmqSettings | None = None,
) -> AsyncIterator[SpokeChannel]:
    """A spoke's channel; the hubs see it as `peer_self`. For the block's end see `open_hub`."""
    async with open_context() as context:
        yield SpokeChannel(
            settings or ZmqSettings(), context, codec_in, codec_out, peer_self=peer_self, keys=keys
        )
