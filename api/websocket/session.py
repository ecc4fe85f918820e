"""One WebSocket connection: OpenAI's Responses mode, many lanes of responses on one socket.

`lanes` decides what runs, `writer` what is sent next, `limits_guard` what a client may send. One
reader, which never waits for the engine; one writer, which gathers what waits into one write; one
task for each active lane. The handshake was checked before.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from ...nurseries.tasks.background import start_background_task_soon
from ...runtime.errors import Overloaded
from ...runtime.messages import ForeignVerb
from ..application import Application
from ..errors import ApiError, bad_field, draining, internal_error
from ..http.connection import HttpConnection
from ..openai.response_events import Event
from ..openai.responses_request import (
    ResponseRequest,
    ResumeRequest,
    read_credit,
    read_event_id,
    read_response_request,
    read_resume_request,
    read_stream_id,
)
from ..responses.response import ResponseReader
from ..schema.fields import JsonObject, ObjectFields, decode_object
from ..settings import SocketLimits
from .frames import FrameStream, open_socket
from .lanes import CANCELLED, Lanes, Start, Turn
from .limits_guard import POLICY_VIOLATION, TRY_AGAIN_LATER
from .writer import OneEvent, SocketWriter, error_event, overloaded, steer_failed, too_old

logger = logging.getLogger(__name__)
GOING_AWAY = 1001
INTERNAL_ERROR = 1011
SERVICE_RESTART = 1012


async def run_websocket(
    connection: HttpConnection,
    application: Application,
    principal: str,
    *,
    key: str,
    early: bytes,
) -> None:
    """Serve one socket whose handshake was checked, until either side closes it.

    `early` are bytes that came behind the handshake.
    Raises `BrokenResourceError` when the connection is lost. Cancellation: aborts its responses.
    """
    limits = application.settings.limits.socket
    counters = application.counters
    counters.sockets += 1
    counters.sockets_active += 1
    application.totals.changed()
    try:
        async with open_socket(connection, limits, key=key, early=early) as (socket, stream):
            session = SocketSession(socket, stream, application, principal, limits)
            await _run_contained(session, application)
    finally:
        counters.sockets_active -= 1


async def _run_contained(session: "SocketSession", application: Application) -> None:
    """The firewall of the socket: a mistake of ours closes it with 1011."""
    try:
        await session.run()
        return
    except* ConnectionClosed:
        pass  # a task wrote while a close, of either side, was under way
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the connection was lost, or cut by another task, while one wrote
    except* Exception as group:
        application.counters.connections_failed += 1
        logger.error("a socket failed; only it is closed", exc_info=group)
        await session.close(INTERNAL_ERROR, "internal error")


@attrs.define(eq=False)
class SocketSession:
    """What one open socket holds. `run` is called once."""

    socket: WebSocketConnection
    stream: FrameStream
    application: Application
    principal: str
    limits: SocketLimits

    lanes: Lanes = attrs.field(init=False)
    writer: SocketWriter = attrs.field(init=False)
    # {lane: what runs or is read in it}.
    _turns: dict[str | None, Turn] = attrs.field(factory=dict, init=False)
    # Responses in a row that were refused at a limit of the server.
    _overloads: int = attrs.field(default=0, init=False)
    # Why no further response is taken, once that is so.
    _refusal: ApiError | None = attrs.field(default=None, init=False)
    # A client asked for notices of the server (`runtime.events`).
    _wants_events: bool = attrs.field(default=False, init=False)
    # A close of ours is under way; done when set.
    _closing: trio.Event | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.lanes = Lanes(self.limits)
        self.writer = SocketWriter(self.socket, self.stream, self.limits)

    async def run(self) -> None:
        """Serve until the socket is closed. Raises what a task of it raises, in groups."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._start(self.writer.run, name="socket-writer")
                self._start(self._keep_alive, name="socket-ping")
                self._start(self._retire, name="socket-retirement")
                await self._read()
                if self._closing is not None:
                    await self._closing.wait()
                nursery.cancel_scope.cancel("the socket is closed")
        finally:
            self.application.store.forget_session(self)

    def _start(self, async_fn: Callable[..., Awaitable[object]], *args: object, name: str) -> None:
        """Start a task of this socket; if it is cancelled alone, the socket ends: none is idle."""
        assert self._nursery is not None
        scope = self._nursery.cancel_scope
        start_background_task_soon(self._nursery, async_fn, *args, name=name, takes_along=scope)

    async def close(self, code: int, reason: str) -> None:
        """Send our close frame and wait, bounded, for the client's. Idempotent."""
        if self._closing is not None:
            await self._closing.wait()
            return
        self._closing = trio.Event()
        try:
            with trio.move_on_after(self.limits.close_s):
                await self.socket.aclose(code, reason)
        finally:
            self._closing.set()

    # ---- reading

    async def _read(self) -> None:
        """Take messages until the end; never waits for anything else."""
        try:
            while True:
                self._handle_message(await self.socket.get_message())
        except ConnectionClosed:
            return  # the end of every socket: closed by the client, by `close`, or lost

    def _handle_message(self, message: str | bytes) -> None:
        stream_id = event_id = None
        try:
            event = decode_object(message)
            event_id = read_event_id(event)
            stream_id = read_stream_id(event)
            self._handle_event(event, len(message), event_id)
        except ApiError as error:
            self._put_notice(error_event(error, stream_id, event_id))

    def _handle_event(self, event: JsonObject, size_bytes: int, event_id: str | None) -> None:
        match ObjectFields(event).string("type"):
            case "response.create":
                request = read_response_request(
                    event,
                    model=self.application.generator.model_name,
                    now=trio.current_time(),
                    has_tools=self.application.has_tools,
                )
                self._handle_request(Start(request, size_bytes, event_id))
                self._wants_events |= request.options.events
            case "response.resume":
                self._handle_request(Start(read_resume_request(event), size_bytes, event_id))
            case "response.cancel":
                self._handle_cancel(ObjectFields(event), event_id)
            case "runtime.credit":
                self._handle_credit(event)
            case "response.steer":
                self._put_notice(steer_failed(event))
            case None:
                raise bad_field("type", "is missing", "missing_required_parameter")
            case kind:
                message = f"The event type {kind[:100]!r} is not known here"
                raise ApiError(400, message, "unknown_event", param="type")

    def _handle_request(self, start: Start) -> None:
        if self._refusal is not None:
            raise attrs.evolve(self._refusal)
        ready = self.lanes.handle_request(start)
        if ready is not None:
            self._turns[ready.request.stream_id] = Turn.of(ready)
            name = f"lane {ready.request.stream_id or '(default)'}"
            self._start(self._run_lane, ready, name=name)

    def _turn_of(self, event: ObjectFields) -> Turn:
        """The response that is named: any of this principal's, or what runs in the lane."""
        response_id = event.string("response_id")
        turn = self._turns.get(event.string("stream_id"))
        if response_id is not None:
            return Turn(response_id)
        if turn is None:
            raise ApiError(404, "No response runs in this lane", "response_not_found")
        return turn

    def _handle_cancel(self, event: ObjectFields, event_id: str | None) -> None:
        turn = self._turn_of(event)
        if turn.response_id is None:
            turn.is_cancelled = True
        elif self.application.foreign.is_foreign(turn.response_id):
            named = (turn.response_id, event.string("stream_id"), event_id)
            self._start(self._cancel_foreign, *named, name="foreign-cancel")
        else:
            self.application.store.cancel(turn.response_id, self.principal, CANCELLED, self)

    async def _cancel_foreign(
        self, response_id: str, stream_id: str | None, event_id: str | None
    ) -> None:
        """The reader does not wait for another frontend; how many may is bounded there."""
        try:
            await self.application.foreign.call(ForeignVerb.CANCEL, response_id, self.principal)
        except ApiError as error:
            self._put_notice(error_event(error, stream_id, event_id))

    def _handle_credit(self, event: JsonObject) -> None:
        tokens = read_credit(event)
        turn = self._turn_of(ObjectFields(event))
        if turn.response_id is None:
            turn.granted += tokens
        else:
            store = self.application.store
            store.find(turn.response_id, self.principal, self).grant(tokens)

    # ---- lanes

    async def _run_lane(self, start: Start) -> None:
        """Run what a lane is asked for, one after the other, until nothing waits."""
        stream_id = start.request.stream_id
        following: Start | None = start
        while following is not None:
            await self._run_turn(following)
            # The next one opens when the writer has taken this one's end: bounds what waits.
            await self.writer.wait_taken(stream_id)
            following = self.lanes.handle_ended(stream_id)
            if following is not None:
                self._turns[stream_id] = Turn.of(following)
        self.writer.notify()

    async def _run_turn(self, start: Start) -> None:
        """Run one response, or the resumed rest of one; the firewall of the lane."""
        stream_id = start.request.stream_id
        try:
            if isinstance(start.request, ResumeRequest):
                await self._run_resume(start.request)
            else:
                await self._run_response(start.request)
            return
        except ApiError as refused:
            error = refused
            self._count_overload(refused)
        except Exception as failure:
            logger.error("a turn failed; only its lane ends", exc_info=failure)
            error = internal_error()
        finally:
            self._turns.pop(stream_id, None)
        self.writer.mark_ready(stream_id, OneEvent(error_event(error, stream_id, start.event_id)))

    def _count_overload(self, refused: ApiError) -> None:
        """So many in a row, and the socket ends: this frontend has no room for it."""
        if refused.code != Overloaded.code:
            return
        self._overloads += 1
        if self._overloads == self.limits.overloads_max and self._refusal is None:
            self._refusal = refused
            # The client may come by another connection: another frontend may have room.
            self._start(self._leave, overloaded(), TRY_AGAIN_LATER, name="socket-overload")

    async def _run_response(self, request: ResponseRequest) -> None:
        responses, lane = self.application.responses, request.stream_id
        async with responses.open(request, self.principal, session=self) as response:
            self._overloads = 0
            with response.reading(wake=partial(self.writer.mark_ready, lane)) as reader:
                self._turns[lane].begin(response)
                await self._read_to_end(lane, reader)

    async def _run_resume(self, resume: ResumeRequest) -> None:
        responses, lane = self.application.responses, resume.stream_id
        async with responses.read(
            resume, self.principal, session=self, wake=partial(self.writer.mark_ready, lane)
        ) as reader:
            if isinstance(reader, ResponseReader):
                await self._read_to_end(lane, reader)
                return
            while not reader.done.is_set():
                await reader.wait_ready()
                if reader.is_ready:
                    self.writer.mark_ready(lane, reader)
                    await self.writer.wait_taken(lane)

    async def _read_to_end(self, stream_id: str | None, reader: ResponseReader) -> None:
        """Let the writer take from this reader until it has the end."""
        try:
            if reader.is_ready:
                self.writer.mark_ready(stream_id, reader)
            await reader.done.wait()
        finally:
            self.application.counters.deltas_merged += reader.cursor.merged
            self.application.totals.changed()

    # ---- the socket's own life

    def _put_notice(self, event: Event) -> None:
        """Queue an event of no response. A client that makes too many of them is closed."""
        if not self.writer.put_notice(event) and self._closing is None:
            reason = "errors are not being read"
            self._start(self.close, POLICY_VIOLATION, reason, name="socket-close")

    async def _keep_alive(self) -> None:
        """Ping; cut the connection when a pong is late."""
        try:
            while True:
                await trio.sleep(self.limits.ping_s)
                with trio.move_on_after(self.limits.pong_s) as scope:
                    await self.socket.ping()
                if scope.cancelled_caught:
                    await self.stream.transport.abort()
                    return
        except ConnectionClosed:
            return  # closed or lost while we slept or waited for the pong; `_read` ends the rest

    async def _retire(self) -> None:
        """On a drain: take nothing new, end what runs, close. At the age limit the same, in a task
        of its own, as a drain may still come.
        """
        with trio.move_on_after(self.limits.age_s):
            await self.application.wait_drain_begun()
        if not self.application.is_draining:
            self._refusal = too_old()
            self._start(self._leave, too_old(), GOING_AWAY, name="socket-age")
            await self.application.wait_drain_begun()
        self._refusal, deadline = draining(), self.application.drain_deadline
        assert deadline is not None
        if self._wants_events:
            left_ms = max(0, round((deadline - trio.current_time()) * 1000))
            self._put_notice({"type": "runtime.draining", "deadline_ms": left_ms})
        with trio.move_on_at(deadline):
            await self._wait_idle()
        await self.close(SERVICE_RESTART, "the server is restarting")

    async def _leave(self, error: ApiError, code: int) -> None:
        """End when nothing runs any more. The error goes before the close frame, as an event of no
        lane: clients read its code.
        """
        await self._wait_idle()
        self._put_notice(error_event(error, None))
        with trio.move_on_after(self.limits.close_s):
            await self._wait_idle()
        await self.close(code, error.message)

    async def _wait_idle(self) -> None:
        """Nothing runs here and everything was written."""
        await self.writer.wait_idle(lambda: bool(self.lanes.active))
