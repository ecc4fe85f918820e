"""What every channel promises: checks, and makers of meshes over ZeroMQ and in memory.

A *maker* opens a mesh of one hub and some spokes, all tasks running, nothing connected yet.
"""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import attrs
import pytest
import trio

from triolet.fuzz.doubles.link_faults import NthFault
from triolet.transports.codec import Codec
from triolet.transports.endpoint import abstract_endpoint
from triolet.transports.links.channel import (
    Channel,
    ChannelEvent,
    HubEnd,
    Peer,
    PeerDown,
    PeerNotConnected,
    PeerUp,
    Received,
    RunnableChannel,
    SpokeEnd,
)
from triolet.transports.links.curve import make_link_keys
from triolet.transports.links.link_header import LinkSettings
from triolet.transports.links.link_keys import LinkKeys
from triolet.transports.links.memory_channel import MemoryMesh
from triolet.transports.links.zmq_channel import HubChannel, HubSide, ZmqSettings, open_hub
from triolet.transports.links.zmq_spoke import SpokeChannel, open_spoke

HUB = Peer("frontend", 0, 7)
SPOKES = (Peer("engine", 0, 3), Peer("engine", 1, 3))
# Far beyond what any check needs; only a failing one meets it.
DEADLINE_S = 60.0
MESSAGES = 500

E = TypeVar("E", PeerUp, PeerDown)


@attrs.frozen
class Numbered:
    """The message of these checks, in both directions."""

    number: int
    filling: bytes = b""


@attrs.frozen
class Mesh:
    """One hub and its spokes, in the order of `SPOKES`."""

    hub: HubEnd
    spokes: tuple[SpokeEnd, ...]


MakeMesh = Callable[[], AbstractAsyncContextManager[Mesh]]


@attrs.define(eq=False)
class Reader:
    """Takes events of one channel one by one."""

    channel: Channel
    events: list[ChannelEvent] = attrs.field(factory=list)

    async def next(self) -> ChannelEvent:
        """The next event, however far away."""
        if not self.events:
            with trio.fail_after(DEADLINE_S):
                self.events = await self.channel.receive()
            assert self.events, "receive() returned without an event"
        return self.events.pop(0)

    async def numbers(self, peer: Peer, count: int) -> list[int]:
        """The numbers of the next `count` messages, all of which must be from this peer."""
        found = []
        for _ in range(count):
            event = await self.next()
            assert isinstance(event, Received)
            assert event.peer == peer
            assert isinstance(event.message, Numbered)
            found.append(event.message.number)
        return found

    async def expect(self, kind: type[E], peer: Peer) -> E:
        """The next event, which must be of this kind and peer."""
        event = await self.next()
        assert isinstance(event, kind), event
        assert event.peer == peer
        return event


async def join(mesh: Mesh, index: int = 0) -> tuple[Reader, Reader]:
    """Connect a spoke, and see it come up on both sides."""
    hub, spoke = Reader(mesh.hub), Reader(mesh.spokes[index])
    assert mesh.spokes[index].connect(HUB, *mesh.hub.endpoints)
    up_hub = await hub.expect(PeerUp, SPOKES[index])
    up_spoke = await spoke.expect(PeerUp, HUB)
    assert up_hub.generation == up_spoke.generation
    return hub, spoke


async def check_comes_up_and_carries_in_order(make_mesh: MakeMesh) -> None:
    """Both sides see PeerUp; messages arrive in order, once, in both directions at a time."""
    async with make_mesh() as mesh:
        hub, spoke = await join(mesh)
        for number in range(MESSAGES):
            mesh.hub.send(SPOKES[0], Numbered(number))
            mesh.spokes[0].send(HUB, Numbered(-number))
        assert await spoke.numbers(HUB, MESSAGES) == list(range(MESSAGES))
        assert await hub.numbers(SPOKES[0], MESSAGES) == [-n for n in range(MESSAGES)]


async def check_frames_are_kept(make_mesh: MakeMesh) -> None:
    """What a message came as decodes to it, however long it is and whatever carried it."""
    messages = [Numbered(1), Numbered(2, bytes(1000)), Numbered(3, bytes(3 * 2**20))]
    async with make_mesh() as mesh:
        hub, spoke = await join(mesh)
        for message in messages:
            mesh.spokes[0].send(HUB, message)
            mesh.hub.send(SPOKES[0], message)
        for reader in (hub, spoke):
            events = [await reader.next() for _ in messages]
            frames = [event.frame for event in events if isinstance(event, Received)]
            assert [CODEC.decode([frame]) for frame in frames] == messages
            assert all(frame.readonly for frame in frames)


async def check_send_needs_a_link(make_mesh: MakeMesh) -> None:
    """Before PeerUp and to strangers: PeerNotConnected, at once."""
    async with make_mesh() as mesh:
        with pytest.raises(PeerNotConnected):
            mesh.hub.send(SPOKES[0], Numbered(0))
        with pytest.raises(PeerNotConnected):
            mesh.spokes[0].send(HUB, Numbered(0))
        await join(mesh)
        with pytest.raises(PeerNotConnected) as caught:
            mesh.hub.send(SPOKES[1], Numbered(0))
        assert caught.value.peer == SPOKES[1]


async def check_send_waits_for_the_reader(make_mesh: MakeMesh) -> None:
    """Nothing is sent in a generation before its PeerUp was taken."""
    async with make_mesh() as mesh:
        assert mesh.spokes[0].connect(HUB, *mesh.hub.endpoints)
        spoke = Reader(mesh.spokes[0])
        await spoke.expect(PeerUp, HUB)
        # The spoke is up, so the hub's PeerUp waits unread.
        with pytest.raises(PeerNotConnected):
            mesh.hub.send(SPOKES[0], Numbered(0))
        await Reader(mesh.hub).expect(PeerUp, SPOKES[0])
        mesh.hub.send(SPOKES[0], Numbered(1))
        assert await spoke.numbers(HUB, 1) == [1]


async def check_ups_are_taken_first(make_mesh: MakeMesh) -> None:
    """What came before a PeerUp has been handled when it is taken."""
    async with make_mesh() as mesh:
        await join(mesh, 0)
        mesh.spokes[0].send(HUB, Numbered(1))
        assert mesh.spokes[1].connect(HUB, *mesh.hub.endpoints)
        await Reader(mesh.spokes[1]).expect(PeerUp, HUB)
        up: ChannelEvent = PeerUp(SPOKES[1], 1)
        wanted, seen = [up, Received(SPOKES[0], Numbered(1))], list[ChannelEvent]()
        with trio.fail_after(DEADLINE_S):
            while len(seen) < len(wanted):
                events = await mesh.hub.receive()
                assert up not in events[1:]
                seen += events
        assert all(event in seen for event in wanted)


async def check_break_link(make_mesh: MakeMesh) -> None:
    """Either side may end a generation; both see it go, and the next one come."""
    async with make_mesh() as mesh:
        hub, spoke = await join(mesh)
        ends: list[tuple[Channel, Peer]] = [(mesh.hub, SPOKES[0]), (mesh.spokes[0], HUB)]
        for number, (end, other) in enumerate(ends):
            end.break_link(other, "the reader misses something")
            end.break_link(other, "and once more")
            with pytest.raises(PeerNotConnected):
                end.send(other, Numbered(9))
            for reader, peer in ((hub, SPOKES[0]), (spoke, HUB)):
                await reader.expect(PeerDown, peer)
                assert (await reader.expect(PeerUp, peer)).generation == number + 2
            mesh.hub.send(SPOKES[0], Numbered(number))
            assert await spoke.numbers(HUB, 1) == [number]


async def check_several_spokes(make_mesh: MakeMesh) -> None:
    """Each spoke gets its own messages; forgetting one leaves the other alone."""
    async with make_mesh() as mesh:
        hub, first = await join(mesh, 0)
        _, second = await join(mesh, 1)
        mesh.hub.send(SPOKES[0], Numbered(10))
        mesh.hub.send(SPOKES[1], Numbered(11))
        assert await first.numbers(HUB, 1) == [10]
        assert await second.numbers(HUB, 1) == [11]
        mesh.hub.forget(SPOKES[0])
        await hub.expect(PeerDown, SPOKES[0])
        mesh.hub.send(SPOKES[1], Numbered(12))
        assert await second.numbers(HUB, 1) == [12]
        mesh.spokes[1].send(HUB, Numbered(13))
        assert await hub.numbers(SPOKES[1], 1) == [13]


async def check_forget(make_mesh: MakeMesh) -> None:
    """One last PeerDown, then silence: what the peer still sends is ignored, connecting is too."""
    async with make_mesh() as mesh:
        hub, first = await join(mesh, 0)
        for number in range(10):
            mesh.spokes[0].send(HUB, Numbered(number))
        # They are on their way, or wait unread; the barrier is another spoke's message.
        mesh.hub.forget(SPOKES[0])
        mesh.hub.forget(SPOKES[0])
        await hub.expect(PeerDown, SPOKES[0])
        with pytest.raises(PeerNotConnected):
            mesh.hub.send(SPOKES[0], Numbered(0))
        await join(mesh, 1)
        mesh.spokes[1].send(HUB, Numbered(20))
        assert await hub.numbers(SPOKES[1], 1) == [20]

        mesh.spokes[0].forget(HUB)
        await first.expect(PeerDown, HUB)
        assert not mesh.spokes[0].connect(HUB, *mesh.hub.endpoints)
        with pytest.raises(PeerNotConnected):
            mesh.spokes[0].send(HUB, Numbered(0))


async def check_forget_takes_back_unread_events(make_mesh: MakeMesh) -> None:
    """A reader that never saw PeerUp gets no PeerDown either."""
    async with make_mesh() as mesh:
        assert mesh.spokes[0].connect(HUB, *mesh.hub.endpoints)
        await Reader(mesh.spokes[0]).expect(PeerUp, HUB)
        # The spoke is up, so the hub's PeerUp waits unread.
        mesh.hub.forget(SPOKES[0])
        hub, _ = await join(mesh, 1)
        mesh.spokes[1].send(HUB, Numbered(1))
        assert await hub.numbers(SPOKES[1], 1) == [1]


async def check_connect_is_idempotent(make_mesh: MakeMesh) -> None:
    """Snapshots of the membership repeat themselves; a link in use is left alone."""
    async with make_mesh() as mesh:
        hub, _ = await join(mesh)
        assert not mesh.spokes[0].connect(HUB, *mesh.hub.endpoints)
        mesh.spokes[0].send(HUB, Numbered(1))
        assert await hub.numbers(SPOKES[0], 1) == [1]


async def check_cancelled_receive_loses_nothing(make_mesh: MakeMesh) -> None:
    """Cancelled while waiting, and with events there: the next call gets them all."""
    async with make_mesh() as mesh:
        hub, spoke = await join(mesh)
        with trio.CancelScope() as scope:
            scope.cancel("the check cancels it before it waits")
            await mesh.hub.receive()
        assert scope.cancelled_caught
        mesh.spokes[0].send(HUB, Numbered(1))
        mesh.spokes[0].send(HUB, Numbered(2))
        mesh.hub.send(SPOKES[0], Numbered(3))
        assert await spoke.numbers(HUB, 1) == [3]
        with trio.CancelScope() as scope:
            scope.cancel("the check cancels it with events on their way")
            await mesh.hub.receive()
        assert await hub.numbers(SPOKES[0], 2) == [1, 2]


async def check_successor_of_a_forgotten_peer(make_mesh: MakeMesh) -> None:
    """A spoke that connects to a hub which forgot an older incarnation of it is another peer."""
    async with make_mesh() as mesh:
        older = Peer("engine", 0, SPOKES[0].epoch - 1)
        mesh.hub.forget(older)
        hub, _ = await join(mesh)
        mesh.spokes[0].send(HUB, Numbered(5))
        assert await hub.numbers(SPOKES[0], 1) == [5]


CHECKS = (
    check_comes_up_and_carries_in_order,
    check_frames_are_kept,
    check_send_needs_a_link,
    check_send_waits_for_the_reader,
    check_ups_are_taken_first,
    check_break_link,
    check_several_spokes,
    check_forget,
    check_forget_takes_back_unread_events,
    check_connect_is_idempotent,
    check_cancelled_receive_loses_nothing,
    check_successor_of_a_forgotten_peer,
)


CODEC = Codec(Numbered)


@asynccontextmanager
async def running(*channels: RunnableChannel) -> AsyncIterator[None]:
    """All tasks of each channel, until the block ends."""
    async with trio.open_nursery() as nursery:
        for channel in channels:
            nursery.start_soon(_run_deadlines, channel)
            await nursery.start(_run_input, channel)
            await nursery.start(_run_output, channel)
        yield
        nursery.cancel_scope.cancel("the test is over")


async def _run_deadlines(channel: RunnableChannel) -> None:
    await channel.run_deadlines(task_status=trio.TASK_STATUS_IGNORED)


async def _run_input(channel: RunnableChannel, task_status: trio.TaskStatus[str]) -> None:
    await channel.run_input(task_status=task_status)


async def _run_output(channel: RunnableChannel, task_status: trio.TaskStatus[str]) -> None:
    await channel.run_output(task_status=task_status)


@asynccontextmanager
async def memory_mesh(
    *faults: NthFault, settings: LinkSettings | None = None
) -> AsyncIterator[Mesh]:
    """The fake, with faults if wanted."""
    mesh = MemoryMesh(CODEC, CODEC, settings or LinkSettings(), list(faults))
    hub = mesh.open_hub(HUB)
    spokes = tuple(mesh.open_spoke(peer) for peer in SPOKES)
    async with running(hub, *spokes):
        yield Mesh(hub, spokes)


def _endpoints() -> tuple[str, str]:
    run_id = secrets.token_hex(8)
    return (
        abstract_endpoint(run_id, "frontend", 0, 7, socket="input"),
        abstract_endpoint(run_id, "frontend", 0, 7, socket="output"),
    )


@attrs.frozen
class RemoteHub:
    """A hub as its remote spokes see it."""

    hub: HubChannel

    @property
    def endpoints(self) -> tuple[str, str]:
        return self.hub.remote_endpoints

    def __getattr__(self, name: str) -> Any:
        return getattr(self.hub, name)


@attrs.frozen
class KnowingSpoke:
    """A spoke that knows its hubs' public key."""

    spoke: SpokeChannel
    server_key: bytes

    def connect(
        self, peer: Peer, input_endpoint: str, output_endpoint: str, server_key: bytes = b""
    ) -> bool:
        server_key = server_key or self.server_key
        return self.spoke.connect(peer, input_endpoint, output_endpoint, server_key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spoke, name)


@asynccontextmanager
async def zmq_mesh(
    settings: ZmqSettings | None = None,
    endpoints: tuple[str, str] | None = None,
    *,
    keys: LinkKeys | None = None,
    remote: HubSide | None = None,
) -> AsyncIterator[Mesh]:
    """The real one, over abstract Unix sockets unless others are given.

    With `keys` of the hub each spoke has its own; with a remote side all come by it.
    """
    async with AsyncExitStack() as stack:
        input_endpoint, output_endpoint = endpoints or _endpoints()
        hub = await stack.enter_async_context(
            open_hub(
                HUB,
                CODEC,
                CODEC,
                input_endpoint=input_endpoint,
                output_endpoint=output_endpoint,
                keys=keys,
                remote=remote,
                settings=settings,
            )
        )
        server_keys = remote.keys if remote else keys
        pairs = {peer: make_link_keys() if server_keys else None for peer in SPOKES}
        hub.allow({pair.public: frozenset({peer.rank}) for peer, pair in pairs.items() if pair})
        spokes = [
            await stack.enter_async_context(
                open_spoke(peer, CODEC, CODEC, keys=pair, settings=settings)
            )
            for peer, pair in pairs.items()
        ]
        await stack.enter_async_context(running(hub, *spokes))
        if server_keys is None:
            yield Mesh(hub, tuple(spokes))
        else:
            knowing = tuple(KnowingSpoke(spoke, server_keys.public) for spoke in spokes)
            yield Mesh(RemoteHub(hub) if remote else hub, knowing)


ANYWHERE = "tcp://127.0.0.1:0"


def tcp_mesh() -> AbstractAsyncContextManager[Mesh]:
    """The real one over TCP, on ports that the kernel chooses."""
    return zmq_mesh(endpoints=(ANYWHERE, ANYWHERE))


def curve_mesh() -> AbstractAsyncContextManager[Mesh]:
    """Likewise, with keys."""
    return zmq_mesh(endpoints=(ANYWHERE, ANYWHERE), keys=make_link_keys())


def one_port_mesh() -> AbstractAsyncContextManager[Mesh]:
    """Likewise, by one port."""
    return zmq_mesh(endpoints=(ANYWHERE, ""), keys=make_link_keys())


def remote_mesh() -> AbstractAsyncContextManager[Mesh]:
    """A hub with a local pair, and spokes that come by the remote one."""
    return zmq_mesh(remote=HubSide(ANYWHERE, ANYWHERE, make_link_keys()))
