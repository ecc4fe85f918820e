"""The firewall: whatever a client does on a connection, and wherever it stops, harms only it."""

import base64
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triolet.api.application import Application
from triolet.api.serving.connection import run_connection
from triolet.runtime.frontend.generation import GenerationStream
from triolet.runtime.frontend.tracing import traceparent

from ..fakes import (
    Fail,
    FakeGenerator,
    Say,
    make_application,
    open_client,
    open_connection,
    read_all,
)
from ..websocket.socket_client import SocketClient, open_socket

HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
REQUEST = (
    b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 29\r\n\r\n"
    b'{"input":"hi","stream": true}'
)
CHAT_REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 62\r\n\r\n"
    b'{"messages":[{"role":"user","content":"hello"}],"stream":true}'
)


@attrs.define(eq=False)
class TracedGenerator(FakeGenerator):
    """Notes below which spans its requests are."""

    parents: list[str] = attrs.field(factory=list)

    @asynccontextmanager
    async def generate(self, *args: Any, **options: Any) -> AsyncIterator[GenerationStream]:
        self.parents.append(traceparent())
        async with FakeGenerator.generate(self, *args, **options) as stream:
            yield stream


async def still_serves(application: Application) -> bool:
    async with open_client(application) as client:
        return (await client.request("POST", "/v1/responses", {"input": "x"})).status == 200


@pytest.mark.parametrize("message", [HANDSHAKE, REQUEST, b"\x16\x03\x01" + HANDSHAKE])
async def test_ending_at_any_byte_harms_no_other(message: bytes) -> None:
    application = make_application()
    for length in range(len(message) + 1):
        async with open_connection(application) as stream:
            await stream.send_all(message[:length])
            if length % 8 == 0:
                await trio.testing.wait_all_tasks_blocked()
    assert await still_serves(application)
    assert application.counters.connections_failed == 0
    assert application.counters.connections_active == 0
    assert application.counters.sockets_active == 0


async def test_half_closing_after_a_request_aborts_it() -> None:
    generator = FakeGenerator([Say("a"), Say("b", after_s=1000)])
    application = make_application(generator)
    async with open_connection(application) as stream:
        assert isinstance(stream, trio.StapledStream)
        await stream.send_all(REQUEST)
        await trio.testing.wait_all_tasks_blocked()
        await stream.send_eof()
        await trio.testing.wait_all_tasks_blocked()
        # Begun and aborted, or not begun at all: the end is seen by a task of its own.
        assert generator.active == {}
        assert len(generator.aborted) == len(generator.calls) <= 1


async def test_requests_are_below_the_span_that_their_client_names() -> None:
    """The second one on a connection names none; and none is looked at where nothing is traced."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for endpoint, wanted in (("http://collector:4318", [parent, ""]), ("", ["", ""])):
        generator = TracedGenerator()
        async with open_client(make_application(generator, otlp_endpoint=endpoint)) as client:
            for headers in ({"traceparent": parent}, {}):
                await client.request("POST", "/v1/responses", {"input": "x"}, headers)
        assert generator.parents == wanted


async def test_an_unforeseen_error_is_a_500_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    generator = FakeGenerator(refuse=ZeroDivisionError("secret at 0x7f00"))
    with caplog.at_level(logging.CRITICAL, "triolet.api.serving.connection"):
        async with open_client(make_application(generator)) as client:
            for stream in (False, True):
                body = {"input": "x", "stream": stream}
                answer = await client.request("POST", "/v1/responses", body)
                assert (answer.status, answer.error["code"]) == (500, "internal_error")
                assert b"0x7f" not in answer.body


async def test_an_unforeseen_error_within_a_stream_is_its_last_event(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    generator = FakeGenerator([Say("a"), Fail(ZeroDivisionError())])
    async with open_connection(make_application(generator)) as stream:
        await stream.send_all(CHAT_REQUEST)
        received = await read_all(stream)
    assert b"chat.completion.chunk" in received
    assert b'"code":"internal_error"' in received.split(b"data: ")[-1]
    assert b"[DONE]" not in received
    assert received.endswith(b"0\r\n\r\n")
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost"}, 101),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer right"}, 101),
        ({}, 401),
    ],
)
async def test_sockets_are_guarded(headers: dict[str, str], status: int) -> None:
    application = make_application(api_keys=("right",))
    headers = {"authorization": "Bearer right", **headers} if "origin" in headers else headers
    async with open_connection(application) as stream:
        assert await SocketClient(stream).handshake(headers=headers) == status


async def test_handshakes_on_other_routes_are_refused() -> None:
    async with open_connection(make_application()) as stream:
        assert await SocketClient(stream).handshake("/v1/realtime") == 404


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (b"Version: 13", b"Version: 8", b"426"),
        (b"AAAAAAAAAAAAAAAAAAAAAA==", b"AAAA", b"400"),
        (b"AAAAAAAAAAAAAAAAAAAAAA==", b"\xff\xfe", b"400"),
        (b"GET", b"POST", b"405"),
        (b"Host: localhost", b"Host: evil.example", b"403"),
        (b"Host: localhost", b"Host: xn--\xff", b"403"),
    ],
)
async def test_unsound_handshakes_are_refused(old: bytes, new: bytes, status: bytes) -> None:
    application = make_application()
    async with open_connection(application) as stream:
        await stream.send_all(HANDSHAKE.replace(old, new))
        answer = await stream.receive_some(4096)
        assert bytes(answer).split(b" ", 2)[1] == status
        assert (status == b"426") == (b"sec-websocket-version: 13" in bytes(answer))
    assert await still_serves(application)


async def test_a_socket_can_follow_a_request_on_its_connection() -> None:
    async with open_client(make_application()) as client:
        assert (await client.request("GET", "/live")).status == 200
        socket = SocketClient(client.stream)
        assert await socket.handshake() == 101
        await socket.create("hi")
        assert (await socket.receive_until("response.completed"))[-1]


async def test_a_refused_handshake_leaves_the_connection_usable() -> None:
    async with open_client(make_application()) as client:
        upgrade = {
            "upgrade": "websocket",
            "connection": "upgrade",
            "sec-websocket-version": "13",
            "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        await client.send("GET", "/nowhere", headers=upgrade)
        assert (await client.read_answer()).status == 404
        assert (await client.request("GET", "/live")).status == 200


async def test_a_drain_ends_idle_connections_and_refuses_new_work(
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = make_application()
    async with open_client(application) as idle, trio.open_nursery() as nursery:
        assert (await idle.request("GET", "/ready")).status == 200
        nursery.start_soon(application.drain, 10)
        assert await idle.stream.receive_some(1) == b""
        async with open_client(application) as client:
            answer = await client.request("POST", "/v1/responses", {"input": "x"})
            assert (answer.status, answer.error["code"]) == (503, "server_draining")
            assert answer.headers["connection"] == "close"
        async with open_client(application) as client:
            assert (await client.request("GET", "/ready")).status == 503
        async with open_client(application) as client:
            assert (await client.request("GET", "/live")).status == 200
    assert trio.current_time() < 3


async def test_answers_are_counted_by_route() -> None:
    application = make_application()
    async with open_client(application) as client:
        await client.request("GET", "/live")
        await client.request("GET", "/v1/responses/x")
        await client.request("BREW", "/coffee")
    assert application.counters.answers == {
        ("GET", "/live", 200): 1,
        ("GET", "/v1/responses/{id}", 404): 1,
        ("other", "-", 501): 1,
    }


async def test_the_request_id_is_echoed_when_harmless() -> None:
    async with open_client(make_application()) as client:
        answer = await client.request("GET", "/live", headers={"x-request-id": "abc-1"})
        assert answer.headers["x-request-id"] == "abc-1"
        answer = await client.request("GET", "/live", headers={"x-request-id": "a b"})
        assert answer.headers["x-request-id"].startswith("req_")


async def test_a_socket_survives_another_ones_end() -> None:
    application = make_application()
    async with open_socket(application) as one:
        async with open_socket(application) as two:
            await two.stream.aclose()
        await one.create("hi")
        assert (await one.receive_until("response.completed"))[-1]


async def test_a_mistake_below_the_requests_ends_its_connection_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(trio.abc.ReceiveStream):
        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            await trio.lowlevel.checkpoint()
            raise RuntimeError("a transport with a mistake")

        async def aclose(self) -> None:
            await trio.lowlevel.checkpoint()

    application = make_application()
    answers, _ = trio.testing.memory_stream_one_way_pair()
    stream = trio.StapledStream(answers, Broken())
    with caplog.at_level(logging.CRITICAL, "triolet.api.serving.connection"):
        await run_connection(stream, application)
    assert application.counters.connections_failed == 1
    assert application.counters.connections_active == 0


def _offer(*names: str) -> bytes:
    """A handshake as browsers send it."""
    return (
        "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"Sec-WebSocket-Protocol: {', '.join(names)}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize(("key", "status"), [("right", b"101"), ("wrong", b"401"), (None, b"401")])
async def test_a_browsers_key_is_a_subprotocol_and_is_not_said_back(
    key: str | None, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    text = base64.urlsafe_b64encode((key or "").encode()).decode().rstrip("=")
    names = ["triolet", f"triolet.key.{text}"] if key else ["triolet"]
    application = make_application(api_keys=("right",))
    with caplog.at_level(logging.DEBUG):
        async with open_connection(application) as stream:
            await stream.send_all(_offer(*names))
            head = bytearray()
            while b"\r\n\r\n" not in head:
                head += await stream.receive_some()
    assert head.split()[1] == status
    assert (b"sec-websocket-protocol: triolet\r\n" in head.lower()) == (status == b"101")
    assert b"triolet.key" not in head
    assert text not in caplog.text or not text


async def test_other_subprotocols_are_not_selected() -> None:
    async with open_connection(make_application()) as stream:
        await stream.send_all(_offer("realtime"))
        head = await stream.receive_some()
    assert head.split()[1] == b"101"
    assert b"sec-websocket-protocol" not in head.lower()
