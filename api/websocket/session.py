"""WebSocket connection: OpenAI's Responses mode, many lanes of responses on one socket.

`lanes` decides what runs, `writer` what is sent next, `limits_guard` what a client may send. One
reader, which never waits for the engine; one writer, which gathers what waits into one write; one
task for each active lane. The handshake was checked before.
"""

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from ...nurseries.tasks.background import start_background_task_soon
from ...runtime.errors import RequestQuarantined
from ...runtime.hands import ContentKind
from ...runtime.messages import ForeignVerb
from ...transports.takeover.slot import EndForm
from ..application import Application
from ..errors import ApiError, bad_field, draining, to_api_error
from ..http.connection import HttpConnection
from ..http.held import FixedState, GrantState, SessionState, encode_state
from ..openai.response_events import Event
from ..openai.responses_request import (
    read_credit,
    read_event_id,
    read_resume_request,
    read_stream_id,
)
from ..responses.response import Response
from ..schema.fields import JsonObject, ObjectFields, decode_object
from ..settings import SocketLimits
from .frames import FrameStream, Opening, open_socket
from .lanes import CANCELLED, Start
from .limits_guard import POLICY_VIOLATION, TRY_AGAIN_LATER
from .turns import SocketTurns
from .writer import SocketWriter, error_event, inject_failed, overloaded, steer_failed, too_old

logger = logging.getLogger(__name__)
GOING_AWAY = 1001
INTERNAL_ERROR = 1011
SERVICE_RESTART = 1012
# The key of a handshake that was answered before; 16 bytes.
ANY_KEY = "AAAAAAAAAAAAAAAAAAAAAA=="


async def run_websocket(
    connection: HttpConnection,
    application: Application,
    principal: str,
    opening: Opening,
    *,
    rank: str | None = None,
) -> None:
    """Serve one socket whose handshake was checked, and may have named an engine, until either side
    closes it.

    Raises `BrokenResourceError` when the connection is lost. Cancellation: aborts its responses.
    """
    application.counters.sockets += 1
    begun = SessionState(principal, application.ids.draw("session"), rank=rank)
    held = connection.stream.held
    if held is not None:
        held.state = FixedState(encode_state(begun), EndForm.FRAMES)
        held.kept_from = held.received - len(opening.early)
    await _serve(connection, application, begun, opening)


async def go_on_with_websocket(
    connection: HttpConnection, application: Application, before: SessionState, kept_input: bytes
) -> None:
    """Serve one that a life of this frontend before has opened; the same otherwise."""
    if not before.is_closing:
        client = (connection, application, before)
        opening = Opening(ANY_KEY, early=kept_input)
        await _serve(*client, opening, is_taken_over=True)


async def _serve(
    connection: HttpConnection,
    application: Application,
    before: SessionState,
    opening: Opening,
    *,
    is_taken_over: bool = False,
) -> None:
    limits, counters = application.settings.limits.socket, application.counters
    counters.sockets_active += 1
    application.changes.notify()
    try:
        opened = open_socket(
            connection,
            limits,
            opening,
            is_taken_over=is_taken_over,
            principal=before.principal,
        )
        async with opened as (socket, stream):
            session = SocketSession(socket, stream, application, limits, before)
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
    """Session of an open socket. `run` is called once."""

    socket: WebSocketConnection
    stream: FrameStream
    application: Application
    limits: SocketLimits
    # State to begin with; if another process has opened the socket, the one that it left.
    before: SessionState

    writer: SocketWriter = attrs.field(init=False)
    turns: SocketTurns = attrs.field(init=False)
    # A client asked for notices of the server (`runtime.events`).
    _wants_events: bool = attrs.field(default=False, init=False)
    # The last one that a message made.
    _grant: GrantState | None = attrs.field(default=None, init=False)
    # A close of ours is under way; done when set.
    _closing: trio.Event | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.writer = SocketWriter(self.socket, self.stream, self.limits)
        self.turns = SocketTurns(
            self.application,
            self.before.principal,
            self.writer,
            self.limits,
            self.before.session_id,
            self._start,
            self._handle_overload,
            self.before.rank,
        )

    async def run(self) -> None:
        """Serve until the socket is closed. Raises what a task of it raises, in groups."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._start(self.writer.run, name="socket-writer")
                self._start(self._keep_alive, name="socket-ping")
                self._start(self._retire, name="socket-retirement")
                self._begin_held()
                await self._read()
                if self._closing is not None:
                    await self._closing.wait()
                nursery.cancel_scope.cancel("the socket is closed")
        finally:
            self.application.responses.store.forget_session(self.before.session_id)

    # ---- for a process that goes on with this socket

    @property
    def ending(self) -> EndForm:
        """End form: nothing follows a close frame."""
        return EndForm.CUT if self._is_closing else EndForm.FRAMES

    def describe(self) -> bytes:
        """Describe the state behind everything taken for the client: see `HeldState`."""
        session = SessionState(
            self.before.principal,
            self.before.session_id,
            list(self.turns.lanes.names),
            self.turns.states(),
            self.writer.waiting_notices(),
            self._wants_events,
            self._is_closing,
            self._grant,
            self.before.rank,
        )
        return encode_state(session)

    def note(self) -> bytes | None:
        """A new turn; events of responses show themselves what follows. See `HeldState`."""
        if self.turns.is_changed or self.writer.has_notices or self._is_closing:
            return None
        return self.turns.note_new()

    @property
    def _is_closing(self) -> bool:
        return (
            self._closing is not None
            or self.socket.closed is not None
            or self.stream.violation is not None
        )

    def _begin_held(self) -> None:
        """Hold the state from here on, and resume the one of another process."""
        before, held = self.before, self.stream.transport.held
        self.turns.lanes.names |= set(before.names)
        self._wants_events = before.wants_events
        for notice in before.notices:
            self._put_notice(notice)
        for turn in before.turns:
            try:
                self.turns.go_on(turn)
            except ApiError as error:
                self._put_notice(error_event(error, turn.stream_id))
        self._grant = before.grant
        self._carry_out_grant()
        if held is not None:
            held.state = self

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
        """Take messages until the end; waits for nothing else but the turn of a message."""
        try:
            while True:
                before = self._grant
                await self._handle_message(await self.socket.get_message())
                self.stream.handle_taken()
                if self._grant is not before:
                    self._carry_out_grant()
        except ConnectionClosed:
            return  # the end of every socket: closed by the client, by `close`, or lost

    async def _handle_message(self, message: str | bytes) -> None:
        stream_id = event_id = None
        data = message if isinstance(message, bytes) else message.encode()
        named = (ContentKind.MESSAGE, self.before.principal, data)
        try:
            with await self.application.hands.take(*named):
                event = decode_object(data)
                event_id = read_event_id(event)
                stream_id = read_stream_id(event)
                self._handle_event(event, data, event_id)
        except (ApiError, RequestQuarantined) as error:
            self._put_notice(error_event(to_api_error(error), stream_id, event_id))

    def _handle_event(self, event: JsonObject, message: bytes, event_id: str | None) -> None:
        match ObjectFields(event).string("type"):
            case "response.create":
                request = self.turns.read_request(event)
                response_id = self.application.ids.draw_response_id()
                self.turns.handle_request(Start(request, message, response_id, event_id))
                self.turns.is_changed |= request.options.events
                self._wants_events |= request.options.events
            case "response.resume":
                resume = read_resume_request(event)
                self.turns.handle_request(Start(resume, message, resume.response_id, event_id))
            case "response.cancel":
                self._handle_cancel(ObjectFields(event), event_id)
            case "runtime.credit":
                self._handle_credit(event)
            case "response.steer":
                self._put_notice(steer_failed(event))
            case "response.inject":
                self._put_notice(inject_failed(event))
            case None:
                raise bad_field("type", "is missing", "missing_required_parameter")
            case kind:
                raise ApiError(
                    400, f"Unknown event type {kind[:100]!r}", "unknown_event", param="type"
                )

    def _handle_cancel(self, event: ObjectFields, event_id: str | None) -> None:
        turn = self.turns.find(event)
        turn.is_cancelled = True
        if not turn.is_begun:
            return
        if self.application.foreign.is_foreign(turn.response_id):
            named = (turn.response_id, event.string("stream_id"), event_id)
            self._start(self._cancel_foreign, *named, name="foreign-cancel")
        else:
            session_id = self.before.session_id
            self.application.responses.store.cancel(
                turn.response_id, self.before.principal, CANCELLED, session_id
            )

    async def _cancel_foreign(
        self, response_id: str, stream_id: str | None, event_id: str | None
    ) -> None:
        """The reader does not wait for another frontend; how many may is bounded there."""
        try:
            await self.application.foreign.call(
                ForeignVerb.CANCEL, response_id, self.before.principal, kind=JsonObject
            )
        except ApiError as error:
            self._put_notice(error_event(error, stream_id, event_id))

    def _handle_credit(self, event: JsonObject) -> None:
        """Once for its message: it is stated as a credit, which a successor may repeat, and takes
        effect when that was said.
        """
        tokens = read_credit(event)
        turn = self.turns.find(ObjectFields(event))
        if not turn.is_begun:
            turn.granted += tokens
            return
        credit = self._find(turn.response_id).client_credit
        if credit is not None:
            self._grant = GrantState(turn.response_id, credit + tokens)

    def _carry_out_grant(self) -> None:
        if self._grant is not None:
            with contextlib.suppress(ApiError):  # it was forgotten since
                self._find(self._grant.response_id).grant_up_to(self._grant.credit)

    def _find(self, response_id: str) -> Response:
        principal, session_id = self.before.principal, self.before.session_id
        return self.application.responses.store.find(response_id, principal, session_id)

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
            self.turns.refusal = too_old()
            self._start(self._leave, too_old(), GOING_AWAY, name="socket-age")
            await self.application.wait_drain_begun()
        self.turns.refusal, deadline = draining(), self.application.drain_deadline
        assert deadline is not None
        if self._wants_events:
            left_ms = max(0, round((deadline - trio.current_time()) * 1000))
            self._put_notice({"type": "runtime.draining", "deadline_ms": left_ms})
        with trio.move_on_at(math.inf if self.application.hands_over else deadline):
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

    def _handle_overload(self) -> None:
        """The client may come by another connection: another frontend may have room."""
        self._start(self._leave, overloaded(), TRY_AGAIN_LATER, name="socket-overload")

    async def _wait_idle(self) -> None:
        """Nothing runs here and everything was written."""
        await self.writer.wait_idle(lambda: bool(self.turns.lanes.active))
