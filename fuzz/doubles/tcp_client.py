"""A raw TCP client: it writes the given bytes, and leaves in the given way."""

import enum
import socket
import struct

import attrs
import trio

# struct linger: on, 0 s: close sends RST at once, whatever is under way.
_LINGER_NONE = struct.pack("ii", 1, 0)
RECEIVE_BYTES = 64 * 2**10


class Ending(enum.Enum):
    """How a client leaves."""

    RESET = "reset"  # RST at once; the server may not even have read what was sent
    CLOSE = "close"  # an ordinary close, nothing read; the server's answer meets a RST
    HALF = "half"  # says that nothing more comes, then reads to the server's end
    WAIT = "wait"  # says nothing and reads to the server's end, which its limits bring


@attrs.frozen
class Left:
    """Result of a connection. `was_reset`: the server, not we, ended it with RST."""

    received: bytes
    was_reset: bool = False


class ServerStuck(Exception):
    """The server did not end a connection whose client had said all it had to say."""


async def converse(
    address: tuple[str, int], pieces: tuple[bytes, ...], ending: Ending, *, deadline_s: float
) -> Left:
    """Connect, write the pieces, end so; reads meanwhile, so that the server is not blocked.

    Raises `OSError` if nobody listens, `ServerStuck`.
    """
    with trio.move_on_after(deadline_s):
        stream = await trio.open_tcp_stream(*address)
        async with stream:
            return await _converse(stream, pieces, ending)
    raise ServerStuck(f"a connection was not over after {deadline_s:g} s")


def reset(stream: trio.SocketStream) -> None:
    """End the connection with RST, at once, whatever is under way."""
    if stream.socket.fileno() >= 0:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    stream.socket.close()


async def _converse(stream: trio.SocketStream, pieces: tuple[bytes, ...], ending: Ending) -> Left:
    if ending in (Ending.RESET, Ending.CLOSE):
        if not await _write(stream, pieces):
            return Left(b"", was_reset=True)
        if ending is Ending.RESET:
            reset(stream)
        await trio.aclose_forcefully(stream)
        return Left(b"")
    received = bytearray()
    was_reset = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write_and_end, stream, pieces, ending)
        try:
            while data := await stream.receive_some(RECEIVE_BYTES):
                received += data
        except trio.BrokenResourceError:
            was_reset = True
        nursery.cancel_scope.cancel("the server has ended it")
    return Left(bytes(received), was_reset)


async def _write_and_end(
    stream: trio.SocketStream, pieces: tuple[bytes, ...], ending: Ending
) -> None:
    if await _write(stream, pieces) and ending is Ending.HALF:
        try:
            await stream.send_eof()
        except trio.BrokenResourceError:
            pass  # the server was quicker


async def _write(stream: trio.SocketStream, pieces: tuple[bytes, ...]) -> bool:
    """False when the server has ended the connection meanwhile."""
    try:
        for piece in pieces:
            await stream.send_all(piece)
    except trio.BrokenResourceError:
        return False
    return True
