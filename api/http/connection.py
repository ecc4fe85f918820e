"""HTTP/1.1 connection: requests in, answers out, each step with a limit and a deadline.

`request` parses requests; answers are written here. This module owns the waiting and the
counting, and knows no routes.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import attrs
import msgspec
import trio

from ...runtime.errors import RequestQuarantined
from ...runtime.hands import ContentKind, Hands, Hold
from ...transports.takeover.slot import EndForm
from ..access_log import AccessEntry
from ..connection_shares import LOCAL, InputShare
from ..errors import ApiError, body_too_large, no_room, to_api_error
from ..schema.fields import JsonObject, decode_object
from ..settings import HttpLimits
from .answers import LAST_CHUNK, NO_SNIFFING, Headers, http_date, write_chunk, write_head
from .held import HttpState, encode_position, encode_state
from .request import JSON_TYPE, ChunkedBody, CountedBody, HttpRequest, invalid_http, take_head
from .stream import BoundedStream, ReadAhead

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# States after an answer.
NEXT, LAST = HttpState(), HttpState(is_last=True)
EVENT_STREAM_TYPE = "text/event-stream; charset=utf-8"
# After the deadline of a head: if we were stopped past it, as all processes were, what has come is
# given to us no sooner (CPython: `epoll.poll`, interrupted past its own deadline, returns nothing).
LAST_LOOK_S = 0.5


@attrs.define(eq=False)
class HttpConnection:
    """The server's side. `next_request`, then exactly one answer, then `next_cycle`, and again.

    Writes go through a `BoundedStream`: a cancelled or late one aborts the connection.
    """

    stream: BoundedStream
    limits: HttpLimits
    share: InputShare = attrs.field(factory=InputShare)
    # Whom it is counted for.
    address: str = LOCAL
    # The process's: heads and bodies are named there before they are parsed.
    hands: Hands = attrs.field(factory=Hands)

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
    # The access log's entry of the present request.
    access: AccessEntry = attrs.field(factory=AccessEntry, init=False)
    # A successor's task for the present request; another object after each event.
    state: HttpState = attrs.field(factory=HttpState, init=False)
    # The state that was described last.
    _described: HttpState = attrs.field(factory=HttpState, init=False)
    # An event stream has said nothing for long: a comment is due.
    is_silent: bool = attrs.field(default=False, init=False)
    input: ReadAhead = attrs.field(init=False)
    # Bytes of the present request that were not read yet.
    _body: CountedBody | ChunkedBody = attrs.field(init=False)
    # The client waits for our word (`100 Continue`) before it sends the body.
    _is_awaited: bool = attrs.field(default=False, init=False)
    _closing: bool = attrs.field(default=False, init=False)
    # See `HeldState`.
    ending: EndForm = attrs.field(default=EndForm.UNANSWERED, init=False)

    def __attrs_post_init__(self) -> None:
        self.input = ReadAhead(self.stream, self.limits.pipelined_bytes_max)
        self._body = CountedBody(0)

    def take_over(self, state: HttpState, kept_input: bytes) -> None:
        """Go on where another process was: with this request, of which it had read so much."""
        self.state, self.ending = state, EndForm.CUT if state.is_begun else EndForm.UNANSWERED
        self.input.buffer += kept_input
        self._closing = state.is_last

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read ahead during the block, so that a client that leaves is noticed; within `scope`."""
        async with self.input.reading():
            with self.scope:
                yield

    # ---- requests

    async def next_request(self) -> HttpRequest | None:
        """Read one head within its deadline; None when the client closed before any.

        Raises `ApiError` (400, 408, 431, 501…), after which only an answer may follow.
        """
        self.request, self.status, self.route, self.standing_headers = None, 0, "-", []
        try:
            if await self._take_head() or await self._receive_head():
                self.access = AccessEntry(trio.current_time())
                return self.request
        except ApiError:
            self._closing = True
            raise
        return None

    async def _receive_head(self) -> bool:
        for seconds in (self.limits.head_s, LAST_LOOK_S):
            with trio.move_on_after(seconds):
                while await self.input.more():
                    if await self._take_head():
                        return True
                if self.input.buffer:
                    raise invalid_http("The request ended within its head")
                return False
            if await self._take_head():  # its reader had it in the turn in which time was over
                return True
        message = f"No whole request head within {self.limits.head_s:g} s"
        raise ApiError(408, message, "request_timeout")

    async def _take_head(self) -> bool:
        whole = self.input.head(self.limits.head_bytes_max)
        with await self._in_hand(ContentKind.HEAD, whole):
            head = take_head(self.input.buffer, self.limits.head_bytes_max)
        if head is None:
            return False
        self.request, self._body = head.request, head.body
        self._is_awaited = head.expects_continue and not self.state.is_continued
        self._closing |= not head.keeps_alive
        return True

    async def read_body(self) -> bytes:
        """The whole body. Raises `ApiError` 413 or 503 (before reading, when declared) or 408."""
        body, limit = self._body, self.limits.body_bytes_max
        self._is_awaited &= not self.input.buffer
        if isinstance(body, ChunkedBody):
            return await self._in_time(self._read_chunks(body, limit))
        if body.bytes_left > limit:
            self._closing = True
            raise body_too_large(limit)
        if len(self.input.buffer) >= body.bytes_left:
            return body.take(self.input.buffer)
        return await self._in_time(self._read_counted(body))

    async def _in_time(self, reading: Awaitable[bytes]) -> bytes:
        """Read a body that is not here yet, within its deadline and the share of input."""
        try:
            with trio.move_on_after(self.limits.body_s):
                return await reading
            message = f"No whole body within {self.limits.body_s:g} s"
            raise ApiError(408, message, "request_timeout")
        except ApiError:
            self._closing = True
            raise
        finally:
            self.share.release()

    async def _read_counted(self, body: CountedBody) -> bytes:
        if not self.share.reserve(body.bytes_left):
            raise no_room()
        while len(self.input.buffer) < body.bytes_left:  # where it grows without copies
            await self._receive_body()
        return body.take(self.input.buffer)

    async def _read_chunks(self, body: ChunkedBody, limit: int) -> bytes:
        data = bytearray()
        while True:
            data += await self._take_piece()
            if len(data) > limit:
                raise body_too_large(limit)
            if not self.share.reserve(len(data)):
                raise no_room()
            if body.is_whole:
                return bytes(data)
            await self._receive_body()

    async def _take_piece(self) -> bytes:
        """Take the part of the body that is here; chunks are in hand while they are parsed."""
        if isinstance(self._body, CountedBody):
            return self._body.take(self.input.buffer)
        data = bytearray()
        while piece := self._body.take(self.input.buffer):
            with await self._in_hand(ContentKind.CHUNKS, piece):
                data += self._body.read(piece)
        return bytes(data)

    async def _in_hand(self, kind: ContentKind, data: bytes, principal: str = "") -> Hold:
        """Take data in hand. Raises `ApiError` 400 for a content that has ended frontends."""
        try:
            return await self.hands.take(kind, principal, data)
        except RequestQuarantined as error:
            raise to_api_error(error) from None

    async def _receive_body(self) -> None:
        if self._is_awaited:
            self._is_awaited = False
            self.state = HttpState(self.state.claimed, is_continued=True)
            await self.stream.send_all(CONTINUE)
        if not await self.input.more():
            raise trio.BrokenResourceError("the client closed within a body")

    async def read_json(self, principal: str = "") -> JsonObject:
        """The whole body as a JSON object.

        Raises `ApiError` as `read_body`, 415 for a body that is declared as something else or
        compressed, and 400 for what is no JSON object, or has ended frontends.
        """
        assert self.request is not None
        self.request.check_json()
        body = await self.read_body()
        with await self._in_hand(ContentKind.BODY, body, principal):
            return decode_object(body)

    def describe(self) -> bytes:
        self._described = self.state
        return encode_state(self.state)

    def note(self) -> bytes | None:
        """Note a position, if events of a stream have only moved it on; see `HeldState`."""
        before, state = self._described, self.state
        if state.is_begun and before.is_begun and before.claimed == state.claimed:
            return encode_position(state.position)
        return None

    def claim(self, draw: Callable[[], str], was_lost: Callable[[str], bool]) -> str:
        """The id under which the present request is executed: a new one, or a successor's task.

        It is written down before: a process that goes on with this connection repeats nothing.
        `was_lost` tells of an id that another may have been executed for meanwhile.
        """
        if not self.state.claimed or was_lost(self.state.claimed):
            self.access.note_id(claimed := draw())
            self.state = HttpState(claimed, is_continued=self.state.is_continued)
            if self.stream.held is not None:
                self.stream.held.publish()
        return self.state.claimed

    def execute_once(self) -> None:
        """Execute what follows at most once: a successor does not repeat the present request."""
        if self.stream.held is not None:
            self.stream.held.refuse()

    # ---- answers

    async def answer(
        self, status: int, body: bytes, *, content_type: str = JSON_TYPE, headers: Headers = ()
    ) -> None:
        """Send one whole answer; a HEAD request gets its headers alone."""
        all_headers = [*self.standing_headers, *headers]
        if status not in (204, 304):
            all_headers.append(("content-type", content_type))
            all_headers.append(("content-length", str(len(body))))
        if content_type == JSON_TYPE:
            all_headers.append(NO_SNIFFING)
        head = self._begin(status, all_headers)
        self._handle_answered()
        await self.stream.send_all(head if self.is_head else head + body)

    async def answer_json(self, status: int, value: object, headers: Headers = ()) -> None:
        """Send one whole answer as JSON."""
        await self.answer(status, msgspec.json.encode(value), headers=headers)

    async def answer_error(self, error: ApiError, body: JsonObject | None = None) -> None:
        """Send the error object, or this body, with its status and `Retry-After`."""
        self.access.error = error.code
        await self.answer_json(error.status, body or error.body(), error.headers())

    async def start_events(self) -> None:
        """Begin a stream of server-sent events; one that a life before began goes on."""
        # A client of HTTP/1.0 learns by the close where the stream ends.
        is_chunked = self.request is not None and self.request.http_version == "1.1"
        self.ending = EndForm.EVENTS if is_chunked else EndForm.CUT
        if self.state.is_begun:
            return
        headers = [
            *self.standing_headers,
            ("content-type", EVENT_STREAM_TYPE),
            ("cache-control", "no-store"),
            # Asks nginx, a frequent front, not to collect the stream before passing it on.
            ("x-accel-buffering", "no"),
        ]
        if is_chunked:
            headers.append(("transfer-encoding", "chunked"))
        head = self._begin(200, headers)
        self.state = HttpState(self.state.claimed, is_begun=True)
        await self.stream.send_all(head)

    async def send_events(self, data: bytes, position: str | int | None = None) -> None:
        """Write some whole events in one call; a successor goes on behind this position."""
        if data and not self.is_head:
            self.state = HttpState(self.state.claimed, is_begun=True, position=position)
            is_chunked = self.ending is EndForm.EVENTS
            await self.stream.send_all(write_chunk(data) if is_chunked else data)

    async def end_events(self, data: bytes = b"") -> None:
        """Send the last events and end the stream in order: nothing was lost."""
        if self.ending is EndForm.EVENTS:
            data = (write_chunk(data) if data else b"") + LAST_CHUNK
        self._handle_answered()
        if data and not self.is_head:
            await self.stream.send_all(data)

    def _handle_answered(self) -> None:
        """Note that the next bytes end this answer: its request is needed no more."""
        is_last = self._closing or not self._body.is_whole
        self.state, self.ending = LAST if is_last else NEXT, EndForm.UNANSWERED
        if self.stream.held is not None:
            self.input.keep_from_here()

    @property
    def is_head(self) -> bool:
        """Whether the present request is for the head of its answer alone."""
        return self.request is not None and self.request.method == "HEAD"

    def _begin(self, status: int, headers: list[tuple[str, str]]) -> bytes:
        if self._is_awaited and not self._body.is_whole:
            self._closing = True  # the client may send its body now, or not
        if self._closing:
            headers.append(("connection", "close"))
        headers.append(("date", http_date(int(time.time()))))
        self.status = status
        return write_head(status, headers)

    @contextlib.contextmanager
    def cancel_when_client_leaves(self) -> Iterator[None]:
        """Cancel all of `scope` when the client closes or resets within the block.

        There is no one to serve then; `is_gone` is set.
        """
        self.input.cancel_at_end(self.scope)
        try:
            yield
        finally:
            self.input.cancel_at_end(None)
            self.is_gone |= self.input.is_ended

    # ---- between requests, and the end

    def close_after_answer(self) -> None:
        """Make the answer to the present request the last one."""
        self._closing = True

    async def begin_upgrade(self) -> bytes:
        """Give the connection to another protocol; returns the bytes that came behind the head.

        The caller reads from `stream` from now on. Raises `ApiError` 400 for a handshake
        that has a body.
        """
        if not self._body.is_whole:
            self._closing = True
            raise ApiError(400, "A WebSocket handshake has no body", "invalid_handshake")
        await self.input.stop_reading()
        early = bytes(self.input.buffer)
        self.input.buffer.clear()
        return early

    async def next_cycle(self) -> bool:
        """Read away what is left of the request; False when the connection must end."""
        if self._closing or self.is_gone or self.stream.aborted:
            return False
        if self._body.is_whole:
            return True
        is_read = False
        with trio.move_on_after(self.limits.linger_s), contextlib.suppress(ApiError):
            is_read = await self._read_away()
        if is_read and self.stream.held is not None:  # it was to be the last
            self._handle_answered()
            self.stream.held.publish()
        return is_read

    async def _read_away(self) -> bool:
        size = len(await self._take_piece())
        while not self._body.is_whole and size < self.limits.linger_bytes_max:
            if not await self.input.more():
                break
            size += len(await self._take_piece())
        return self._body.is_whole

    async def close_in_order(self) -> None:
        """Say that nothing more comes, read away a little, then close. The read-ahead has ended.

        A close with unread bytes would reset the connection and may destroy our last answer.
        """
        if not self.stream.aborted and not self.is_gone:
            await self.stream.linger(self.limits.linger_s, self.limits.linger_bytes_max)
        await self.stream.aclose()
