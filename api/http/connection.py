"""One HTTP/1.1 connection: requests in, answers out, each step with a limit and a deadline.

Common heads are read by `http_head`, everything else by h11 (chunked bodies, upgrades, what is
refused), one h11 machine for each such request; answers are written here. This module owns the
waiting and the counting. Must not know routes or what is answered.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import NoReturn

import attrs
import h11
import msgspec
import trio

from ..errors import ApiError, body_too_large, head_too_large, no_room
from ..limits import HttpLimits
from ..schema.fields import JsonObject, decode_object
from .head import CONTINUE, LAST_CHUNK, read_head, write_chunk, write_head
from .input_budget import InputShare
from .read_ahead import HttpInput
from .request import JSON_TYPE, HttpRequest
from .stream import RECEIVE_BYTES, BoundedStream

VERSIONS = frozenset({"1.0", "1.1"})
EVENT_STREAM_TYPE = "text/event-stream; charset=utf-8"
Headers = Iterable[tuple[str, str]]


@attrs.define(eq=False)
class HttpConnection:
    """The server's side. `next_request`, then exactly one answer, then `next_cycle`, and again.

    Writes go through a `BoundedStream`: a cancelled or late one aborts the connection.
    """

    stream: BoundedStream
    limits: HttpLimits
    share: InputShare = attrs.field(factory=InputShare)

    # Around all that is done for the client, while `reading`: cancelled when it leaves before it is
    # answered, or sends no next request in time. One for all requests: each would cost a scope.
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    request: HttpRequest | None = attrs.field(default=None, init=False)
    # Status of the answer that was begun to the present request; 0 before.
    status: int = attrs.field(default=0, init=False)
    # The matched route's path, for counting.
    route: str = attrs.field(default="-", init=False)
    # The client left while it was being answered.
    is_gone: bool = attrs.field(default=False, init=False)
    # Headers that every answer to the present request carries.
    standing_headers: list[tuple[str, str]] = attrs.field(factory=list, init=False)
    _input: HttpInput = attrs.field(init=False)
    # Bytes of the present request's body that were not read yet, when h11 does not count them.
    _body_left: int = attrs.field(default=0, init=False)
    # Reads the present request, if it is not a common one.
    _h11: h11.Connection | None = attrs.field(default=None, init=False)
    # Bytes that it was given.
    _fed: int = attrs.field(default=0, init=False)
    _closing: bool = attrs.field(default=False, init=False)
    _is_chunked: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._input = HttpInput(self.stream, self.limits.pipelined_bytes_max)

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read ahead during the block, so that a client that leaves is noticed; within `scope`."""
        async with self._input.reading():
            with self.scope:
                yield

    @property
    def has_early_bytes(self) -> bool:
        """Whether bytes of a next request are here already."""
        return bool(self._input.buffer)

    async def wait_readable(self) -> None:
        """Wait for the first bytes of a next request, or for the client to close."""
        if not self.has_early_bytes:
            await self._input.more()

    # ---- requests

    async def next_request(self) -> HttpRequest | None:
        """Read one head within its deadline; None when the client closed before any.

        Raises `ApiError` (400, 408, 431, 501…), after which only an answer may follow.
        """
        self.request, self.status, self.route, self.standing_headers = None, 0, "-", []
        if self._read_common_head():
            return self.request
        with trio.move_on_after(self.limits.head_s):
            if not self._input.buffer and not await self._input.more():
                return None
            if not self._read_common_head():
                await self._read_uncommon_head()
            return self.request
        self._closing = True
        raise ApiError(
            408, f"No whole request head within {self.limits.head_s:g} s", "request_timeout"
        )

    def _read_common_head(self) -> bool:
        head = read_head(self._input.buffer, self.limits.head_bytes_max)
        if head is None:
            return False
        del self._input.buffer[: head.size]
        self.request, self._body_left = head.request, head.body_bytes
        self._closing |= not head.keeps_alive
        return True

    async def _read_uncommon_head(self) -> None:
        head_bytes_max = self.limits.head_bytes_max
        self._h11, self._fed = h11.Connection(h11.SERVER, head_bytes_max), 0
        event = await self._next_event()
        if not isinstance(event, h11.Request):
            assert isinstance(event, h11.ConnectionClosed)
            return
        # h11 has bounded what came in pieces; a head that was here at once, it takes whole.
        if self._fed - len(self._h11.trailing_data[0]) > head_bytes_max:
            self._closing = True
            raise head_too_large()
        self.request = HttpRequest.of(event)
        if self.request.http_version not in VERSIONS:
            self._closing = True
            raise ApiError(505, "Only HTTP/1.1 is spoken", "http_version_not_supported")
        if self.request.header("transfer-encoding") and self.request.header("content-length"):
            self._closing = True  # two lengths: somebody in between may believe the other one
            raise ApiError(400, "The request has two lengths of its body", "invalid_http")
        is_old = self.request.http_version == "1.0"
        self._closing |= is_old or "close" in self.request.tokens("connection")

    async def read_body(self) -> bytes:
        """The whole body. Raises `ApiError` 413 or 503 (before reading, when declared) or 408."""
        limit = self.limits.body_bytes_max
        assert self.request is not None
        declared = self.request.header("content-length")
        if declared is not None and int(declared) > limit:
            self._closing = True
            raise body_too_large(limit)
        if self._h11 is None and len(self._input.buffer) >= self._body_left:
            return self._take_counted()
        try:
            return await self._read_slow_body(limit)
        finally:
            self.share.release()

    async def _read_slow_body(self, limit: int) -> bytes:
        self._hold(self._body_left)
        with trio.move_on_after(self.limits.body_s):
            if self._h11 is not None:
                return await self._read_uncommon_body(limit)
            while len(self._input.buffer) < self._body_left:  # where it grows without copies
                if not await self._input.more():
                    raise trio.BrokenResourceError("the client closed within a body")
            return self._take_counted()
        self._closing = True
        raise ApiError(408, f"No whole body within {self.limits.body_s:g} s", "request_timeout")

    def _hold(self, size: int) -> None:
        if not self.share.hold(size):
            self._closing = True
            raise no_room()

    def _take_counted(self) -> bytes:
        """What is here of a counted body."""
        buffer = self._input.buffer
        body = bytes(buffer[: self._body_left])
        del buffer[: self._body_left]
        self._body_left -= len(body)
        return body

    async def _read_uncommon_body(self, limit: int) -> bytes:
        body = bytearray()
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            if len(body) > limit:
                self._closing = True
                raise body_too_large(limit)
            self._hold(len(body))
        if isinstance(event, h11.ConnectionClosed):
            raise trio.BrokenResourceError("the client closed within a body")
        return bytes(body)

    async def read_json(self) -> JsonObject:
        """The whole body as a JSON object.

        Raises `ApiError` as `read_body`, 415 for a body that is declared as something else or
        compressed, and 400 for what is no JSON object.
        """
        assert self.request is not None
        self.request.check_json()
        return decode_object(await self.read_body())

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        assert self._h11 is not None
        while True:
            self._feed()
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                self._closing = True
                self._refuse(error)
            if event is not h11.NEED_DATA:
                assert not isinstance(event, type) or event is h11.PAUSED
                return event
            if self._h11.they_are_waiting_for_100_continue:
                self._h11.send(h11.InformationalResponse(status_code=100, headers=[]))
                await self.stream.send_all(CONTINUE)
            if not await self._input.more():
                self._h11.receive_data(b"")

    def _feed(self) -> None:
        """Give h11 what is here."""
        assert self._h11 is not None
        if self._input.buffer:
            self._fed += len(self._input.buffer)
            self._h11.receive_data(bytes(self._input.buffer))
            self._input.buffer.clear()

    def _refuse(self, error: h11.RemoteProtocolError) -> NoReturn:
        status = error.error_status_hint
        if status == 431:
            raise head_too_large() from None
        raise ApiError(status, "The request is not valid HTTP/1.1", "invalid_http") from None

    # ---- answers

    async def answer(
        self, status: int, body: bytes, *, content_type: str = JSON_TYPE, headers: Headers = ()
    ) -> None:
        """Send one whole answer; a HEAD request gets its headers alone."""
        all_headers = [*self.standing_headers, *headers]
        if status != 204:
            all_headers.append(("content-type", content_type))
            all_headers.append(("content-length", str(len(body))))
        head = self._begin(status, all_headers)
        await self.stream.send_all(head if self._is_head else head + body)

    async def answer_json(self, status: int, value: object, headers: Headers = ()) -> None:
        """Send one whole answer as JSON."""
        await self.answer(status, msgspec.json.encode(value), headers=headers)

    async def answer_error(self, error: ApiError) -> None:
        """Send the error object with its status and `Retry-After`."""
        await self.answer_json(error.status, error.body(), error.headers())

    async def start_events(self) -> None:
        """Begin a stream of server-sent events."""
        headers = [
            *self.standing_headers,
            ("content-type", EVENT_STREAM_TYPE),
            ("cache-control", "no-store"),
            # Asks nginx, a frequent front, not to collect the stream before passing it on.
            ("x-accel-buffering", "no"),
        ]
        # A client of HTTP/1.0 learns by the close where the stream ends.
        self._is_chunked = self.request is not None and self.request.http_version == "1.1"
        if self._is_chunked:
            headers.append(("transfer-encoding", "chunked"))
        await self.stream.send_all(self._begin(200, headers))

    async def send_events(self, data: bytes) -> None:
        """Write some whole events in one call."""
        if data and not self._is_head:
            await self.stream.send_all(write_chunk(data) if self._is_chunked else data)

    async def end_events(self) -> None:
        """End the stream in order: the client can tell it from a lost connection."""
        if self._is_chunked and not self._is_head:
            await self.stream.send_all(LAST_CHUNK)

    @property
    def _is_head(self) -> bool:
        return self.request is not None and self.request.method == "HEAD"

    def _begin(self, status: int, headers: list[tuple[str, str]]) -> bytes:
        if self._h11 is not None and self._h11.they_are_waiting_for_100_continue:
            self._closing = True  # nobody knows whether the body comes
        if self._closing:
            headers.append(("connection", "close"))
        head = write_head(status, headers)
        self.status = status
        return head

    def cancel_when_client_leaves(self) -> "_WhileAnswered":
        """Cancel all of `scope` when the client closes or resets within the block.

        Nobody is there to be served any more; `is_gone` is set then.
        """
        return _WhileAnswered(self)

    # ---- between requests, and the end

    def close_after_answer(self) -> None:
        """Make the answer to the present request the last one."""
        self._closing = True

    async def wait_paused(self) -> None:
        """Before an upgrade: h11 has seen the request's end and waits for our decision.

        Nobody reads ahead afterwards. Raises `ApiError` 400 for a handshake that has a body.
        """
        with trio.move_on_after(self.limits.head_s):
            event = await self._next_event()
            while not isinstance(event, (h11.Data, type)):
                event = await self._next_event()
            if event is h11.PAUSED:
                await self._input.stop_reading()
                return
        self._closing = True
        raise ApiError(400, "A WebSocket handshake has no body", "invalid_handshake")

    def take_upgrade(self) -> bytes:
        """Bytes that came behind an upgrade request; no request may be read afterwards."""
        self._end_uncommon()
        early = bytes(self._input.buffer)
        self._input.buffer.clear()
        return early

    def _end_uncommon(self) -> None:
        """Leave h11, with what it did not use."""
        if self._h11 is not None:
            self._input.buffer[:0] = self._h11.trailing_data[0]
            self._h11 = None

    async def next_cycle(self) -> bool:
        """Read away what is left of the request; False when the connection must end."""
        if self._closing or self.is_gone or self.stream.aborted:
            return False
        if not self._body_left and self._h11 is None:
            return True
        with trio.move_on_after(self.limits.linger_s):
            return await self._read_away()
        return False

    async def _read_away(self) -> bool:
        size = 0
        while self._body_left:
            size += len(self._take_counted())
            if self._body_left and not (
                size < self.limits.linger_bytes_max and await self._input.more()
            ):
                return False
        if self._h11 is None:
            return True
        while self._h11.their_state is h11.SEND_BODY:
            self._feed()
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError:
                return False
            if event is h11.NEED_DATA:
                if not await self._input.more():
                    return False
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > self.limits.linger_bytes_max:
                    return False
        self._end_uncommon()
        return True

    async def close_in_order(self) -> None:
        """Say that nothing more comes, read away a little, then close. Nobody reads ahead now.

        A close with unread bytes would reset the connection and may destroy our last answer.
        """
        if not self.stream.aborted and not self.is_gone:
            size = 0
            with (
                trio.move_on_after(self.limits.linger_s),
                contextlib.suppress(
                    trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError
                ),
            ):
                await self.stream.send_eof()
                while size < self.limits.linger_bytes_max:
                    data = await self.stream.receive_some(RECEIVE_BYTES)
                    if not data:
                        break
                    size += len(data)
        await self.stream.aclose()


@attrs.define(eq=False)
class _WhileAnswered:
    """A block in which the end of the input cancels; a class, as there is one for each request."""

    connection: HttpConnection

    def __enter__(self) -> None:
        self.connection._input.tell_end(self.connection.scope)

    def __exit__(self, *_: object) -> None:
        self.connection._input.tell_end(None)
        self.connection.is_gone |= self.connection._input.is_ended
