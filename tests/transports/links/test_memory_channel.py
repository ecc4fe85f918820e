"""The fake's faults: every n-th frame dropped, doubled, delayed, through whole channels."""

import contextlib
import itertools

import pytest
import trio
from trio.testing import MockClock

from triolet.fuzz.doubles.link_faults import FaultKind, NthFault
from triolet.tests.contracts.channel import HUB, SPOKES, Mesh, Numbered, Reader, join
from triolet.tests.contracts.meshes import CODEC, memory_mesh, running
from triolet.transports.links.channel import (
    Channel,
    ChannelEvent,
    Peer,
    PeerDown,
    PeerNotConnected,
    PeerUp,
    Received,
)
from triolet.transports.links.link import Side
from triolet.transports.links.link_header import LinkSettings
from triolet.transports.links.memory_channel import MemoryMesh

MESSAGES = 12


def test_a_fault_happens_once_to_the_nth_frame_of_one_direction() -> None:
    drop = NthFault(FaultKind.DROP, Side.HUB, 2)
    assert [drop.pass_on(Side.SPOKE, n) for n in (1, 2)] == [[1], [2]]
    assert [drop.pass_on(Side.HUB, n) for n in (1, 2, 3)] == [[1], [], [3]]
    assert drop.reached
    double = NthFault(FaultKind.DOUBLE, Side.HUB, 1)
    assert [double.pass_on(Side.HUB, n) for n in (1, 2)] == [[1, 1], [2]]
    delay = NthFault(FaultKind.DELAY, Side.HUB, 1, delay_frames=2)
    assert [delay.pass_on(Side.HUB, n) for n in (1, 2, 3)] == [[], [2], [3, 1]]


async def talk(mesh: Mesh) -> dict[Peer, list[ChannelEvent]]:
    """What both ends saw until long after nothing more happened."""
    ends = {HUB: mesh.hub, SPOKES[0]: mesh.spokes[0]}
    events: dict[Peer, list[ChannelEvent]] = {peer: [] for peer in ends}

    async def read(own: Peer) -> None:
        other = SPOKES[0] if own == HUB else HUB
        while True:
            for event in await ends[own].receive():
                events[own].append(event)
                if isinstance(event, PeerUp):
                    say_all(ends[own], other)

    with trio.move_on_after(30):  # of the mock clock
        async with trio.open_nursery() as nursery:
            for own in ends:
                nursery.start_soon(read, own)
    return events


def say_all(end: Channel, other: Peer) -> None:
    """As the floors above do: whatever is missing is said again in each generation.

    The link may be down again already; its next PeerUp starts anew.
    """
    with contextlib.suppress(PeerNotConnected):
        for number in range(MESSAGES):
            end.send(other, Numbered(number))


def check_history(history: list[ChannelEvent]) -> int:
    """The last generation; each brought its numbers in order, once, and the last brought all."""
    generation, expected = 0, 0
    up = False
    for event in history:
        match event:
            case PeerUp():
                assert not up
                assert event.generation > generation
                generation, expected, up = event.generation, 0, True
            case PeerDown():
                assert up
                up = False
            case Received(message=message):
                assert up
                assert message == Numbered(expected)
                expected += 1
    assert up
    assert expected == MESSAGES
    return generation


@pytest.mark.parametrize("kind", list(FaultKind))
@pytest.mark.parametrize("receiver", list(Side))
async def test_the_nth_frame(kind: FaultKind, receiver: Side, autojump_clock: MockClock) -> None:
    for nth in itertools.count(1):
        fault = NthFault(kind, receiver, nth)
        async with memory_mesh(fault, settings=LinkSettings(ack_messages=4)) as mesh:
            mesh.spokes[0].connect(HUB, *mesh.hub.endpoints)
            events = await talk(mesh)
        last = {check_history(history) for history in events.values()}
        assert len(last) == 1, "both ends are in one generation"
        if not fault.reached:
            assert nth > MESSAGES
            assert last == {1}
            break


async def test_a_spoke_that_is_gone_is_found_out_by_sending() -> None:
    mesh = MemoryMesh(CODEC, CODEC)
    hub, spoke = mesh.open_hub(HUB), mesh.open_spoke(SPOKES[0])
    async with running(hub, spoke):
        reader, _ = await join(Mesh(hub, (spoke,)))
        mesh.remove_spoke(SPOKES[0])
        hub.send(SPOKES[0], Numbered(1))
        down = await reader.expect(PeerDown, SPOKES[0])
        assert down.reason.endswith("it is not connected")


async def test_connecting_before_the_hub_is_there(autojump_clock: MockClock) -> None:
    mesh = MemoryMesh(CODEC, CODEC)
    spoke = mesh.open_spoke(SPOKES[0])
    async with running(spoke):
        name = f"memory://{HUB.role}-{HUB.rank}-{HUB.epoch}"
        assert spoke.connect(HUB, f"{name}-input", f"{name}-output")
        await trio.sleep(3)
        hub = mesh.open_hub(HUB)
        async with running(hub):
            with trio.fail_after(2):
                await Reader(spoke).expect(PeerUp, HUB)
