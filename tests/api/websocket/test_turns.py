"""Sockets that go on at the next life of their frontend, with all lanes and what waits in them."""

import json
import pathlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from typing import Any

import attrs
import pytest
import trio
from trio_websocket import WebSocketConnection, wrap_client_stream

from triolet.api.application import Application
from triolet.api.errors import ApiError, draining
from triolet.api.http.held import TurnState, encode_turn
from triolet.api.settings import SocketLimits
from triolet.api.websocket.lanes import Start
from triolet.api.websocket.turns import SocketTurns
from triolet.api.websocket.writer import SocketWriter
from triolet.fuzz.doubles.journal_memory import NotedMemory
from triolet.fuzz.doubles.websocket_frames import TEXT, encode_frame
from triolet.transports.takeover.slot import ConnectionSlot
from triolet.transports.takeover.tcp import bytes_accepted

from ..fakes import make_application
from ..lives import FREE, Lives, open_lives
from ..wires import DEADLINE_S, Wire, next_life, open_wire

LANES = [None, "a", "b"]
HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


def create(lane: str | None, seed: int, **values: Any) -> str:
    runtime = {**FREE, "seed": seed, **values.pop("runtime", {})}
    event = {"type": "response.create", "input": f"hello {seed}", "max_output_tokens": 30}
    stream = {} if lane is None else {"stream_id": lane}
    return json.dumps({**event, **stream, "temperature": 0.8, "runtime": runtime, **values})


@asynccontextmanager
async def talking(wire: Wire) -> AsyncIterator[WebSocketConnection]:
    """The client's socket, which knows nothing of lives."""
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(wire.client.dup()))
    async with trio.open_nursery() as nursery:
        yield await wrap_client_stream(nursery, stream, "localhost", "/v1/responses")
        nursery.cancel_scope.cancel("the client leaves")
    await trio.aclose_forcefully(stream)


async def read(
    socket: WebSocketConnection, events: list[dict[str, Any]], count: int, ends: int
) -> None:
    """Until so many events have come, or so many ends of responses."""
    with trio.fail_after(DEADLINE_S):
        while len(events) < count:
            event = json.loads(await socket.get_message())
            assert event["type"] != "error", event
            events.append(event)
            if sum(each["type"] in TERMINAL for each in events) == ends:
                return


def said_of(events: list[dict[str, Any]]) -> dict[str | None, list[str]]:
    """Of each lane what its responses say, by their deltas; their numbers grow."""
    said: dict[str | None, list[str]] = {}
    last: dict[str | None, int] = {}
    for event in events:
        lane = event.get("stream_id")
        if event["type"] == "response.created":
            said.setdefault(lane, []).append("")
            last[lane] = -1
        assert event["sequence_number"] > last[lane], event
        last[lane] = event["sequence_number"]
        if event["type"] == "response.output_text.delta":
            said[lane][-1] += event["delta"]
        elif event["type"] in TERMINAL:
            (item,) = event["response"]["output"]
            assert item["content"][0]["text"] == said[lane][-1]
    return said


@asynccontextmanager
async def opened(folder: pathlib.Path) -> AsyncIterator[tuple[Lives, Wire, Application]]:
    async with open_lives(folder, window_tokens=4) as lives, lives.first() as before:
        with open_wire() as wire:
            yield lives, wire, before


@pytest.mark.parametrize("count", [0, 1, 5, 40, 100])
async def test_all_lanes_go_on_and_what_waits_in_them(
    null_folder: pathlib.Path, count: int
) -> None:
    asked = [
        create(lane, 10 * turn + place) for turn in range(2) for place, lane in enumerate(LANES)
    ]
    undisturbed: list[dict[str, Any]] = []
    async with (
        opened(null_folder) as (_, wire, before),
        wire.served_by(before),
        talking(wire) as socket,
    ):
        for message in asked:
            await socket.send_message(message)
        await read(socket, undisturbed, 10**6, len(asked))
    events: list[dict[str, Any]] = []
    async with (
        opened(null_folder) as (lives, wire, before),
        wire.served_by(before) as scope,
        talking(wire) as socket,
    ):
        for message in asked:
            await socket.send_message(message)
        await read(socket, events, count, len(asked))
        async with (
            next_life(lives, wire, scope) as after,
            wire.served_by(after, is_taken_over=True),
        ):
            await read(socket, events, 10**6, len(asked))
            assert after.counters.connections_taken_over == 1
            await socket.send_message('{"type": "response.steer"}')  # it goes on as any
            assert json.loads(await socket.get_message())["type"] == "response.steer.failed"
    assert said_of(events) == said_of(undisturbed)


async def test_what_is_refused_leaves_nothing_to_go_on_with() -> None:
    started: list[object] = []
    limits, application = SocketLimits(), make_application()
    writer = SocketWriter(None, None, limits)  # type: ignore[arg-type]  # which writes nothing

    def start(async_fn: object, *args: object, name: str) -> None:
        started.append(name)

    turns = SocketTurns(application, "p", writer, limits, "session_1", start, started.clear)
    message = create("a", 1).encode()
    begun = Start(turns.read_request(json.loads(message)), message, "resp_1")
    turns.refusal = draining()
    with pytest.raises(ApiError, match="draining"):
        turns.handle_request(begun)
    assert (started, turns.states()) == ([], [])
    turns.refusal = None
    turns.handle_request(begun)
    assert turns.states() == [TurnState("a", "resp_1", message)]
    assert started == ["lane a"]
    assert turns.note_new() == b""
    turns.handle_request(begun)
    assert not turns.is_changed
    assert turns.note_new() == encode_turn(TurnState("a", "resp_1", message))
    assert turns.note_new() == b""
    for _ in range(2):  # a note is of one
        turns.handle_request(begun)
    assert turns.is_changed


async def test_what_a_socket_alone_may_continue_it_continues(null_folder: pathlib.Path) -> None:
    events: list[dict[str, Any]] = []
    async with (
        opened(null_folder) as (lives, wire, before),
        wire.served_by(before) as scope,
        talking(wire) as socket,
    ):
        await socket.send_message(create(None, 1, store=False))
        await read(socket, events, 10**6, 1)
        response_id = events[-1]["response"]["id"]
        async with (
            next_life(lives, wire, scope) as after,
            wire.served_by(after, is_taken_over=True),
        ):
            await socket.send_message(create(None, 2, previous_response_id=response_id))
            await read(socket, events, 10**6, 2)
    assert events[-1]["response"]["previous_response_id"] == response_id


async def test_what_a_client_granted_counts_once(null_folder: pathlib.Path) -> None:
    events: list[dict[str, Any]] = []
    async with (
        opened(null_folder) as (lives, wire, before),
        wire.served_by(before) as scope,
        talking(wire) as socket,
    ):
        await socket.send_message(create(None, 1, runtime={"credit": 3, "token_ids": True}))
        await socket.send_message('{"type": "runtime.credit", "add": 4}')
        await trio.testing.wait_all_tasks_blocked(0.01)
        async with (
            next_life(lives, wire, scope) as after,
            wire.served_by(after, is_taken_over=True),
        ):
            await trio.testing.wait_all_tasks_blocked(0.05)
            (response,) = after.responses.store.running()
            assert response.record.token_count <= 7
            await socket.send_message('{"type": "runtime.credit", "add": 5}')
            with trio.fail_after(DEADLINE_S):
                while sum(len(event.get("token_ids", [])) for event in events) < 12:
                    await read(socket, events, len(events) + 1, 1)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert response.record.token_count == 12


async def test_what_is_being_written_stays_in_the_slot_when_a_message_is_taken(
    null_folder: pathlib.Path,
) -> None:
    """The client reads nothing at first, and asks for more meanwhile."""
    long = {"max_output_tokens": 400, "runtime": {"token_ids": True}, "top_logprobs": 5}
    long["include"] = ["message.output_text.logprobs"]
    async with opened(null_folder) as (_, wire, before), wire.served_by(before):
        wire.server.setsockopt(SOL_SOCKET, SO_SNDBUF, 4096)
        wire.client.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
        wire.client.send(HANDSHAKE)
        for seed, lane in enumerate(LANES):
            wire.client.send(encode_frame(TEXT, create(lane, seed, **long).encode()))
        await trio.testing.wait_all_tasks_blocked(0.05)
        taken = ConnectionSlot.found(memoryview(bytearray(wire.memory))).record()
        wire.client.send(encode_frame(TEXT, create("c", 9).encode()))
        await trio.testing.wait_all_tasks_blocked(0.05)
        accepted = bytes_accepted(wire.server)
        record = ConnectionSlot.found(memoryview(bytearray(wire.memory))).record()
        assert taken is not None
        assert record is not None
        assert record != taken
        assert record.begin <= accepted < record.begin + len(record.output)
        whole = await wire.wait(lambda got: len(got) >= record.begin + len(record.output))
        assert whole[record.begin :].startswith(record.output)


@attrs.define(eq=False)
class DyingMemory(NotedMemory):
    """A journal whose writer dies right behind the next store once it `is_armed`."""

    on_death: Callable[[], None] = lambda: None
    is_armed: bool = False

    def publish(self, position: int, value: int) -> None:
        super().publish(position, value)
        if self.is_armed:
            self.is_armed = False
            self.on_death()


@pytest.mark.parametrize("is_by_id", [False, True])
async def test_a_grant_whose_process_dies_when_it_was_journalled_counts_once(
    null_folder: pathlib.Path, is_by_id: bool
) -> None:
    events: list[dict[str, Any]] = []
    images: list[bytes] = []
    async with open_lives(null_folder, window_tokens=4) as lives:
        with open_wire() as wire:
            await _die_of_a_grant(lives, wire, events, images, is_by_id=is_by_id)


async def _die_of_a_grant(
    lives: Lives, wire: Wire, events: list[dict[str, Any]], images: list[bytes], *, is_by_id: bool
) -> None:
    def die() -> None:
        lives.cut_off()
        images.append(bytes(wire.memory))

    memory = lives.memory = DyingMemory(lives.memory.data, on_death=die)
    async with lives.first() as before, wire.served_by(before) as scope, talking(wire) as socket:
        await socket.send_message(create(None, 1, runtime={"credit": 3}))
        await read(socket, events, 5, 1)
        await trio.testing.wait_all_tasks_blocked(0.05)
        named = {"response_id": events[0]["response"]["id"]} if is_by_id else {}
        memory.is_armed = True
        await socket.send_message(json.dumps({"type": "runtime.credit", "add": 4, **named}))
        with trio.fail_after(DEADLINE_S):
            while not images:
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked(0.01)
        wire.memory[:] = images[0]
        async with (
            next_life(lives, wire, scope) as after,
            wire.served_by(after, is_taken_over=True),
        ):
            (response,) = after.responses.store.running()
            with trio.fail_after(DEADLINE_S):
                while response.record.token_count < 7:
                    await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert response.record.token_count == 7
