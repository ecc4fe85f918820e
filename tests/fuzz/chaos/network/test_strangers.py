"""Strangers come as often as they are told, each says its own, and all are gone at the end."""

import socket

import trio
import trio.lowlevel

from triolet.fuzz.chaos.network.strangers import SAYINGS, bother

from .conftest import DEADLINE_S


async def test_strangers_come_at_their_rate_and_leave() -> None:
    heard: list[bytes] = []

    async def listen(listener: socket.socket) -> None:
        listener.setblocking(False)
        while True:
            await trio.lowlevel.wait_readable(listener)
            stranger = trio.socket.from_stdlib_socket(listener.accept()[0])
            nursery.start_soon(hear, stranger)

    async def hear(stranger: trio.socket.SocketType) -> None:
        with stranger:
            said = b""
            while part := await stranger.recv(1024):
                said += part
            heard.append(said)

    with socket.create_server(("127.0.0.1", 0)) as listener, trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, listener)
            count = await bother("127.0.0.1", listener.getsockname()[1], rate=300, seconds=0.1)
            while len(heard) < count:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel("all have left")
    assert len(heard) == count > 0
    assert set(heard) <= {*SAYINGS}
