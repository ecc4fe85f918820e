"""One HTTP/1.1 connection, on h11: requests in, answers out, each step with a limit and a deadline.

h11 knows the protocol (framing, keep-alive, pipelining, upgrades); this module owns the waiting and
the counting. Bytes of a next request that arrive early stay in h11's buffer. Must not know routes
or what is answered.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import NoReturn

import attrs
import h11
import msgspec
import trio

from ..nurseries.error_groups import single_errors_unwrapped
from .bounded_stream import BoundedStream
from .errors import ApiError
from .fields import JsonObject, decode_object
from .http_request import HttpRequest
from .limits import HttpLimits

RECEIVE_BYTES = 64 * 2**10
VERSIONS = frozenset({"1.0", "1.1"})
JSON_TYPE = "application/json"
EVENT_STREAM_TYPE = "text/event-stream; charset=utf-8"
Headers = Iterable[tuple[str, str]]


def is_json_type(content_type: str) -> bool:
    """Whether a `Content-Type` header says JSON; its parameters do not matter."""
    name = content_type.partition(";")[0].strip().lower()
    return name == JSON_TYPE or (name.startswith("application/") and name.endswith("+json"))


@attrs.define(eq=False)
class HttpConnection:
    """The server's side. `next_request`, then exactly one answer, then `next_cycle`, and again.

    Writes go through a `BoundedStream`: a cancelled or late one aborts the connection.
    """

    stream: BoundedStream
    limits: HttpLimits

    request: HttpRequest | None = attrs.field(default=None, init=False)
    # Status of the answer that was begun to the present request; 0 before.
    status: int = attrs.field(default=0, init=False)
    # The matched route's path, for counting.
    route: str = attrs.field(default="-", init=False)
    # The client left while it was being answered.
    is_gone: bool = attrs.field(default=False, init=False)
    # Headers that every answer to the present request carries.
    standing_headers: list[tuple[str, str]] = attrs.field(factory=list, init=False)
    _h11: h11.Connection = attrs.field(init=False)
    _closing: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=self.limits.head_bytes_max)

    @property
    def has_early_bytes(self) -> bool:
        """Whether bytes of a next request are here already."""
        return bool(self._h11.trailing_data[0])

    async def wait_readable(self) -> bool:
        """Wait for the first bytes of a next request; False when the client closed instead."""
        if self.has_early_bytes:
            return True
        return await self._receive()

    async def next_request(self) -> HttpRequest | None:
        """Read one head within its deadline; None when the client closed before any.

        Raises `ApiError` (400, 408, 431, 501…), after which only an answer may follow.
        """
        self.request, self.status, self.route, self.standing_headers = None, 0, "-", []
        with trio.move_on_after(self.limits.head_s):
            event = await self._next_event()
            if isinstance(event, h11.Request):
                self.request = HttpRequest.of(event)
                if self.request.http_version not in VERSIONS:
                    self._closing = True
                    raise ApiError(505, "Only HTTP/1.1 is spoken", "http_version_not_supported")
                return self.request
            assert isinstance(event, h11.ConnectionClosed)
            return None
        self._closing = True
        raise ApiError(
            408, f"No whole request head within {self.limits.head_s:g} s", "request_timeout"
        )

    async def read_body(self) -> bytes:
        """The whole body. Raises `ApiError` 413 (before reading, when declared) or 408."""
        limit = self.limits.body_bytes_max
        too_large = ApiError(413, f"The body is over {limit} bytes", "request_too_large")
        assert self.request is not None
        declared = self.request.header("content-length")
        if declared is not None and int(declared) > limit:
            self._closing = True
            raise too_large
        body = bytearray()
        with trio.move_on_after(self.limits.body_s):
            while isinstance(event := await self._next_event(), h11.Data):
                body += event.data
                if len(body) > limit:
                    self._closing = True
                    raise too_large
            if isinstance(event, h11.ConnectionClosed):
                raise trio.BrokenResourceError("the client closed within a body")
            return bytes(body)
        self._closing = True
        raise ApiError(408, f"No whole body within {self.limits.body_s:g} s", "request_timeout")

    async def read_json(self) -> JsonObject:
        """The whole body as a JSON object.

        Raises `ApiError` as `read_body`, 415 for a body that is declared as something else, and
        400 for what is no JSON object.
        """
        assert self.request is not None
        declared = self.request.header("content-type")
        if declared is not None and not is_json_type(declared):
            raise ApiError(
                415, "The body must be sent as application/json", "unsupported_media_type"
            )
        return decode_object(await self.read_body())

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                self._closing = True
                self._refuse(error)
            if event is not h11.NEED_DATA:
                assert not isinstance(event, type) or event is h11.PAUSED
                return event
            if self._h11.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            await self._receive()

    def _refuse(self, error: h11.RemoteProtocolError) -> NoReturn:
        status = error.error_status_hint
        if status == 431:
            raise ApiError(431, "The request head is too large", "request_head_too_large") from None
        raise ApiError(status, "The request is not valid HTTP/1.1", "invalid_http") from None

    async def _receive(self) -> bool:
        data = await self.stream.receive_some(RECEIVE_BYTES)
        self._h11.receive_data(bytes(data))
        return bool(data)

    async def _send(self, *events: h11.Event) -> None:
        data = b"".join([self._h11.send(event) or b"" for event in events])
        if data:
            await self.stream.send_all(data)

    # ---- answers

    async def answer(
        self, status: int, body: bytes, *, content_type: str = JSON_TYPE, headers: Headers = ()
    ) -> None:
        """Send one whole answer; a HEAD request gets its headers alone."""
        self.status = status
        all_headers = [*self.standing_headers, *headers]
        if status != 204:
            all_headers.append(("content-type", content_type))
            all_headers.append(("content-length", str(len(body))))
        if self._closing:
            all_headers.append(("connection", "close"))
        response = h11.Response(status_code=status, headers=all_headers)
        has_body = bool(body) and not (self.request is not None and self.request.method == "HEAD")
        parts = [h11.Data(data=body)] if has_body else []
        await self._send(response, *parts, h11.EndOfMessage())

    async def answer_json(self, status: int, value: object, headers: Headers = ()) -> None:
        """Send one whole answer as JSON."""
        await self.answer(status, msgspec.json.encode(value), headers=headers)

    async def answer_error(self, error: ApiError) -> None:
        """Send the error object with its status and `Retry-After`."""
        await self.answer_json(error.status, error.body(), error.headers())

    async def start_events(self) -> None:
        """Begin a stream of server-sent events."""
        self.status = 200
        headers = [
            *self.standing_headers,
            ("content-type", EVENT_STREAM_TYPE),
            ("cache-control", "no-store"),
            # Asks nginx, a frequent front, not to collect the stream before passing it on.
            ("x-accel-buffering", "no"),
        ]
        if self._closing:
            headers.append(("connection", "close"))
        await self._send(h11.Response(status_code=200, headers=headers))

    async def send_events(self, data: bytes) -> None:
        """Write some whole events in one call."""
        await self._send(h11.Data(data=data))

    async def end_events(self) -> None:
        """End the stream in order: the client can tell it from a lost connection."""
        await self._send(h11.EndOfMessage())

    @contextlib.asynccontextmanager
    async def cancel_when_client_leaves(self) -> AsyncIterator[None]:
        """Cancel the body when the client closes or resets; `is_gone` is set then.

        Raises what the body raises, bare.
        """
        with single_errors_unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, nursery.cancel_scope, name="disconnect-watch")
                yield
                nursery.cancel_scope.cancel("the answer is complete")

    async def _watch(self, scope: trio.CancelScope) -> None:
        early = len(self._h11.trailing_data[0])
        try:
            while early < self.limits.pipelined_bytes_max:
                data = await self.stream.receive_some(RECEIVE_BYTES)
                if not data:
                    break
                self._h11.receive_data(bytes(data))
                early += len(data)
            else:
                return  # too eager to be watched further; a failing write will tell
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.is_gone = True
        scope.cancel("the client has left")

    # ---- between requests, and the end

    def close_after_answer(self) -> None:
        """Make the answer to the present request the last one."""
        self._closing = True

    async def wait_paused(self) -> None:
        """Before an upgrade: h11 has seen the request's end and waits for our decision.

        Raises `ApiError` 400 for a handshake that has a body.
        """
        with trio.move_on_after(self.limits.head_s):
            event = await self._next_event()
            while not isinstance(event, (h11.Data, type)):
                event = await self._next_event()
            if event is h11.PAUSED:
                return
        self._closing = True
        raise ApiError(400, "A WebSocket handshake has no body", "invalid_handshake")

    def take_upgrade(self) -> bytes:
        """Bytes that came behind an upgrade request; nothing of h11 may be used afterwards."""
        return bytes(self._h11.trailing_data[0])

    async def next_cycle(self) -> bool:
        """Read away what is left of the request; False when the connection must end."""
        if self._closing or self.is_gone or self.stream.aborted:
            return False
        if self._h11.their_state is h11.SEND_BODY:
            await self._read_away()
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True

    async def _read_away(self) -> None:
        size = 0
        with trio.move_on_after(self.limits.linger_s):
            while size < self.limits.linger_bytes_max:
                try:
                    event = self._h11.next_event()
                except h11.RemoteProtocolError:
                    return
                if event is h11.NEED_DATA:
                    if not await self._receive():
                        return
                elif isinstance(event, h11.Data):
                    size += len(event.data)
                else:
                    return

    async def close_in_order(self) -> None:
        """Say that nothing more comes, read away a little, then close.

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
