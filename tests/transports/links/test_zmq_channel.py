"""A real hub against a spoke that the test plays frame by frame, and ends that die."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import pytest
import trio
import zmq

from triolet.tests.contracts.channel import (
    CODEC,
    HUB,
    SPOKES,
    Numbered,
    Reader,
    join,
    running,
    zmq_mesh,
)
from triolet.transports.endpoint import BadEndpoint, abstract_endpoint, encode_identity
from triolet.transports.links.channel import PeerDown, PeerNotConnected, PeerUp
from triolet.transports.links.link_header import (
    FrameKind,
    Header,
    LinkSettings,
    Mishap,
    decode_header,
)
from triolet.transports.links.zmq_channel import HubChannel, ZmqSettings, open_hub
from triolet.transports.links.zmq_sockets import Socket, SocketSettings
from triolet.transports.links.zmq_spoke import open_spoke

SPOKE = SPOKES[0]
# Only a failing test meets it.
DEADLINE_S = 60
PATIENCE_MS = 60_000
# No probe may find out what sending is to find out, however slow this machine is.
PATIENT = LinkSettings(probe_delay_s=600.0)


def open_a_hub(settings: ZmqSettings | None = None) -> AbstractAsyncContextManager[HubChannel]:
    run_id = secrets.token_hex(8)
    return open_hub(
        HUB,
        CODEC,
        CODEC,
        input_endpoint=abstract_endpoint(run_id, "frontend", 0, 1, socket="input"),
        output_endpoint=abstract_endpoint(run_id, "frontend", 0, 1, socket="output"),
        settings=settings,
    )


@attrs.define(eq=False)
class PlayedSpoke:
    """A spoke's two sockets in one generation, played by the test."""

    dealer: Socket
    push: Socket
    identity: bytes

    def link_up(self, generation: int) -> None:
        self.dealer.send(Header(FrameKind.LINK_UP, generation, 0, 0).encode() + self.identity)

    def push_frame(self, header: Header, payload: bytes = b"") -> None:
        self.push.send(header.encode() + self.identity + payload)

    async def next(self) -> Header:
        """The header of the next message from the hub."""
        assert await trio.to_thread.run_sync(self.dealer.poll, PATIENCE_MS), "nothing came"
        return decode_header(self.dealer.recv_multipart()[0])

    async def wait_for(self, kind: FrameKind) -> Header:
        while (header := await self.next()).kind is not kind:
            pass
        return header


def coded(message: Numbered) -> bytes:
    return b"".join(CODEC.encode(message))


def play(
    context: zmq.Context[Socket], hub: HubChannel, generation: int, receive_high_water: int = 1000
) -> PlayedSpoke:
    dealer, push = context.socket(zmq.DEALER), context.socket(zmq.PUSH)
    identity = encode_identity(SPOKE.rank, SPOKE.epoch, generation)
    dealer.setsockopt(zmq.ROUTING_ID, identity)
    dealer.setsockopt(zmq.RCVHWM, receive_high_water)
    dealer.connect(hub.endpoints[0])
    push.connect(hub.endpoints[1])
    return PlayedSpoke(dealer, push, identity)


@asynccontextmanager
async def hub_and_context(
    settings: ZmqSettings | None = None,
) -> AsyncIterator[tuple[HubChannel, Reader, zmq.Context[Socket]]]:
    context: zmq.Context[Socket] = zmq.Context()
    try:
        async with open_a_hub(settings) as hub, running(hub):
            yield hub, Reader(hub), context
    finally:
        context.destroy(linger=0)


async def send_until_down(hub: HubChannel, message: Numbered) -> None:
    with trio.fail_after(DEADLINE_S):
        while hub.links._links[SPOKE].is_up:
            hub.send(SPOKE, message)
            await trio.lowlevel.checkpoint()
    with pytest.raises(PeerNotConnected):
        hub.send(SPOKE, message)


async def test_a_gap_seen_by_the_hub() -> None:
    async with hub_and_context() as (hub, reader, context):
        first = play(context, hub, 1)
        first.link_up(1)
        await reader.expect(PeerUp, SPOKE)
        assert (await first.next()).kind is FrameKind.LINK_ACCEPT
        first.push_frame(Header(FrameKind.DATA, 1, 2, 0), coded(Numbered(2)))
        down = await reader.expect(PeerDown, SPOKE)
        assert down.reason == "gap: number 2 came instead of 1"
        assert await first.next() == Header(FrameKind.LINK_RESET, 1, 0, 0)
        assert (await first.next()).kind is FrameKind.LINK_RESET, "it is repeated"
        second = play(context, hub, 2)
        second.link_up(2)
        assert (await reader.expect(PeerUp, SPOKE)).generation == 2
        first.push_frame(Header(FrameKind.DATA, 1, 1, 0), coded(Numbered(9)))
        second.push_frame(Header(FrameKind.DATA, 2, 1, 0), coded(Numbered(1)))
        assert await reader.numbers(SPOKE, 1) == [1]


async def test_a_spoke_whose_socket_is_gone_is_found_out_by_sending() -> None:
    async with hub_and_context(ZmqSettings(link=PATIENT)) as (hub, reader, context):
        first = play(context, hub, 1)
        first.link_up(1)
        await reader.expect(PeerUp, SPOKE)
        first.dealer.close(linger=0)
        # ZeroMQ learns of it in its own time; every message until then may be lost.
        await send_until_down(hub, Numbered(0))
        down = await reader.expect(PeerDown, SPOKE)
        assert down.reason == f"{SPOKE}: it is not connected"
        second = play(context, hub, 2)
        second.link_up(2)
        assert (await reader.expect(PeerUp, SPOKE)).generation == 2


async def test_a_spoke_that_does_not_read_is_broken_and_others_are_not() -> None:
    settings = ZmqSettings(link=PATIENT, sockets=SocketSettings(high_water=5))
    other = SPOKES[1]
    async with hub_and_context(settings) as (hub, reader, context):
        stalled = play(context, hub, 1, receive_high_water=1)
        stalled.link_up(1)
        await reader.expect(PeerUp, SPOKE)
        async with open_spoke(other, CODEC, CODEC) as spoke, running(spoke):
            spoke.connect(HUB, *hub.endpoints)
            await reader.expect(PeerUp, other)
            await Reader(spoke).expect(PeerUp, HUB)
            await send_until_down(hub, Numbered(0, bytes(2**20)))
            down = await reader.expect(PeerDown, SPOKE)
            assert down.reason == f"{SPOKE}: its pipe is full"
            hub.send(other, Numbered(7))
            assert await Reader(spoke).numbers(HUB, 1) == [7]


async def test_what_is_no_message_is_counted() -> None:
    async with hub_and_context() as (hub, reader, context):
        spoke = play(context, hub, 1)
        link_up = Header(FrameKind.LINK_UP, 1, 0, 0).encode()
        spoke.dealer.send(b"junk")
        spoke.dealer.send_multipart([link_up + spoke.identity, b"than one frame"])
        spoke.dealer.send(Header(FrameKind.ACK, 1, 0, 0).encode() + spoke.identity)
        spoke.link_up(2)  # not its identity's
        spoke.dealer.send(link_up + encode_identity(SPOKE.rank + 1, SPOKE.epoch, 1))
        spoke.link_up(1)
        await reader.expect(PeerUp, SPOKE)
        assert hub.mishaps[Mishap.MALFORMED] == 5
        spoke.push.send(b"")
        spoke.push.send_multipart([b"\xff announced", b"more"])
        spoke.push.send_multipart([b"not", b"announced"])
        spoke.push.send(b"junk")
        spoke.push.send(Header(FrameKind.ACK, 1, 0, 0).encode() + b"wrong id")
        spoke.push_frame(Header(FrameKind.LINK_UP, 1, 0, 0))
        spoke.push_frame(Header(FrameKind.DATA, 1, 1, 0), b"\xff no message")
        spoke.push_frame(Header(FrameKind.DATA, 1, 2, 0), coded(Numbered(3)))
        assert await reader.numbers(SPOKE, 1) == [3]
        assert hub.mishaps[Mishap.MALFORMED] == 5 + 8
        assert hub.links._links[SPOKE].generation == 1


async def test_a_lost_tail_is_found_by_both_ends() -> None:
    quick = LinkSettings(probe_delay_s=0.01, ack_delay_s=0.001)
    async with hub_and_context(ZmqSettings(link=quick)) as (hub, reader, context):
        spoke = play(context, hub, 1)
        spoke.link_up(1)
        await reader.expect(PeerUp, SPOKE)
        hub.send(SPOKE, Numbered(1))
        # The played spoke acknowledges nothing, as if the message had never come.
        assert await spoke.wait_for(FrameKind.PROBE) == Header(FrameKind.PROBE, 1, 1, 0)
        down = await reader.expect(PeerDown, SPOKE)
        assert down.reason == "3 probes were not answered"
        assert (await spoke.wait_for(FrameKind.LINK_RESET)).generation == 1


async def test_a_spoke_opens_new_sockets_for_a_new_generation() -> None:
    """The whole of it over real sockets: a message of the hub's is lost, both sides recover."""
    async with zmq_mesh(ZmqSettings(link=PATIENT)) as mesh:
        hub, spoke = await join(mesh)
        assert isinstance(mesh.hub, HubChannel)
        # A number is taken and its message never sent: what a torn connection does. The outbox
        # drops what is sent while it is closed.
        (outbox,) = mesh.hub.outboxes.values()
        outbox.closed = True
        mesh.hub.send(SPOKE, Numbered(0))
        with trio.fail_after(DEADLINE_S):
            while outbox.sent < outbox.queued:
                await trio.lowlevel.checkpoint()
        outbox.closed = False
        mesh.hub.send(SPOKE, Numbered(1))
        assert (await spoke.expect(PeerDown, HUB)).reason.startswith("gap")
        assert (await spoke.expect(PeerUp, HUB)).generation == 2
        await hub.expect(PeerDown, SPOKE)
        assert (await hub.expect(PeerUp, SPOKE)).generation == 2
        mesh.hub.send(SPOKE, Numbered(2))
        mesh.spokes[0].send(HUB, Numbered(3))
        assert await spoke.numbers(HUB, 1) == [2]
        assert await hub.numbers(SPOKE, 1) == [3]


async def test_a_spoke_connects_before_the_hub_is_bound() -> None:
    async with (
        open_a_hub() as hub,
        open_spoke(SPOKE, CODEC, CODEC) as spoke,
        running(spoke),
    ):
        assert spoke.connect(HUB, *hub.endpoints)
        async with running(hub):
            await Reader(spoke).expect(PeerUp, HUB)
            await Reader(hub).expect(PeerUp, SPOKE)


async def test_a_bad_endpoint_is_refused_where_it_is_given() -> None:
    with pytest.raises(BadEndpoint):
        async with open_hub(HUB, CODEC, CODEC, input_endpoint="x", output_endpoint="y"):
            raise AssertionError("not reached")
    async with open_spoke(SPOKE, CODEC, CODEC) as spoke:
        with pytest.raises(BadEndpoint):
            spoke.connect(HUB, "ipc://@good", "bad")
        assert spoke.links.peers == []
