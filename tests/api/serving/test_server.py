"""Real connections on loopback: serving, the limit, resets, and the end of the source."""

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triolet.api.application import Application
from triolet.api.serving.server import QUEUE_CONNECTIONS_MAX, open_queue_source, serve_connections
from triolet.api.settings import ServerLimits
from triolet.fuzz.doubles.served import open_listener, where

from ..fakes import FakeGenerator, HttpClient, Say, make_application
from ..websocket.socket_client import SocketClient


@asynccontextmanager
async def open_server(application: Application) -> AsyncIterator[tuple[str, int]]:
    async with await open_listener() as listener, trio.open_nursery() as nursery:
        await nursery.start(serve_connections, listener, application)
        with trio.fail_after(60):
            yield where(listener)
        nursery.cancel_scope.cancel("the test is over")


async def ask_live(address: tuple[str, int]) -> int:
    stream = await trio.open_tcp_stream(*address)
    async with stream:
        return (await HttpClient(stream).request("GET", "/live")).status


async def test_serving_on_loopback() -> None:
    async with open_server(make_application()) as address:
        assert await ask_live(address) == 200
        async with await trio.open_tcp_stream(*address) as stream:
            client = SocketClient(stream)
            assert await client.handshake() == 101
            await client.create("hi")
            assert (await client.receive_until("response.completed"))[-1]


async def test_above_the_limit_a_connection_is_answered_503_and_closed() -> None:
    application = make_application(limits=ServerLimits(connections_max=1))
    async with open_server(application) as address:
        async with await trio.open_tcp_stream(*address) as first:
            assert (await HttpClient(first).request("GET", "/live")).status == 200
            async with await trio.open_tcp_stream(*address) as second:
                answer = await HttpClient(second).read_answer_without_request()
            assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
        await trio.testing.wait_all_tasks_blocked()
    assert application.counters.connections_refused == 1


@attrs.define(eq=False)
class FarSource:
    """Connections over socket pairs that seem to come from addresses elsewhere."""

    put: trio.MemorySendChannel[Any] = attrs.field(init=False)
    taken: trio.MemoryReceiveChannel[Any] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.put, self.taken = trio.open_memory_channel[Any](9)

    async def accept(self) -> Any:
        return await self.taken.receive()

    async def connect(self, address: str) -> trio.SocketStream:
        """The client's end of a connection that seems to come from there."""
        left, end = trio.socket.socketpair()
        right: Any = end
        right.getpeername = lambda: (address, 50000)
        await self.put.send(trio.SocketStream(right))
        return trio.SocketStream(left)


async def test_one_address_has_a_limit_of_its_own() -> None:
    application = make_application(limits=ServerLimits(connections_per_address_max=2))
    source = FarSource()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        nursery.start_soon(serve_connections, source, application)

        async def connect(address: str) -> int:
            stream = await stack.enter_async_context(await source.connect(address))
            return (await HttpClient(stream).request("GET", "/live")).status

        with trio.fail_after(60):
            assert [await connect("203.0.113.9") for _ in range(2)] == [200, 200]
            async with await source.connect("203.0.113.9") as third:
                answer = await HttpClient(third).read_answer_without_request()
            assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
            assert await connect("203.0.113.10") == 200
            assert [await connect("127.0.0.1") for _ in range(3)] == [200] * 3
            await stack.aclose()
            while application.counters.connections_active:
                await trio.testing.wait_all_tasks_blocked()
            assert await connect("203.0.113.9") == 200
        nursery.cancel_scope.cancel("seen enough")
    source.put.close()
    source.taken.close()
    assert application.counters.connections_refused == 1


@pytest.mark.slow
async def test_a_client_that_never_reads_is_paused_not_buffered() -> None:
    """Its request meets back pressure at the socket; others go on."""
    text = "x" * 4096
    generator = FakeGenerator(scripts={"much": [Say(text) for _ in range(4000)]})
    application = make_application(generator)
    async with (
        open_server(application) as address,
        await trio.open_tcp_stream(*address) as stream,
    ):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client = SocketClient(stream)
        assert await client.handshake() == 101
        await client.create("much", "a")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert await ask_live(address) == 200
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert generator.consumed[-1] < 3000, "the kernel takes some; the rest waits"


async def test_serving_ends_with_its_listener_and_lets_connections_finish() -> None:
    application = make_application()
    async with await open_listener() as listener, trio.open_nursery() as nursery:
        await nursery.start(serve_connections, listener, application)
        async with await trio.open_tcp_stream(*where(listener)) as stream:
            client = HttpClient(stream)
            assert (await client.request("GET", "/live")).status == 200
            await listener.aclose()
            assert (await client.request("GET", "/live")).status == 200
    assert application.counters.connections_active == 0


@attrs.define
class _Starved:
    """A source that has no descriptor for the first connection."""

    listener: trio.SocketListener
    errors: list[int] = attrs.field(factory=lambda: [errno.EMFILE])

    async def accept(self) -> trio.SocketStream:
        if self.errors:
            raise OSError(self.errors.pop(), "accept")
        return await self.listener.accept()


async def test_a_lack_of_descriptors_is_waited_out() -> None:
    async with await open_listener() as listener, trio.open_nursery() as nursery:
        await nursery.start(serve_connections, _Starved(listener), make_application())
        assert await ask_live(where(listener)) == 200
        nursery.cancel_scope.cancel("the test is over")


async def test_any_other_failure_of_a_source_ends_the_serving() -> None:
    async with await open_listener() as listener:
        with pytest.raises(OSError, match="accept"):
            await serve_connections(_Starved(listener, [errno.EINVAL]), make_application())


async def test_a_queue_gives_out_what_was_put_until_it_is_abandoned() -> None:
    async with open_queue_source() as source:
        left, right = socket.socketpair()
        assert source.put_nowait(right)
        accepted = await source.accept()
        left.send(b"x")
        assert await accepted.stream.receive_some(1) == b"x"
        accepted.stream.socket.close()
        left.close()
        source.abandon()
        with pytest.raises(trio.ClosedResourceError):
            await source.accept()


async def test_a_held_queue_gives_out_nothing_until_it_lets_in(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_queue_source() as source:
        left, right = socket.socketpair()
        source.pause()
        assert source.put_nowait(right)
        with trio.move_on_after(1) as waited:
            await source.accept()
        assert waited.cancelled_caught
        source.resume()
        (await source.accept()).stream.socket.close()
        assert left.recv(1) == b""
        left.close()
        source.pause()
        source.abandon()
        with pytest.raises(trio.ClosedResourceError):
            await source.accept()


async def test_what_was_not_taken_is_closed() -> None:
    left, right = socket.socketpair()
    async with open_queue_source() as source:
        assert source.put_nowait(right)
    assert left.recv(1) == b""
    assert right.fileno() == -1
    left.close()


async def test_a_full_queue_refuses_and_the_caller_still_owns_it() -> None:
    async with open_queue_source() as source:
        pairs = [socket.socketpair() for _ in range(QUEUE_CONNECTIONS_MAX + 1)]
        taken = [source.put_nowait(right) for _, right in pairs]
        assert taken == [True] * QUEUE_CONNECTIONS_MAX + [False]
        assert pairs[-1][1].fileno() >= 0
        pairs[-1][1].close()
    for left, _ in pairs:
        left.close()
