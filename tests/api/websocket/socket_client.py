"""A WebSocket client for tests, on wsproto: messages as JSON, everything the server sends seen."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import trio
import wsproto
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from triolet.api.application import Application

from ..fakes import encode, open_connection

TERMINALS = ("response.completed", "response.incomplete", "response.failed", "error")


@attrs.define(eq=False)
class SocketClient:
    """One socket. `answers_pings` off makes a client that looks dead."""

    stream: trio.abc.Stream
    answers_pings: bool = True
    protocol: wsproto.WSConnection = attrs.field(
        factory=lambda: wsproto.WSConnection(wsproto.ConnectionType.CLIENT), init=False
    )
    closed: tuple[int, str | None] | None = attrs.field(default=None, init=False)
    reads: int = attrs.field(default=0, init=False)
    _events: list[Any] = attrs.field(factory=list, init=False)
    _text: str = attrs.field(default="", init=False)

    async def handshake(
        self, path: str = "/v1/responses", headers: dict[str, str] | None = None
    ) -> int:
        """The status: 101, or the refusal's."""
        extra = [(n.encode(), v.encode()) for n, v in (headers or {}).items()]
        request = Request(host="localhost", target=path, extra_headers=extra)
        await self.stream.send_all(self.protocol.send(request))
        event = await self._next()
        if isinstance(event, AcceptConnection):
            return 101
        assert isinstance(event, RejectConnection)
        part: object = event
        while not (isinstance(part, RejectData) and part.body_finished):
            part = await self._next()
        return int(event.status_code)

    async def send(self, event: object) -> None:
        text = event if isinstance(event, str) else encode(event).decode()
        await self.stream.send_all(self.protocol.send(TextMessage(data=text)))

    async def send_part(self, text: str, *, is_last: bool = False) -> None:
        """One frame of a message."""
        frame = self.protocol.send(TextMessage(data=text, message_finished=is_last))
        await self.stream.send_all(frame)

    async def create(self, text: str, stream_id: str | None = None, **more: object) -> None:
        lane = {} if stream_id is None else {"stream_id": stream_id}
        await self.send({"type": "response.create", "input": text, **lane, **more})

    async def _next(self) -> Any:
        while not self._events:
            data = await self.stream.receive_some(2**16)
            self.reads += 1
            self.protocol.receive_data(bytes(data) if data else None)
            self._events = list(self.protocol.events())
        return self._events.pop(0)

    async def receive(self) -> dict[str, Any] | None:
        """The next event; None when the server closes (`closed` says how)."""
        while True:
            event = await self._next()
            if isinstance(event, TextMessage):
                self._text += event.data
                if event.message_finished:
                    text, self._text = self._text, ""
                    value = msgspec.json.decode(text)
                    assert isinstance(value, dict)
                    return value
            elif isinstance(event, Ping):
                if self.answers_pings:
                    await self.stream.send_all(self.protocol.send(event.response()))
            elif isinstance(event, CloseConnection):
                self.closed = (event.code, event.reason)
                try:
                    await self.stream.send_all(self.protocol.send(event.response()))
                except (trio.BrokenResourceError, wsproto.utilities.LocalProtocolError):
                    pass
                return None
            else:
                assert isinstance(event, Pong)

    async def event(self) -> dict[str, Any]:
        """The next event, which must come."""
        event = await self.receive()
        assert event is not None, self.closed
        return event

    async def close_code(self) -> int:
        """The code with which the server closes now."""
        assert await self.receive() is None
        assert self.closed is not None
        return self.closed[0]

    async def finish(self) -> dict[str, Any]:
        """The event that ends a response or refuses it; those before it are skipped."""
        return (await self.receive_until(*TERMINALS))[-1]

    async def receive_until(self, *types: str) -> list[dict[str, Any]]:
        """Events up to the first of one of these types, included."""
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] not in types:
            events.append(await self.event())
        return events

    async def close(self, code: int = 1000) -> None:
        await self.stream.send_all(self.protocol.send(CloseConnection(code=code)))


@asynccontextmanager
async def open_socket(
    application: Application, headers: dict[str, str] | None = None
) -> AsyncIterator[SocketClient]:
    async with open_connection(application) as stream:
        client = SocketClient(stream)
        assert await client.handshake(headers=headers) == 101
        yield client
