"""Client of a running server's control socket: one question and its answer, or news until it ends.

One JSON object a line each way; news are lines behind a mark. `fleet.control_server` is the
other end.
"""

import json
from collections.abc import Callable

import attrs
import msgspec
import trio

from ..errors import ControlCallRefused
from .calls import ControlCall, ControlQuestion, News, Place, SignalOrder
from .run_folder import RunFolder

# A task tree of some thousand tasks at most.
ANSWER_BYTES_MAX = 64 * 2**20
# "control reply 2 s" of the design, for gathering; a second more for the round trip.
REPLY_TIMEOUT_S = 3.0
# Marks of a line of news: a snapshot, a change.
WHOLE, CHANGE = b"=", b"+"


@attrs.frozen
class ControlCallFailed(Exception):
    """The server did not answer, or answered with an error; `reason` says which."""

    reason: str

    def __str__(self) -> str:
        return f"the running server could not answer: {self.reason}"


async def receive_line(stream: trio.SocketStream, bytes_max: int) -> bytes:
    """The first line that the other end sends, or what came before it closed or said too much."""
    buffer = bytearray()
    while b"\n" not in buffer and len(buffer) <= bytes_max:
        data = await stream.receive_some(65536)
        if not data:
            break
        buffer += data
    return bytes(buffer)


async def ask_run(
    folder: RunFolder,
    call: ControlCall,
    place: Place | None = None,
    order: SignalOrder | None = None,
    *,
    host: str = "",
) -> str:
    """Ask the server of this run folder. Raises `ControlCallFailed`, `ControlCallRefused`."""
    question = msgspec.json.encode(ControlQuestion(call, place, order, host))
    with trio.move_on_after(REPLY_TIMEOUT_S):
        try:
            with folder.socket_address() as address:
                stream = await trio.open_unix_socket(address)
            async with stream:
                await stream.send_all(question + b"\n")
                reply = json.loads(await receive_line(stream, ANSWER_BYTES_MAX) or b"{}")
        except (OSError, ValueError, trio.BrokenResourceError) as error:
            raise ControlCallFailed(str(error)) from error
        if "refused" in reply:
            raise ControlCallRefused(str(reply["refused"]))
        if "answer" not in reply:
            raise ControlCallFailed(reply.get("error", "it closed the connection"))
        return str(reply["answer"])
    raise ControlCallFailed(f"no answer within {REPLY_TIMEOUT_S:g} s")


async def watch_run(folder: RunFolder, on_news: Callable[[News], None]) -> None:
    """Watch the server of this run folder until it ends, or this is cancelled.

    Raises `ControlCallFailed`.
    """
    question = msgspec.json.encode(ControlQuestion(ControlCall.WATCH))
    buffer = b""
    try:
        with folder.socket_address() as address:
            stream = await trio.open_unix_socket(address)
        async with stream:
            await stream.send_all(question + b"\n")
            while data := await stream.receive_some(65536):
                *lines, buffer = (buffer + data).split(b"\n")
                for line in filter(None, lines):
                    on_news(_read_news(line))
    except (OSError, trio.BrokenResourceError) as error:
        raise ControlCallFailed(str(error)) from error


def _read_news(line: bytes) -> News:
    if line[:1] not in (WHOLE, CHANGE):
        raise ControlCallFailed(json.loads(line)["error"])
    return News([line[1:].decode()], is_whole=line[:1] == WHOLE)
