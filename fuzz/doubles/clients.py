"""Clients of HTTP and WebSocket on any stream: h11 and wsproto, and nothing of the server's own.

The one pair of them, for tests, fuzzers and chaos: requests and events as JSON, everything that the
server sends is seen. Errors of the stream and of h11 and wsproto pass through.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import h11
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

TERMINALS = ("response.completed", "response.incomplete", "response.failed", "error")


@attrs.define(eq=False)
class HttpClient:
    """An h11 client on a stream: one request at a time, whole answers or pieces."""

    stream: trio.abc.Stream
    protocol: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.CLIENT), init=False)

    async def send(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> None:
        """Send one request; a body that is no bytes becomes JSON."""
        data = b"" if body is None else body if isinstance(body, bytes) else encode(body)
        all_headers = {"host": "localhost", **(headers or {})}
        if data and "transfer-encoding" not in all_headers:
            all_headers.setdefault("content-length", str(len(data)))
        request = h11.Request(method=method, target=path, headers=list(all_headers.items()))
        parts = [self.protocol.send(request) or b""]
        if data:
            parts.append(self.protocol.send(h11.Data(data=data)) or b"")
        parts.append(self.protocol.send(h11.EndOfMessage()) or b"")
        await self.stream.send_all(b"".join(parts))

    async def next_event(self) -> Any:
        """The next event of h11; a reset is an end. Raises `h11.RemoteProtocolError`."""
        while True:
            event = self.protocol.next_event()
            if event is not h11.NEED_DATA:
                return event
            try:
                self.protocol.receive_data(bytes(await self.stream.receive_some(65536)))
            except trio.BrokenResourceError:
                self.protocol.receive_data(b"")

    async def read_answer(self) -> "Answer":
        """The final answer, whole. Raises `h11.RemoteProtocolError`."""
        response = await self.next_event()
        while isinstance(response, h11.InformationalResponse):
            response = await self.next_event()
        if not isinstance(response, h11.Response):
            raise h11.RemoteProtocolError("the connection ended before an answer")
        body = b""
        while isinstance(event := await self.next_event(), h11.Data):
            body += bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise h11.RemoteProtocolError("the connection ended within an answer")
        headers = {n.decode(): v.decode() for n, v in response.headers}
        if self.protocol.our_state is h11.DONE and self.protocol.their_state is h11.DONE:
            self.protocol.start_next_cycle()
        return Answer(response.status_code, headers, body)

    async def read_answer_without_request(self) -> "Answer":
        """Read an answer that the server sends unasked."""
        self.protocol.send(h11.Request(method="GET", target="/", headers=[("host", "h")]))
        self.protocol.send(h11.EndOfMessage())
        return await self.read_answer()

    async def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> "Answer":
        """Send one request and read its answer."""
        await self.send(method, path, body, headers)
        return await self.read_answer()


@attrs.frozen
class Answer:
    """Answer over HTTP, whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of a refusal, which has all its fields."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error, dict)
        assert isinstance(error["code"], str)
        return error

    def events(self) -> Iterator[dict[str, Any]]:
        """Server-sent events of the body: their data, and that name and id are those of it."""
        assert self.headers["content-type"].startswith("text/event-stream")
        for frame in self.body.decode().removesuffix("\n\n").split("\n\n"):
            fields = dict(line.split(": ", 1) for line in frame.split("\n"))
            if fields["data"] == "[DONE]":
                yield {"type": "[DONE]"}
                continue
            event = msgspec.json.decode(fields["data"])
            if "event" in fields:
                assert fields["event"] == event["type"]
                assert fields.get("id") == _text_of(event.get("sequence_number"))
            yield event


def _text_of(number: int | None) -> str | None:
    return None if number is None else str(number)


def encode(value: object) -> bytes:
    """Encode as JSON."""
    return msgspec.json.encode(value)


@attrs.define(eq=False)
class SocketClient:
    """Client of one socket. `answers_pings` off makes a client that looks dead."""

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
        """Send one message: a text as it is, anything else as JSON."""
        text = event if isinstance(event, str) else encode(event).decode()
        await self.stream.send_all(self.protocol.send(TextMessage(data=text)))

    async def send_part(self, text: str, *, is_last: bool = False) -> None:
        """Send a frame of a message."""
        frame = self.protocol.send(TextMessage(data=text, message_finished=is_last))
        await self.stream.send_all(frame)

    async def create(self, text: str, stream_id: str | None = None, **more: object) -> None:
        """Ask for a response."""
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
        """Begin the closing handshake."""
        await self.stream.send_all(self.protocol.send(CloseConnection(code=code)))
