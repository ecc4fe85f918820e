"""Both sources give out connections, end, and leave no descriptor behind."""

import socket

import pytest
import trio
import trio.testing

from triolet.api.serving.server import QUEUE_CONNECTIONS_MAX, ListenerSource, open_queue_source


async def test_a_listener_accepts_until_it_is_closed() -> None:
    async with await ListenerSource.open() as source:
        client = await trio.open_tcp_stream(*source.address)
        accepted = await source.accept()
        await client.send_all(b"x")
        assert await accepted.recv(1) == b"x"
        accepted.close()
        await client.aclose()
        async with trio.open_nursery() as nursery:

            async def wait_for_the_end() -> None:
                with pytest.raises(trio.EndOfChannel):
                    await source.accept()

            nursery.start_soon(wait_for_the_end)
            await trio.testing.wait_all_tasks_blocked()
            source.close()
    with pytest.raises(trio.EndOfChannel):
        await source.accept()


async def test_an_address_in_use_is_told() -> None:
    async with await ListenerSource.open() as source:
        with pytest.raises(OSError, match="in use"):
            await ListenerSource.open(*source.address)


async def test_a_queue_gives_out_what_was_put_then_ends() -> None:
    async with open_queue_source() as source:
        left, right = socket.socketpair()
        assert source.put_nowait(right)
        source.close()
        accepted = await source.accept()
        left.send(b"x")
        assert await accepted.recv(1) == b"x"
        accepted.close()
        left.close()
        with pytest.raises(trio.EndOfChannel):
            await source.accept()


async def test_what_nobody_took_is_closed() -> None:
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
