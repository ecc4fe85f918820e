"""Who gets in by a socket with keys: those with a key that is allowed, as their ranks."""

import math
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest
import trio
import zmq
from zmq.utils.monitor import recv_monitor_message

from triolet.fuzz import observers
from triolet.tests.contracts.channel import (
    ANYWHERE,
    CODEC,
    HUB,
    SPOKES,
    Numbered,
    Reader,
    running,
)
from triolet.transports.endpoint import encode_identity
from triolet.transports.links.channel import Peer, PeerDown, PeerNotConnected, PeerUp
from triolet.transports.links.curve import guard_bound, make_link_keys, show_keys
from triolet.transports.links.link_header import FrameKind, Header, Mishap
from triolet.transports.links.link_keys import LinkKeys
from triolet.transports.links.zmq_channel import HubChannel, HubSide, ZmqSettings, open_hub
from triolet.transports.links.zmq_sockets import Socket
from triolet.transports.links.zmq_spoke import SpokeChannel, open_spoke

SERVER, CLIENT, OTHER = make_link_keys(), make_link_keys(), make_link_keys()
SPOKE = SPOKES[0]


# A PUSH that was refused as well comes again up to 2 s later than its DEALER: silence until then is
# no event of these tests.
UNWATCHED = ZmqSettings(remote_silence_probe_s=math.inf)


def two_ports(output_endpoint: str = ANYWHERE) -> AbstractAsyncContextManager[HubChannel]:
    return open_hub(
        HUB,
        CODEC,
        CODEC,
        input_endpoint=ANYWHERE,
        output_endpoint=output_endpoint,
        keys=SERVER,
        settings=UNWATCHED,
    )


def one_port() -> AbstractAsyncContextManager[HubChannel]:
    return two_ports("")


MakeHub = Callable[[], AbstractAsyncContextManager[HubChannel]]
by_both_ways = pytest.mark.parametrize("make_hub", [two_ports, one_port])


async def wait_until(condition: Callable[[], bool]) -> None:
    await observers.wait_until(condition, "what the hub counts", seconds=60.0)


@pytest.fixture
def sockets() -> Iterator[Callable[[int], Socket]]:
    """Makes sockets that are closed after the test."""
    context: zmq.Context[Socket] = zmq.Context()
    made = list[Socket]()

    def make(kind: int) -> Socket:
        made.append(context.socket(kind))
        return made[-1]

    yield make
    for socket in made:
        socket.close(linger=0)
    context.term()


@asynccontextmanager
async def open_running(peer: Peer, keys: LinkKeys) -> AsyncIterator[SpokeChannel]:
    async with open_spoke(peer, CODEC, CODEC, keys=keys) as spoke, running(spoke):
        yield spoke


@by_both_ways
async def test_a_key_that_is_not_allowed_is_refused_until_it_is(
    make_hub: MakeHub,
) -> None:
    """The connection that was refused comes again by itself: news of a key may be late."""
    async with make_hub() as hub, running(hub), open_running(SPOKE, CLIENT) as spoke:
        hub.allow({OTHER.public: None})
        spoke.connect(HUB, *hub.endpoints, SERVER.public)
        await wait_until(lambda: hub.refusals >= 1)
        assert hub.links.peers == []
        hub.allow({CLIENT.public: frozenset({SPOKE.rank})})
        reader = Reader(hub)
        await reader.expect(PeerUp, SPOKE)
        await Reader(spoke).expect(PeerUp, HUB)
        spoke.send(HUB, Numbered(1))
        assert await reader.numbers(SPOKE, 1) == [1]
        assert hub.mishaps[Mishap.UNWELCOME] == 0


@by_both_ways
async def test_a_right_key_with_anothers_rank_is_ignored_and_counted(
    make_hub: MakeHub,
) -> None:
    async with make_hub() as hub, running(hub), open_running(SPOKE, CLIENT) as spoke:
        hub.allow({CLIENT.public: frozenset({SPOKE.rank + 1})})
        spoke.connect(HUB, *hub.endpoints, SERVER.public)
        await wait_until(lambda: hub.mishaps[Mishap.UNWELCOME] >= 2)
        assert hub.links.peers == []
        assert hub.refusals == 0


@by_both_ways
async def test_a_plain_peer_gets_nothing_through(
    make_hub: MakeHub, sockets: Callable[[int], Socket]
) -> None:
    async with make_hub() as hub, running(hub), open_running(SPOKE, CLIENT) as spoke:
        hub.allow({CLIENT.public: None})
        identity = encode_identity(SPOKE.rank, SPOKE.epoch, 1)
        dealer = sockets(zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, identity)
        with dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
            dealer.connect(hub.endpoints[0])
            with suppress(zmq.Again):  # it may have been thrown out already
                dealer.send(Header(FrameKind.LINK_UP, 1, 0, 0).encode() + identity, zmq.NOBLOCK)
            assert await trio.to_thread.run_sync(monitor.poll, 60_000), "it is thrown out"
        assert hub.links.peers == []
        # The hub goes on, for those with a key.
        spoke.connect(HUB, *hub.endpoints, SERVER.public)
        await Reader(hub).expect(PeerUp, SPOKE)


async def test_a_spoke_goes_to_no_hub_with_another_key() -> None:
    async with two_ports() as hub, running(hub), open_running(SPOKE, CLIENT) as spoke:
        hub.allow({CLIENT.public: None})
        spoke.connect(HUB, *hub.endpoints, OTHER.public)
        async with open_running(SPOKES[1], CLIENT) as other:
            other.connect(HUB, *hub.endpoints, SERVER.public)
            await Reader(hub).expect(PeerUp, SPOKES[1])
        assert hub.links.peers == [SPOKES[1]]
        assert hub.refusals == 0


async def test_a_key_that_is_taken_away_opens_no_generation() -> None:
    async with two_ports() as hub, running(hub), open_running(SPOKE, CLIENT) as spoke:
        hub.allow({CLIENT.public: None})
        spoke.connect(HUB, *hub.endpoints, SERVER.public)
        reader = Reader(hub)
        await reader.expect(PeerUp, SPOKE)
        await Reader(spoke).expect(PeerUp, HUB)
        spoke.send(HUB, Numbered(0))
        assert await reader.numbers(SPOKE, 1) == [0], "its PUSH is up as well"
        hub.allow({})
        spoke.send(HUB, Numbered(1))
        assert await reader.numbers(SPOKE, 1) == [1], "what is up stays up"
        hub.break_link(SPOKE, "the test wants a new generation")
        await reader.expect(PeerDown, SPOKE)
        await wait_until(lambda: hub.refusals >= 1)
        with pytest.raises(PeerNotConnected):
            hub.send(SPOKE, Numbered(2))


async def test_what_is_up_by_one_side_is_not_spoken_for_by_the_other(
    sockets: Callable[[int], Socket],
) -> None:
    """A local engine's identity in a message of a remote peer, whose key is good."""
    remote = HubSide(ANYWHERE, ANYWHERE, SERVER)
    home = f"ipc://@{secrets.token_hex(8)}"
    hub_opened = open_hub(
        HUB,
        CODEC,
        CODEC,
        input_endpoint=f"{home}-input",
        output_endpoint=f"{home}-output",
        remote=remote,
    )
    async with hub_opened as hub, running(hub):
        hub.allow({CLIENT.public: frozenset({SPOKES[1].rank})})
        async with open_running(SPOKE, CLIENT) as spoke:
            spoke.connect(HUB, *hub.endpoints)
            reader = Reader(hub)
            await reader.expect(PeerUp, SPOKE)
            await Reader(spoke).expect(PeerUp, HUB)
            push = sockets(zmq.PUSH)
            show_keys(push, CLIENT, SERVER.public)
            push.connect(hub.remote_endpoints[1])
            identity = encode_identity(SPOKE.rank, SPOKE.epoch, 1)
            payload = b"".join(CODEC.encode(Numbered(666)))
            push.send(Header(FrameKind.DATA, 1, 1, 0).encode() + identity + payload)
            await wait_until(lambda: hub.mishaps[Mishap.UNWELCOME] == 1)
            spoke.send(HUB, Numbered(1))
            assert await reader.numbers(SPOKE, 1) == [1]


def test_a_socket_whose_door_nobody_keeps_lets_nobody_in(sockets: Callable[[int], Socket]) -> None:
    pull = sockets(zmq.PULL)
    guard_bound(pull, SERVER)
    failed = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    failed |= zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    with pull.get_monitor_socket(failed | zmq.EVENT_HANDSHAKE_SUCCEEDED) as monitor:
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        push = sockets(zmq.PUSH)
        show_keys(push, CLIENT, SERVER.public)
        push.connect(f"tcp://127.0.0.1:{port}")
        with suppress(zmq.Again):  # as above
            push.send(b"hello", zmq.NOBLOCK)
        assert monitor.poll(60_000), "the handshake ends"
        assert recv_monitor_message(monitor)["event"] & failed
