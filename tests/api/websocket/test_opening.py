"""A socket is open within its block, speaks both ways, and ends with it."""

from functools import partial

import pytest
import trio
import trio.testing

from triolet.api.http.connection import HttpConnection
from triolet.api.http.stream import BoundedStream
from triolet.api.limits import HttpLimits, SocketLimits
from triolet.api.websocket.frames import open_socket

from .socket_client import SocketClient


async def serve_once(stream: trio.abc.Stream, heard: list[str | bytes]) -> None:
    limits = HttpLimits()
    connection = HttpConnection(BoundedStream(stream, limits.write_s), limits)
    request = await connection.next_request()
    assert request is not None
    connection.standing_headers.append(("x-request-id", "req_1"))
    early = await connection.begin_upgrade()
    key = request.websocket_key()
    async with open_socket(connection, SocketLimits(), key=key, early=early) as (socket, _):
        heard.append(await socket.get_message())
        await socket.send_message('{"said": "back"}')
        await socket.aclose(1001, "over")


async def test_both_ways_and_closed_by_us() -> None:
    client, server = trio.testing.memory_stream_pair()
    heard: list[str | bytes] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_once, server, heard))
        socket = SocketClient(client)
        assert await socket.handshake() == 101
        await socket.send('{"said": "once"}')
        assert await socket.receive() == {"said": "back"}
        assert await socket.receive() is None
    assert heard == ['{"said": "once"}']
    assert socket.closed == (1001, "over")


async def test_leaving_the_block_ends_its_tasks() -> None:
    client, server = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_once, server, []))
        assert await SocketClient(client).handshake() == 101
        nursery.cancel_scope.cancel("the server is left")
    assert nursery.cancel_scope.cancelled_caught


async def test_a_client_that_leaves_within_its_handshake_is_gone_and_no_error_of_ours() -> None:
    client, server = trio.testing.memory_stream_pair()
    socket = SocketClient(client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(socket.handshake)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel("it leaves")
    await client.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await serve_once(server, [])
