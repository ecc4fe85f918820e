"""The HTTP shell: deadlines, sizes, keep-alive, methods without bodies, answers that come early."""

import h11
import pytest
import trio
import trio.testing

from triolet.api.application import Application
from triolet.api.http.connection import LAST_LOOK_S, HttpConnection
from triolet.api.http.stream import BoundedStream
from triolet.api.serving.connection import run_connection
from triolet.api.settings import HttpLimits, ServerLimits
from triolet.runtime.hands import TABLE_BYTES, ContentKind, content_of
from triolet.runtime.messages import Doubted

from ..fakes import (
    FakeGenerator,
    HttpClient,
    Say,
    encode,
    make_application,
    open_client,
    open_connection,
    open_responses,
    read_all,
)


def limited(**http: float) -> ServerLimits:
    return ServerLimits(http=HttpLimits(**http))  # type: ignore[arg-type]


async def exchange(data: bytes, application: Application | None = None) -> bytes:
    """All that a new connection is answered to these bytes."""
    async with open_connection(application or make_application()) as stream:
        await stream.send_all(data)
        return await read_all(stream)


async def test_a_slow_head_is_answered_408(autojump_clock: trio.testing.MockClock) -> None:
    answer = await exchange(b"GET /live HT")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in answer
    assert 5 <= trio.current_time() < 7


async def test_a_head_that_trickles_has_one_deadline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_connection(make_application()) as stream, trio.open_nursery() as nursery:

        async def trickle() -> None:
            for byte in b"GET /live HTTP/1.1\r\nHost: localhost\r\n":
                await trio.sleep(0.5)
                await stream.send_all(bytes((byte,)))

        nursery.start_soon(trickle)
        answer = await read_all(stream)
        nursery.cancel_scope.cancel("seen enough")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert trio.current_time() < 7


@pytest.mark.parametrize("late_s", [0.0, LAST_LOOK_S / 2])
async def test_a_head_that_came_while_we_were_stopped_is_read(
    autojump_clock: trio.testing.MockClock, late_s: float
) -> None:
    application = make_application()
    for _ in range(20):  # in one turn of the loop reader and deadline come in any order
        async with open_connection(application) as stream:
            await trio.testing.wait_all_tasks_blocked()
            if late_s:
                await trio.sleep(HttpLimits().head_s + late_s)
            head = b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            await stream.send_all(head)
            autojump_clock.jump(0 if late_s else HttpLimits().head_s)
            assert (await read_all(stream)).startswith(b"HTTP/1.1 200 ")


async def test_an_idle_connection_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with open_client(make_application()) as client:
        assert (await client.request("GET", "/live")).status == 200
        assert await client.stream.receive_some(1) == b""
    assert 75 <= trio.current_time() < 78


async def test_empty_lines_behind_an_answer_are_no_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = make_application()
    async with open_client(application) as client:
        assert (await client.request("GET", "/live")).status == 200
        for piece in (b"\r\n", b"\r", b"\n\r\n"):
            await trio.sleep(10)
            await client.stream.send_all(piece)
        assert await client.stream.receive_some(1) == b""
    assert 75 <= trio.current_time() < 78, "it was idle all the time"
    assert application.counters.answers.total() == 1
    async with open_client(application) as client:
        for _ in range(2):
            assert (await client.request("GET", "/live")).status == 200
            await client.stream.send_all(b"\r\n")


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["endless", "here at once"])
async def test_an_oversized_head_is_answered_431(end: bytes) -> None:
    head = b"GET /live HTTP/1.1\r\nHost: localhost\r\nX: "
    assert (await exchange(head + b"x" * 40_000 + end)).startswith(b"HTTP/1.1 431 ")
    async with open_connection(make_application()) as stream:
        room = HttpLimits().head_bytes_max - len(head) - len(b"\r\n\r\n")
        await stream.send_all(head + b"x" * room + b"\r\n\r\n")
        assert bytes(await stream.receive_some(4096)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_and_nothing_behind_it_is_read(head: bytes) -> None:
    application = make_application()
    answer = await exchange(head + b"GET /live HTTP/1.1\r\n\r\n", application)
    assert b"HTTP/1.1 200 " not in answer
    assert answer.split(b" ", 2)[1] in (b"400", b"501", b"505")
    assert b"connection: close" in answer.lower()
    assert application.counters.connections_failed == 0


async def send_expecting_head(client: HttpClient, body_bytes: int) -> None:
    sizes = [("content-length", str(body_bytes)), ("expect", "100-continue")]
    headers = [("host", "localhost"), *sizes]
    request = h11.Request(method="POST", target="/v1/responses", headers=headers)
    await client.stream.send_all(client.protocol.send(request) or b"")


async def test_a_declared_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    application = make_application(limits=limited(body_bytes_max=100))
    async with open_client(application) as client:
        await send_expecting_head(client, 101)
        answer = await client.read_answer()
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert answer.headers["connection"] == "close"


async def test_a_chunked_body_is_read_and_counted() -> None:
    application = make_application(limits=limited(body_bytes_max=100))
    chunked = {"transfer-encoding": "chunked"}
    async with open_client(application) as client:
        answer = await client.request("POST", "/v1/responses", {"input": "x"}, chunked)
        assert answer.status == 200
        answer = await client.request("POST", "/v1/responses", {"input": "x" * 100}, chunked)
        assert answer.status == 413


async def test_chunks_that_ended_frontends_are_refused_before_they_are_read() -> None:
    chunks = b"3\r\n{}\n\r\n0\r\n\r\n"
    application = make_application()
    application.hands.memory = memoryview(bytearray(TABLE_BYTES))
    content = content_of(ContentKind.CHUNKS, "", chunks)
    application.hands.handle_doubted(Doubted([], {content: float("inf")}))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await exchange(head + chunks, application)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"request_quarantined"' in answer
    assert b"Connection: close" in answer or b"connection: close" in answer


async def test_a_client_that_expects_100_gets_it() -> None:
    async with open_client(make_application()) as client:
        body = encode({"input": "x"})
        await send_expecting_head(client, len(body))
        event = await client.next_event()
        assert isinstance(event, h11.InformationalResponse)
        assert event.status_code == 100
        data = client.protocol.send(h11.Data(data=body)) or b""
        await client.stream.send_all(data + (client.protocol.send(h11.EndOfMessage()) or b""))
        assert (await client.read_answer()).status == 200


async def test_a_slow_body_is_answered_408(autojump_clock: trio.testing.MockClock) -> None:
    head = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    assert (await exchange(head + b"{")).startswith(b"HTTP/1.1 408 ")
    assert 30 <= trio.current_time() < 33


async def test_an_unread_body_does_not_spoil_the_next_request() -> None:
    async with open_client(make_application()) as client:
        answer = await client.request("POST", "/nowhere", {"input": "x"})
        assert answer.status == 404
        assert (await client.request("GET", "/live")).status == 200


async def test_a_head_request_gets_headers_alone() -> None:
    async with open_client(make_application()) as client:
        answer = await client.request("HEAD", "/live")
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["content-length"]) > 0
        assert (await client.request("GET", "/live")).status == 200


async def test_http_1_0_is_answered_and_closed() -> None:
    answer = await exchange(b"GET /live HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"live":true}')


async def test_connection_close_is_honoured() -> None:
    async with open_client(make_application()) as client:
        answer = await client.request("GET", "/live", headers={"connection": "close"})
        assert answer.headers["connection"] == "close"
        assert await client.stream.receive_some(1) == b""


async def test_a_client_too_eager_is_still_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """More early bytes than are watched: the watch ends, the answer does not."""
    generator = FakeGenerator([Say("a"), Say("b", after_s=1)])
    application = make_application(generator, limits=limited(pipelined_bytes_max=10))
    async with open_client(application) as client:
        await client.send("POST", "/v1/responses", {"input": "x"})
        await client.stream.send_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await client.read_answer()
    assert answer.json["status"] == "completed"


async def test_the_client_leaving_is_noticed_while_nothing_is_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    client, server = trio.testing.memory_stream_pair()
    connection = HttpConnection(BoundedStream(server, 20), HttpLimits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.aclose)
        async with connection.reading():
            with connection.cancel_when_client_leaves():
                await trio.sleep(1000)
    assert connection.is_gone
    assert trio.current_time() < 1
    await server.aclose()


async def test_a_write_to_a_client_that_reads_nothing_is_cut(
    autojump_clock: trio.testing.MockClock,
) -> None:
    client, server = trio.testing.lockstep_stream_pair()
    generator = FakeGenerator([Say("a"), Say("b", after_s=1000)])
    application = make_application(generator)
    async with open_responses(application), trio.open_nursery() as nursery:
        nursery.start_soon(run_connection, server, application)
        await HttpClient(client).send("POST", "/v1/responses", {"input": "x", "stream": True})
        await trio.sleep(100)
        assert application.counters.connections_active == 0
    assert len(generator.aborted) == 1
    assert trio.current_time() < 200
    await client.aclose()
