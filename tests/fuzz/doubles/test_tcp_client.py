"""Each ending looks to the server as it is called."""

import socket

import pytest
import trio

from triolet.fuzz.doubles.tcp_client import Ending, Left, ServerStuck, converse


async def meet(ending: Ending, answer: bytes = b"") -> tuple[Left, bytes | None]:
    """What the client got, and what the server read; None where it met a reset."""
    seen: list[bytes | None] = []
    with trio.socket.socket() as listener:
        await listener.bind(("127.0.0.1", 0))
        listener.listen(1)

        async def serve() -> None:
            connection, _ = await listener.accept()
            async with trio.SocketStream(connection) as stream:
                if ending is Ending.WAIT:
                    seen.append(bytes(await stream.receive_some()))
                else:
                    seen.append(await read_to_end(stream))
                if answer:
                    await stream.send_all(answer)

        left = Left(b"")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            address = listener.getsockname()
            left = await converse(address, (b"one ", b"two"), ending, deadline_s=60)
    return left, seen[0]


async def read_to_end(stream: trio.SocketStream) -> bytes | None:
    data = b""
    try:
        while piece := await stream.receive_some():
            data += piece
    except trio.BrokenResourceError:
        return None
    return data


async def test_who_closes_is_read_to_the_end() -> None:
    assert await meet(Ending.CLOSE) == (Left(b""), b"one two")


async def test_who_resets_may_not_be_read_at_all() -> None:
    left, seen = await meet(Ending.RESET)
    assert left == Left(b"")
    assert seen in (None, b"one two")


async def test_who_closes_half_gets_the_answer() -> None:
    assert await meet(Ending.HALF, b"three") == (Left(b"three"), b"one two")


async def test_who_waits_gets_the_answer_and_the_servers_end() -> None:
    left, seen = await meet(Ending.WAIT, b"three")
    assert left.received == b"three"
    assert seen is not None
    assert b"one two".startswith(seen)


async def test_a_server_that_does_nothing_is_stuck() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(ServerStuck):
        await converse(listener.getsockname(), (b"one",), Ending.HALF, deadline_s=0.05)


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(OSError, match="connect"):
        await converse(address, (), Ending.CLOSE, deadline_s=60)
