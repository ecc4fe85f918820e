"""Connections that go on at the next life of their frontend, over real sockets."""

import json
import logging
import pathlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from triolet.api.application import Application
from triolet.api.connection_shares import MemoryBudget
from triolet.api.http.held import (
    FixedState,
    HeldStream,
    HttpState,
    SessionState,
    TurnState,
    encode_state,
)
from triolet.api.serving.takeover import LIVES_MAX
from triolet.transports.takeover.memory import SLOT_BYTES
from triolet.transports.takeover.slot import ConnectionSlot, EndForm

from ..lives import STORY, Lives, open_lives
from ..wires import DEADLINE_S, Wire, next_life, open_wire

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 40,
    "temperature": 0.8,
    "seed": 7,
    "ignore_eos": True,
}


def post(path: str, body: dict[str, Any], headers: str = "") -> bytes:
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n%b" % (
        path.encode(),
        headers.encode(),
        len(data),
        data,
    )


GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def wire() -> Any:
    with open_wire() as wire:
        yield wire


def event_lines(received: bytes) -> list[bytes]:
    return [line for line in received.split(b"\n") if line.startswith(b"data: ")]


def text_of(received: bytes) -> str:
    """What an event stream says, in chunks as they came."""
    text = ""
    for line in event_lines(received):
        if line == b"data: [DONE]":
            continue
        event = json.loads(line[6:])
        if "choices" in event:
            text += "".join(each["delta"].get("content") or "" for each in event["choices"])
        elif event["type"] == "response.output_text.delta":
            text += event["delta"]
    return text


def is_framed(received: bytes) -> bool:
    """Whether the body is whole chunks to the last one."""
    body = received.partition(b"\r\n\r\n")[2]
    while body:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        assert rest[count : count + 2] == b"\r\n"
        if not count:
            return rest == b"\r\n"
        body = rest[count + 2 :]
    return False


# Far from their end after 20 events, of however many tokens on a busy machine.
LONG_TOKENS = 200
STREAMS = {
    "/v1/responses": {**STORY, "max_output_tokens": LONG_TOKENS, "stream": True},
    "/v1/chat/completions": {**CHAT, "max_tokens": LONG_TOKENS, "stream": True},
}


# By path: what each says undisturbed, which the first test of it has found.
_undisturbed: dict[str, bytes] = {}


@asynccontextmanager
async def open_stream(
    folder: pathlib.Path, wire: Wire, path: str, events: int
) -> AsyncIterator[tuple[Lives, Application, trio.CancelScope, bytes]]:
    """A first life in the midst of a stream, so many events on, and all of that undisturbed."""
    request = post(path, STREAMS[path])
    async with (
        open_lives(folder, window_tokens=4) as lives,
        lives.first() as before,
        wire.served_by(before) as scope,
    ):
        if path not in _undisturbed:
            wire.client.send(request)
            _undisturbed[path] = await wire.wait(lambda got: got.endswith(b"0\r\n\r\n"))
            wire.received = b""
        wire.client.send(request)
        await wire.wait(lambda got: len(event_lines(got)) >= events)
        yield lives, before, scope, _undisturbed[path]


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("events", [0, 1, 20])
async def test_a_stream_goes_on_in_its_frames(
    null_folder: pathlib.Path,
    wire: Wire,
    path: str,
    events: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "triolet.api.access_log")
    async with (
        open_stream(null_folder, wire, path, events) as (lives, _, scope, undisturbed),
        next_life(lives, wire, scope) as after,
        wire.served_by(after, is_taken_over=True),
    ):
        whole = await wire.wait(lambda got: got.endswith(b"0\r\n\r\n"))
        assert is_framed(whole)
        assert text_of(whole) == text_of(undisturbed)
        assert after.counters.connections_taken_over == 1
        wire.received = b""
        wire.client.send(GET)  # and the connection is kept
        await wire.wait(lambda got: b"triolet" in got)
        lines = [vars(each) for each in caplog.records if "access_log" in each.name]
        assert (lines[-2]["taken_over"], lines[-2]["output_tokens"]) == (True, LONG_TOKENS)


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_goes_on_while_its_server_drains(
    null_folder: pathlib.Path, wire: Wire, path: str
) -> None:
    """A drain refuses what is new, and this is not."""
    async with (
        open_stream(null_folder, wire, path, 7) as (lives, _, scope, undisturbed),
        next_life(lives, wire, scope) as after,
    ):
        after._drain_begun.set()
        async with wire.served_by(after, is_taken_over=True):
            whole = await wire.wait(lambda got: got.endswith(b"0\r\n\r\n"))
            assert text_of(whole) == text_of(undisturbed)


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_goes_on_behind_a_comment(
    null_folder: pathlib.Path, wire: Wire, path: str
) -> None:
    async with open_stream(null_folder, wire, path, 1) as (lives, before, scope, undisturbed):
        lives.cut_off()  # no token comes any more: the stream is silent
        await trio.testing.wait_all_tasks_blocked(0.01)
        ((connection, watched),) = before.keep_alive._streams.items()
        connection.is_silent = True
        watched.wake()
        await wire.wait(lambda got: b": keep-alive\n" in got)
        async with (
            next_life(lives, wire, scope) as after,
            wire.served_by(after, is_taken_over=True),
        ):
            whole = await wire.wait(lambda got: got.endswith(b"0\r\n\r\n"))
            assert is_framed(whole)
            assert text_of(whole) == text_of(undisturbed)


async def test_a_whole_answer_is_given_by_the_next_life(
    null_folder: pathlib.Path, wire: Wire
) -> None:
    request = post("/v1/responses", STORY)
    async with (
        open_lives(null_folder) as lives,
        lives.first() as before,
        wire.served_by(before) as scope,
    ):
        wire.client.send(request)
        with trio.fail_after(DEADLINE_S):
            while not before.responses.store.active:
                await trio.lowlevel.checkpoint()
        (running,) = before.responses.store.running()
        async with (
            next_life(lives, wire, scope) as after,
            wire.served_by(after, is_taken_over=True),
        ):
            answer = await wire.wait(lambda got: b"}" in got and got.endswith(b"}"))
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["id"] == running.response_id


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("was_asked", [False, True])
async def test_a_claim_goes_on_unless_another_was_told_that_it_is_free(
    null_folder: pathlib.Path, wire: Wire, path: str, *, was_asked: bool
) -> None:
    """Another request with its key may have taken the claim since, and is executed."""
    slot = ConnectionSlot(memoryview(wire.memory))
    async with open_lives(null_folder) as lives, lives.first() as application:
        prefix = "resp" if "responses" in path else "chatcmpl"
        claimed = application.ids.draw(prefix)
        slot.publish(0, encode_state(HttpState(claimed)), b"", kept_from=0, received=0)
        wire.client.send(post(path, CHAT | STORY, "Idempotency-Key: k\r\n"))
        if was_asked:
            executions = application.books.executions
            assert executions.execution_of(claimed, executions.epoch, 0).standing == "unknown"
        async with wire.served_by(application, is_taken_over=True):
            answer = await wire.wait(lambda got: b"}" in got and got.endswith(b"}"))
        found = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]
        assert (found != claimed) == was_asked


@pytest.mark.parametrize("cut", [1, 30, 100, 150])
async def test_a_request_goes_on_where_it_was_cut(
    null_folder: pathlib.Path, wire: Wire, cut: int
) -> None:
    request = post("/tokenize", {"prompt": "a fox " * 20})
    async with (
        open_lives(null_folder) as lives,
        lives.first() as before,
        wire.served_by(before) as scope,
    ):
        wire.client.send(request[:cut])
        await trio.testing.wait_all_tasks_blocked(0.01)
        async with (
            next_life(lives, wire, scope) as after,
            wire.served_by(after, is_taken_over=True),
        ):
            wire.client.send(request[cut:] + GET)
            answer = await wire.wait(lambda got: got.count(b"HTTP/1.1 200 ") == 2)
            assert b'"count":' in answer


async def test_a_chunk_that_the_kernel_took_in_part_is_finished(
    null_folder: pathlib.Path, wire: Wire
) -> None:
    """The client reads nothing meanwhile; the answer is larger than what its socket holds."""
    wire.server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    chunk = bytes(range(256)) * 2**13
    slot = ConnectionSlot(memoryview(wire.memory))
    slot.publish(0, encode_state(HttpState(is_last=True)), chunk, kept_from=0, received=0)
    assert 0 < wire.server.send(chunk) < len(chunk)
    async with (
        open_lives(null_folder) as lives,
        lives.first() as application,
        wire.served_by(application, is_taken_over=True),
    ):
        assert await wire.wait(lambda got: len(got) >= len(chunk)) == chunk
        wire.client.shutdown(socket.SHUT_WR)
        await wire.wait(lambda _: wire.ended == [0])
    assert wire.client.recv(1) == b""


async def test_what_kills_who_goes_on_with_it_is_cut(null_folder: pathlib.Path, wire: Wire) -> None:
    async with open_lives(null_folder) as lives, lives.first() as before:
        async with wire.served_by(before):
            wire.client.send(b"GET /v1/mod")
            await trio.testing.wait_all_tasks_blocked(0.01)
            image = bytes(wire.memory)
        for death in range(LIVES_MAX + 1):
            wire.memory = bytearray(image)
            ConnectionSlot(memoryview(wire.memory)).lives = death
            async with wire.served_by(before, is_taken_over=True):
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert before.counters.connections_lost == (death == LIVES_MAX)
        with pytest.raises(ConnectionResetError):
            wire.client.recv(1)


@pytest.mark.parametrize("message", [b"{}", b""], ids=["not begun", "begun"])
async def test_a_turn_that_was_not_begun_is_run_by_so_many_lives(
    null_folder: pathlib.Path, wire: Wire, message: bytes
) -> None:
    turn = TurnState(None, "resp_1", message)
    state = SessionState("", turns=[turn])
    slot = ConnectionSlot(memoryview(wire.memory))
    slot.publish(0, encode_state(state), b"", kept_from=0, received=0)
    slot.lives = LIVES_MAX
    async with open_lives(null_folder) as lives, lives.first() as application:
        async with wire.served_by(application, is_taken_over=True):
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert application.counters.connections_lost == bool(message)


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize(
    ("version", "ending"), [(b"HTTP/1.1", EndForm.EVENTS), (b"HTTP/1.0", EndForm.CUT)]
)
async def test_a_slot_says_how_a_stream_may_be_ended_by_others(
    null_folder: pathlib.Path, wire: Wire, path: str, version: bytes, ending: EndForm
) -> None:
    def noted() -> EndForm:
        record = ConnectionSlot.found(memoryview(wire.memory)).record()
        assert record is not None
        return record.ending

    async with (
        open_lives(null_folder, window_tokens=4) as lives,
        lives.first() as life,
        wire.served_by(life),
    ):
        wire.client.send(GET)
        await wire.wait(lambda got: b"triolet" in got)
        assert noted() is EndForm.UNANSWERED
        wire.received = b""
        wire.client.send(post(path, STREAMS[path]).replace(b"HTTP/1.1", version))
        await wire.wait(lambda got: len(event_lines(got)) >= 2)
        assert noted() is ending


def test_what_is_said_of_a_request_does_not_forgive_a_life() -> None:
    """A claim is written before the request is executed, and another lane may write meanwhile."""
    slot = ConnectionSlot(memoryview(bytearray(SLOT_BYTES)))
    slot.lives = 1
    HeldStream(slot, MemoryBudget(), FixedState()).publish(b"x")
    assert slot.lives == 1


async def test_a_connection_that_cannot_be_gone_on_with_is_reset(
    null_folder: pathlib.Path, wire: Wire
) -> None:
    slot = ConnectionSlot(memoryview(wire.memory))
    slot.publish(5, encode_state(HttpState()), b"never written", kept_from=0, received=0)
    async with open_lives(null_folder) as lives, lives.first() as application:
        async with wire.served_by(application, is_taken_over=True):
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert application.counters.connections_lost == 1
        assert wire.ended == [0]
        with pytest.raises(ConnectionResetError):
            wire.client.recv(1)


async def test_one_that_no_process_has_read_is_served_as_new(
    null_folder: pathlib.Path, wire: Wire
) -> None:
    wire.client.send(GET)
    async with (
        open_lives(null_folder) as lives,
        lives.first() as application,
        wire.served_by(application, is_taken_over=True),
    ):
        await wire.wait(lambda got: b"triolet" in got)
        wire.client.shutdown(socket.SHUT_WR)
        await wire.wait(lambda _: wire.ended == [0])
