"""Links of a channel: fences, bounds and deadlines over a list; n-th faults over memory."""

from collections.abc import Sequence
from typing import ClassVar

import attrs
import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from triolet.tests.contracts.channel import HUB, SPOKES, Mesh, Numbered, join, running
from triolet.transports.array import Frame
from triolet.transports.codec import Codec, CodecLimits, MessageTooLarge
from triolet.transports.links.channel import (
    Misread,
    Peer,
    PeerDown,
    PeerHeard,
    PeerNotConnected,
    PeerSilent,
    PeerUp,
    Received,
)
from triolet.transports.links.link import Side
from triolet.transports.links.link_header import FrameKind, Header, LinkSettings, Mishap
from triolet.transports.links.linked_channel import LinkedChannel
from triolet.transports.links.memory_channel import MemoryMesh

PEER = Peer("engine", 0, 5)
OTHER = Peer("engine", 1, 5)


@attrs.frozen
class Word:
    text: str


CODEC = Codec(Word, limits=CodecLimits(bytes_max=1000))


@attrs.define(eq=False)
class ListCarrier:
    """Keeps what it is to carry."""

    sent: list[tuple[Peer, Header]] = attrs.field(factory=list)
    open: dict[Peer, int] = attrs.field(factory=dict)
    room: int = 0
    left: int = 1000

    def open_generation(self, peer: Peer, generation: int) -> None:
        self.open[peer] = generation

    def close(self, peer: Peer) -> None:
        del self.open[peer]

    def transmit(self, peer: Peer, header: Header, frames: Sequence[Frame]) -> bool:
        if self.left == 0:
            return False
        self.left -= 1
        self.sent.append((peer, header))
        return True

    def kinds(self) -> list[FrameKind]:
        kinds = [header.kind for _, header in self.sent]
        self.sent.clear()
        return kinds


@attrs.define(eq=False)
class Hub:
    carrier: ListCarrier = attrs.field(factory=ListCarrier)
    settings: LinkSettings = attrs.field(factory=LinkSettings)
    events_max: int = 100
    channel: LinkedChannel = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.channel = LinkedChannel(
            Side.HUB, self.carrier, CODEC, CODEC, self.settings, events_max=self.events_max
        )

    def up(self, peer: Peer = PEER, generation: int = 1) -> None:
        self.channel.handle_frames(peer, Header(FrameKind.LINK_UP, generation, 0, 0), ())

    async def join(self, peer: Peer = PEER, generation: int = 1) -> None:
        """Up, and the reader knows."""
        self.up(peer, generation)
        assert (await self.channel.receive())[-1] == PeerUp(peer, generation)

    def data(self, number: int, peer: Peer = PEER, generation: int = 1) -> None:
        header = Header(FrameKind.DATA, generation, number, 0)
        self.channel.handle_frames(peer, header, CODEC.encode(Word(str(number))))


@attrs.frozen
class Name:
    text: str


@attrs.frozen
class Question:
    text: str
    size: int

    known_when_malformed: ClassVar[type] = Name


async def test_a_spoke_that_says_nothing_is_reported_and_reported_again_when_it_speaks(
    autojump_clock: MockClock,
) -> None:
    hub = Hub(settings=LinkSettings(silence_probe_s=0.25))
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(hub.channel.run_deadlines)
        await hub.join()
        assert await hub.channel.receive() == [PeerSilent(PEER, 1.0)]
        assert trio.current_time() - began == pytest.approx(1.0)
        asked = [FrameKind.LINK_ACCEPT, *[FrameKind.PROBE] * 4]
        assert hub.carrier.kinds() == asked
        hub.channel.handle_frames(PEER, Header(FrameKind.ACK, 1, 0, 0), ())
        assert await hub.channel.receive() == [PeerHeard(PEER)]
        nursery.cancel_scope.cancel("seen")


async def test_a_misread_message_is_known_counted_and_no_change_of_the_link() -> None:
    codec = Codec(Question)
    channel = LinkedChannel(Side.HUB, ListCarrier(), codec, codec)
    channel.handle_frames(PEER, Header(FrameKind.LINK_UP, 1, 0, 0), ())
    spoiled = b"\x00" + msgspec.msgpack.encode({"text": "mine", "size": "large"})
    channel.handle_frames(PEER, Header(FrameKind.DATA, 1, 1, 0), [spoiled])
    up, misread = await channel.receive()
    assert up == PeerUp(PEER, 1)
    assert isinstance(misread, Misread)
    assert (misread.peer, misread.error.known) == (PEER, Name("mine"))
    assert channel.mishaps[Mishap.MALFORMED] == 1
    channel.handle_frames(PEER, Header(FrameKind.DATA, 1, 2, 0), [spoiled])
    channel.forget(PEER)
    with trio.fail_after(60):
        assert await channel.receive() == [PeerDown(PEER, "the peer was forgotten")]


async def test_only_a_link_up_makes_a_hub_know_a_peer() -> None:
    hub = Hub()
    hub.data(1)
    assert hub.channel.mishaps[Mishap.STRAY] == 1
    hub.up()
    assert await hub.channel.receive() == [PeerUp(PEER, 1)]
    assert hub.carrier.open == {PEER: 1}


async def test_forgetting_fences_older_epochs_of_the_rank_and_no_others() -> None:
    hub = Hub()
    hub.channel.forget(PEER)
    for stray in (PEER, Peer("engine", 0, 4)):
        hub.up(stray)
    assert hub.channel.mishaps[Mishap.STRAY] == 2
    for welcome in (OTHER, Peer("engine", 0, 6), Peer("other", 0, 5)):
        hub.up(welcome)
        assert await hub.channel.receive() == [PeerUp(welcome, 1)]


async def test_a_peer_that_was_reported_down_is_forgotten_in_silence() -> None:
    hub = Hub()
    hub.up()
    hub.channel.handle_broken(PEER, 1, "cut")
    assert await hub.channel.receive() == [PeerUp(PEER, 1), PeerDown(PEER, "cut")]
    hub.channel.forget(PEER)
    assert len(hub.channel._events) == 0
    assert hub.carrier.open == {}


async def test_forgetting_between_reads_keeps_ups_and_downs_in_turn() -> None:
    hub = Hub()
    hub.up()
    assert await hub.channel.receive() == [PeerUp(PEER, 1)]
    hub.data(1)
    hub.up(generation=2)
    hub.data(1, generation=2)
    hub.channel.forget(PEER)
    assert await hub.channel.receive() == [PeerDown(PEER, "the peer was forgotten")]


async def test_a_message_that_cannot_be_decoded_is_counted_and_the_link_goes_on() -> None:
    hub = Hub()
    hub.up()
    hub.channel.handle_frames(PEER, Header(FrameKind.DATA, 1, 1, 0), [b"\xff junk"])
    hub.channel.handle_frames(PEER, Header(FrameKind.DATA, 1, 2, 0), ())
    hub.data(3)
    assert await hub.channel.receive() == [PeerUp(PEER, 1), Received(PEER, Word("3"))]
    assert hub.channel.mishaps[Mishap.MALFORMED] == 2


async def test_a_message_that_cannot_be_encoded_takes_no_number() -> None:
    hub = Hub()
    await hub.join()
    with pytest.raises(MessageTooLarge):
        hub.channel.send(PEER, Word("x" * 2000))
    hub.channel.send(PEER, Word("fits"))
    assert hub.carrier.sent[-1] == (PEER, Header(FrameKind.DATA, 1, 1, 0))


async def test_a_full_outbox_ends_the_generation() -> None:
    hub = Hub()
    await hub.join()
    hub.carrier.left = 1
    hub.channel.send(PEER, Word("a"))
    with pytest.raises(PeerNotConnected):
        hub.channel.send(PEER, Word("b"))
    assert await hub.channel.receive() == [PeerDown(PEER, "the outbox is full")]


async def test_a_peer_that_never_acknowledges_ends_the_generation() -> None:
    hub = Hub(settings=LinkSettings(unacknowledged_max=3))
    await hub.join()
    for _ in range(3):
        hub.channel.send(PEER, Word("a"))
    with pytest.raises(PeerNotConnected):
        hub.channel.send(PEER, Word("a"))
    reason = "3 messages were not acknowledged"
    assert await hub.channel.receive() == [PeerDown(PEER, reason)]


async def test_the_inbox_has_a_bound_that_costs_only_the_flooding_peer() -> None:
    hub = Hub(events_max=10)
    hub.up(OTHER)
    hub.data(1, OTHER)
    hub.up()
    for number in range(1, 9):
        hub.data(number)
    reason = "the messages of this channel are not read"
    assert hub.channel.mishaps[Mishap.OVERFLOW] == 1
    # PEER never came up for the reader, so it does not go down; OTHER lost nothing.
    assert await hub.channel.receive() == [PeerUp(OTHER, 1), Received(OTHER, Word("1"))]
    hub.up(generation=2)
    assert await hub.channel.receive() == [PeerUp(PEER, 2)]
    for number in range(1, 12):
        hub.data(number, generation=2)
    assert await hub.channel.receive() == [PeerDown(PEER, reason)]


async def test_sending_waits_until_the_reader_knows_the_generation_that_is_up() -> None:
    hub = Hub()
    hub.up()
    with pytest.raises(PeerNotConnected):
        hub.channel.send(PEER, Word("early"))
    assert await hub.channel.receive() == [PeerUp(PEER, 1)]
    hub.channel.send(PEER, Word("a"))
    hub.data(1)
    hub.up(generation=2)
    hub.up(generation=3)
    hub.up(OTHER)
    with pytest.raises(PeerNotConnected):
        hub.channel.send(PEER, Word("of the first generation"))
    events = [Received(PEER, Word("1")), PeerDown(PEER, "the spoke opened generation 2")]
    assert await hub.channel.receive() == events
    down = PeerDown(PEER, "the spoke opened generation 3")
    assert await hub.channel.receive() == [PeerUp(PEER, 2), down]
    with pytest.raises(PeerNotConnected):
        hub.channel.send(PEER, Word("of the second"))
    assert await hub.channel.receive() == [PeerUp(PEER, 3), PeerUp(OTHER, 1)]
    hub.channel.send(PEER, Word("b"))
    assert hub.carrier.sent[-1] == (PEER, Header(FrameKind.DATA, 3, 1, 0))


async def test_a_reader_breaks_only_a_generation_that_it_knows() -> None:
    hub = Hub()
    await hub.join()
    hub.channel.break_link(PEER, "something is missing")
    hub.up(generation=2)
    hub.channel.break_link(PEER, "the same, noticed again")
    assert await hub.channel.receive() == [PeerDown(PEER, "something is missing")]
    assert await hub.channel.receive() == [PeerUp(PEER, 2)]


async def test_a_flapping_peer_without_a_reader_stays_within_the_bound() -> None:
    hub = Hub(events_max=4)
    hub.up()
    assert await hub.channel.receive() == [PeerUp(PEER, 1)]
    for generation in range(2, 50):
        hub.up(generation=generation)
        assert len(hub.channel._events) <= 5
    events = await hub.channel.receive()
    while events[-1] != PeerUp(PEER, 49):
        events += await hub.channel.receive()
    assert isinstance(events[0], PeerDown)
    kinds = [type(event) for event in events]
    assert kinds == [PeerDown, PeerUp] * (len(kinds) // 2)


async def test_deadlines_are_kept_and_an_idle_channel_sleeps(autojump_clock: MockClock) -> None:
    hub = Hub()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hub.channel.run_deadlines)
        await wait_all_tasks_blocked()
        await hub.join()
        assert hub.carrier.kinds() == [FrameKind.LINK_ACCEPT]
        hub.data(1)
        await trio.sleep(0.049)
        assert hub.carrier.kinds() == []
        await trio.sleep(0.002)
        assert hub.carrier.kinds() == [FrameKind.ACK]
        hub.channel.send(PEER, Word("lost"))
        await trio.sleep(10)
        kinds = [FrameKind.DATA, *[FrameKind.PROBE] * 3]
        sent = hub.carrier.kinds()
        assert sent[:4] == kinds
        assert set(sent[4:]) == {FrameKind.LINK_RESET}
        hub.up(generation=2)
        hub.carrier.kinds()
        await trio.sleep(1000)
        assert hub.carrier.kinds() == []
        nursery.cancel_scope.cancel("the test is over")


async def test_a_spoke_connects_once_and_not_to_a_fenced_peer() -> None:
    carrier = ListCarrier()
    spoke = LinkedChannel(Side.SPOKE, carrier, CODEC, CODEC)
    assert spoke.connect(PEER)
    assert carrier.kinds() == [FrameKind.LINK_UP]
    assert not spoke.connect(PEER)
    spoke.forget(PEER)
    assert not spoke.connect(PEER)
    assert carrier.sent == []


async def test_one_task_receives_and_a_cancelled_one_makes_room() -> None:
    hub = Hub()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hub.channel.receive)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await hub.channel.receive()
        nursery.cancel_scope.cancel("the test cancels who waits")
    hub.up()
    assert await hub.channel.receive() == [PeerUp(PEER, 1)]


async def test_a_spoke_that_is_gone_is_noticed_by_sending() -> None:
    mesh = MemoryMesh(CODEC, Codec(Numbered))
    hub, spoke = mesh.open_hub(HUB), mesh.open_spoke(SPOKES[0])
    async with running(hub, spoke):
        reader, _ = await join(Mesh(hub, (spoke,)))
        spoke.forget(HUB)
        hub.send(SPOKES[0], Word("lost"))
        down = await reader.expect(PeerDown, SPOKES[0])
        assert down.reason.endswith("it is not connected")
