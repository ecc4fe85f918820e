"""Clients of a server under chaos: one connection each, held by hand, so that it can be mistreated.

Two transports with one face: `receive` gives the next event of the API. They never reconnect, never
retry and end no connection that they were not told to end. What they see goes into histories by
whoever reads. Must not know faults or what a stream should hold.
"""

import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import attrs
import h11
import trio
import wsproto
import wsproto.events

from .fault_plan import Transport

HOST = "127.0.0.1"
PATH = "/v1/responses"
RECEIVE_BYTES = 64 * 2**10
# struct linger: on, 0 s: close sends RST.
_LINGER_NONE = struct.pack("ii", 1, 0)
# The smallest receive buffer there is (the kernel doubles it): a reader that stops is felt at once.
TINY_BUFFER_BYTES = 2048

Event = dict[str, Any]


@attrs.frozen
class Lost(Exception):
    """The connection ended without being asked to; `reason` says what the kernel said."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class EventConnection(Protocol):
    """A connection that events of responses come from."""

    stream: trio.SocketStream

    async def create(self, body: Event) -> None:
        """Ask for a response. Raises `Lost`."""

    async def receive(self) -> Event:
        """The next event. Raises `Lost` when the connection has ended."""

    async def leave(self) -> None:
        """End it as a polite client of this transport does."""


@asynccontextmanager
async def open_stream(port: int, *, tiny: bool = False) -> AsyncIterator[trio.SocketStream]:
    """A TCP connection; closed at the end of the block unless it is already. Raises `Lost`."""
    with trio.socket.socket() as sock:
        if tiny:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, TINY_BUFFER_BYTES)
        with _losses():
            await sock.connect((HOST, port))
        yield trio.SocketStream(sock)


@asynccontextmanager
async def open_events(
    transport: Transport, port: int, *, tiny: bool = False
) -> AsyncIterator[EventConnection]:
    """A connection of this transport, its handshake done. Raises `Lost`."""
    async with open_stream(port, tiny=tiny) as stream:
        if transport is Transport.SSE:
            yield SseConnection(stream)
        else:
            events = SocketConnection(stream)
            await events.shake_hands()
            yield events


@contextlib.contextmanager
def _losses() -> Iterator[None]:
    """Whatever the kernel says of a dead connection, as `Lost`."""
    try:
        yield
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise Lost(f"{type(error).__name__}: {error.__cause__ or error}") from error
    except (h11.RemoteProtocolError, wsproto.utilities.RemoteProtocolError) as error:
        raise Lost(f"cut in the midst of a message: {error}") from error


@attrs.define(eq=False)
class SseConnection:
    """HTTP with server-sent events: one response, then the connection may be used again."""

    stream: trio.SocketStream
    _h11: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.CLIENT), init=False)
    # What has arrived and was not given out; at most what one read brings and one event.
    _data: bytes = attrs.field(default=b"", init=False)
    # The answer is no stream of events.
    _refused: bool = attrs.field(default=False, init=False)

    async def create(self, body: Event) -> None:
        """Ask for a response."""
        await _send_request(self.stream, self._h11, ("POST", PATH), {**body, "stream": True})

    async def receive(self) -> Event:
        """The next event; a refusal is an event of type `error`."""
        while True:
            block, separator, rest = self._data.partition(b"\n\n")
            if separator and not self._refused:
                self._data = rest
                for line in block.split(b"\n"):
                    if line.startswith(b"data: {"):
                        return _object(line.removeprefix(b"data: "))
                continue
            if (refusal := await self._more()) is not None:
                return refusal

    async def _more(self) -> Event | None:
        """Read on; an event if the answer is a refusal that is whole now."""
        with _losses():
            event = await _next_event(self.stream, self._h11)
        match event:
            case h11.Response():
                self._refused = event.status_code != 200
            case h11.Data():
                self._data += bytes(event.data)
            case h11.EndOfMessage() if self._refused:
                return {"type": "error", **_object(self._data)}
            case _:
                raise Lost("it ended without a last event")
        return None

    async def leave(self) -> None:
        """Close; SSE knows no farewell."""
        await trio.aclose_forcefully(self.stream)


@attrs.define(eq=False)
class SocketConnection:
    """A WebSocket; any number of responses, told apart by their lanes."""

    stream: trio.SocketStream
    _ws: wsproto.WSConnection = attrs.field(
        factory=lambda: wsproto.WSConnection(wsproto.ConnectionType.CLIENT), init=False
    )
    _text: str = attrs.field(default="", init=False)

    async def shake_hands(self) -> None:
        """The opening handshake. Raises `Lost` also when it is refused."""
        await self._send(wsproto.events.Request(host=HOST, target=PATH))
        event = await self._next()
        if not isinstance(event, wsproto.events.AcceptConnection):
            raise Lost(f"the handshake was answered by {type(event).__name__}")

    async def create(self, body: Event) -> None:
        """Ask for a response."""
        await self.send({"type": "response.create", **body})

    async def send(self, event: Event) -> None:
        """Send any event. Raises `Lost`."""
        await self._send(wsproto.events.TextMessage(data=json.dumps(event)))

    async def receive(self) -> Event:
        """The next event."""
        while True:
            event = await self._next()
            match event:
                case wsproto.events.TextMessage():
                    self._text += event.data
                    if event.message_finished:
                        text, self._text = self._text, ""
                        return _object(text)
                case wsproto.events.Ping():
                    await self._send(event.response())
                case wsproto.events.CloseConnection():
                    raise Lost(f"closed with {event.code}: {event.reason}")
                case _:
                    pass

    async def leave(self) -> None:
        """The closing handshake, as far as saying goodbye; then close."""
        with contextlib.suppress(Lost):
            await self._send(wsproto.events.CloseConnection(code=1000))
        await trio.aclose_forcefully(self.stream)

    async def _send(self, event: wsproto.events.Event) -> None:
        with _losses():
            await self.stream.send_all(self._ws.send(event))

    async def _next(self) -> wsproto.events.Event:
        with _losses():
            while True:
                for event in self._ws.events():
                    return event
                data = await self.stream.receive_some(RECEIVE_BYTES)
                if not data:
                    raise Lost("the connection ended")
                self._ws.receive_data(bytes(data))


async def ask(port: int, method: str, path: str) -> tuple[int, Any]:
    """One HTTP request on a connection of its own: status and decoded JSON (text if it is none).

    Raises `Lost`.
    """
    async with open_stream(port) as stream:
        connection = h11.Connection(h11.CLIENT)
        await _send_request(stream, connection, (method, path), None)
        status, body = 0, bytearray()
        with _losses():
            while not isinstance(event := await _next_event(stream, connection), h11.EndOfMessage):
                if isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    raise Lost("the connection ended within an answer")
    try:
        return status, json.loads(body)
    except ValueError:
        return status, body.decode()


async def _send_request(
    stream: trio.SocketStream, connection: h11.Connection, head: tuple[str, str], body: Event | None
) -> None:
    """Send the request with this method and path. Raises `Lost`."""
    data = b"" if body is None else json.dumps(body).encode()
    headers = [("host", HOST), ("content-length", str(len(data)))]
    request = h11.Request(method=head[0], target=head[1], headers=headers)
    sent = [
        connection.send(event) or b"" for event in (request, h11.Data(data), h11.EndOfMessage())
    ]
    with _losses():
        await stream.send_all(b"".join(sent))


async def _next_event(stream: trio.SocketStream, connection: h11.Connection) -> Any:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(bytes(await stream.receive_some(RECEIVE_BYTES)))
    return event


def reset(stream: trio.SocketStream) -> None:
    """Close with RST, at once."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    stream.socket.close()


def _object(text: str | bytes) -> Event:
    event = json.loads(text)
    assert isinstance(event, dict)
    return event
