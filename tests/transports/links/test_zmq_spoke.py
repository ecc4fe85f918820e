"""A spoke that comes over a network, beside one of the hub's own host, and by one port."""

import math

import attrs
import pytest

from triolet.tests.contracts.channel import (
    ANYWHERE,
    CODEC,
    HUB,
    SPOKES,
    Mesh,
    Numbered,
    Reader,
    join,
    one_port_mesh,
    running,
    zmq_mesh,
)
from triolet.transports.array import Array
from triolet.transports.codec import Codec
from triolet.transports.endpoint import BadEndpoint
from triolet.transports.links.channel import PeerUp, Received
from triolet.transports.links.curve import make_link_keys
from triolet.transports.links.zmq_channel import HubChannel, HubSide, ZmqSettings, open_hub
from triolet.transports.links.zmq_spoke import open_spoke


@attrs.frozen
class Filled:
    """A message with an array that has a frame of its own."""

    number: int
    items: Array


def watch_interval_s(hub: HubChannel, index: int) -> float:
    return hub.links._links[SPOKES[index]].settings.silence_probe_s


async def test_who_comes_over_a_network_is_watched_for_silence_and_who_is_local_is_not() -> None:
    keys, own = make_link_keys(), make_link_keys()
    async with zmq_mesh(remote=HubSide(ANYWHERE, ANYWHERE, keys)) as mesh:
        hub: HubChannel = mesh.hub.hub  # type: ignore[attr-defined]
        reader, _ = await join(mesh)
        local = open_spoke(SPOKES[1], CODEC, CODEC, keys=own)
        async with local as spoke, running(spoke):
            assert spoke.connect(HUB, *hub.endpoints)
            await reader.expect(PeerUp, SPOKES[1])
            assert [watch_interval_s(hub, 0), watch_interval_s(hub, 1)] == [0.25, math.inf]
            await Reader(spoke).expect(PeerUp, HUB)
            # Each is reached by its own side.
            for number, end in enumerate((mesh.spokes[0], spoke)):
                end.send(HUB, Numbered(number))
                assert await reader.numbers(SPOKES[number], 1) == [number]


def test_a_shorter_watch_that_was_asked_for_stays() -> None:
    settings = ZmqSettings(remote_silence_probe_s=5.0)
    assert settings.link_by("tcp://127.0.0.1:1").silence_probe_s == 5.0
    settings = attrs.evolve(settings, link=attrs.evolve(settings.link, silence_probe_s=1.0))
    assert settings.link_by("tcp://127.0.0.1:1").silence_probe_s == 1.0
    assert settings.link_by("ipc://@x").silence_probe_s == 1.0


async def test_messages_of_many_frames_go_both_ways_by_one_port() -> None:
    codec = Codec(Filled)
    items = Array("uint8", (2**20,), bytes(range(256)) * 2**12)
    assert len(codec.encode(Filled(1, items))) == 2, "the array is a frame of its own"
    messages = [Filled(number, items) for number in range(3)]
    hub_opened = open_hub(HUB, codec, codec, input_endpoint=ANYWHERE, output_endpoint="")
    async with (
        hub_opened as hub,
        running(hub),
        open_spoke(SPOKES[0], codec, codec) as spoke,
        running(spoke),
    ):
        hub_reader, spoke_reader = await join(Mesh(hub, (spoke,)))
        for message in messages:
            hub.send(SPOKES[0], message)
            spoke.send(HUB, message)
        for reader in (hub_reader, spoke_reader):
            events = [await reader.next() for _ in messages]
            assert [event.message for event in events if isinstance(event, Received)] == messages


async def test_more_than_what_waits_for_a_link_goes_by_one_port() -> None:
    """Its pipes are made for data: those beside a second port hold eight LINK_UPs."""
    async with one_port_mesh() as mesh:
        hub, spoke = await join(mesh)
        count = 5000
        for number in range(count):
            mesh.spokes[0].send(HUB, Numbered(number))
            mesh.hub.send(SPOKES[0], Numbered(number))
        assert await hub.numbers(SPOKES[0], count) == list(range(count))
        assert await spoke.numbers(HUB, count) == list(range(count))


async def test_a_hub_with_keys_needs_a_spoke_with_some() -> None:
    async with open_spoke(SPOKES[0], CODEC, CODEC) as spoke:
        with pytest.raises(ValueError, match="asks for keys"):
            spoke.connect(HUB, "tcp://127.0.0.1:1", "", bytes(32))
        with pytest.raises(BadEndpoint):
            spoke.connect(HUB, "", "")
        assert spoke.links.peers == []


async def test_a_hub_on_ipv6_is_reached() -> None:
    anywhere = "tcp://[::1]:0"
    async with zmq_mesh(endpoints=(anywhere, anywhere), keys=make_link_keys()) as mesh:
        assert mesh.hub.endpoints[0].startswith("tcp://[::1]:")
        await join(mesh)
