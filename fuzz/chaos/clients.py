"""Clients of a server under chaos: one connection each, which can be mistreated.

Two transports with one face: `receive` gives the next event of the API. They never reconnect, never
retry and end no connection that they were not told to end. What they see goes into histories by
whoever reads.
"""

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import attrs
import h11
import trio
import wsproto
import wsproto.events

from ..doubles.clients import HttpClient, SocketClient
from .fault_plan import Transport

HOST = "127.0.0.1"
PATH = "/v1/responses"
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
    key: str

    async def create(self, body: Event) -> None:
        """Ask for a response. Raises `Lost`."""

    async def resume(self, response_id: str, after: int) -> None:
        """Ask for the events of a response behind this number. Raises `Lost`."""

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
        with losses():
            await sock.connect((HOST, port))
        yield trio.SocketStream(sock)


@asynccontextmanager
async def open_events(
    transport: Transport, port: int, *, key: str = "", tiny: bool = False
) -> AsyncIterator[EventConnection]:
    """A connection of this transport, its handshake done, of who has this key. Raises `Lost`."""
    async with open_stream(port, tiny=tiny) as stream:
        if transport is Transport.SSE:
            yield SseConnection(stream, key)
        else:
            events = SocketConnection(stream, key)
            await events.shake_hands()
            yield events


@contextlib.contextmanager
def losses() -> Iterator[None]:
    """Whatever the kernel says of a dead connection, as `Lost`."""
    try:
        yield
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise Lost(f"{type(error).__name__}: {error.__cause__ or error}") from error
    except (h11.RemoteProtocolError, wsproto.utilities.ProtocolError) as error:
        raise Lost(f"cut in the midst of a message: {error}") from error


@attrs.define(eq=False)
class SseConnection:
    """HTTP with server-sent events: one response, then the connection may be used again."""

    stream: trio.SocketStream
    key: str = ""
    _http: HttpClient = attrs.field(init=False)
    # What has arrived and was not given out; at most what one read brings and one event.
    _data: bytes = attrs.field(default=b"", init=False)
    # The answer is no stream of events.
    _refused: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._http = HttpClient(self.stream)

    async def create(self, body: Event) -> None:
        """Ask for a response."""
        with losses():
            await self._http.send("POST", PATH, {**body, "stream": True}, _headers(self.key))

    async def resume(self, response_id: str, after: int) -> None:
        """Ask for the events of a response behind this number."""
        path = f"{PATH}/{response_id}?stream=true&starting_after={after}"
        with losses():
            await self._http.send("GET", path, None, _headers(self.key))

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
        with losses():
            event = await self._http.next_event()
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
    """A WebSocket; any number of responses, distinguished by their lanes."""

    stream: trio.SocketStream
    key: str = ""
    _client: SocketClient = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._client = SocketClient(self.stream)

    async def shake_hands(self) -> None:
        """The opening handshake. Raises `Lost` also when it is refused."""
        with losses():
            status = await self._client.handshake(PATH, _headers(self.key))
        if status != 101:
            raise Lost(f"the handshake was answered by {status}")

    async def create(self, body: Event) -> None:
        """Ask for a response."""
        await self.send({"type": "response.create", **body})

    async def resume(self, response_id: str, after: int, **fields: Any) -> None:
        """Ask for the events of a response behind this number."""
        named = {"response_id": response_id, "starting_after": after, **fields}
        await self.send({"type": "response.resume", **named})

    async def send(self, event: Event) -> None:
        """Send any event. Raises `Lost`."""
        with losses():
            await self._client.send(event)

    async def receive(self) -> Event:
        """The next event."""
        with losses():
            event = await self._client.receive()
        if event is None:
            raise Lost(f"closed with {self._client.closed}")
        return event

    async def leave(self) -> None:
        """The closing handshake, as far as saying goodbye; then close."""
        with contextlib.suppress(Lost), losses():
            await self._client.close()
        await trio.aclose_forcefully(self.stream)


def _headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


async def ask(
    port: int, method: str, path: str, *, key: str = "", body: Event | None = None
) -> tuple[int, Any]:
    """One HTTP request on a connection of its own: status and decoded JSON (text if it is none).

    Raises `Lost`.
    """
    async with open_stream(port) as stream:
        with losses():
            answer = await HttpClient(stream).request(method, path, body, headers=_headers(key))
    try:
        return answer.status, json.loads(answer.body)
    except ValueError:
        return answer.status, answer.body.decode()


def _object(text: str | bytes) -> Event:
    event = json.loads(text)
    assert isinstance(event, dict)
    return event
