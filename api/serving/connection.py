"""HTTP connection handler behind a firewall: what goes wrong on a connection ends it alone.

Reads heads, answers plain requests through the routes, hands a WebSocket handshake over. A request
that fails unexpectedly is answered 500 if its answer has not begun, else its connection is cut, so
that the client can tell a broken stream from a whole one.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from ...nurseries.logs import log_fields
from ...nurseries.tasks.background import start_background_task_soon
from ...runtime.frontend.tracing import set_traceparent
from ..access_log import CLIENT_LEFT, AccessEntry, Asked
from ..application import Application
from ..connection_shares import LOCAL, InputShare
from ..errors import ApiError, internal_error
from ..http.access import SUBPROTOCOL, authorization_of_offer
from ..http.connection import HttpConnection
from ..http.held import NO_SLOT, HttpState, SessionState
from ..http.request import HttpRequest
from ..http.stream import BoundedStream
from ..openai.fields.option_fields import RANK_HEADER_NAME, ranked
from ..routes.table import SOCKET_PATH, authorize, dispatch, error_body
from ..websocket.frames import Opening
from ..websocket.session import go_on_with_websocket, run_websocket
from .takeover import TakeoverRefused, end_trial, take_over

logger = logging.getLogger(__name__)
# Status of a WebSocket's handshake.
SWITCHING = 101
# Methods that are counted by name; a client may invent others.
COUNTED_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH"})


async def run_connection(
    stream: trio.abc.Stream,
    application: Application,
    address: str = LOCAL,
    slot: int = NO_SLOT,
    *,
    is_taken_over: bool = False,
    unheld: str = "",
) -> None:
    """Serve one connection to its end and close it. Raises nothing but cancellation.

    `address` is what it is counted for (`limits.address_of`). One with a slot may be gone on with
    by another process; one that is taken over was begun by another; one that is `unheld` was to
    have a slot, and has none for this reason.

    Resource handling: owns `stream`. Cancellation: aborts what runs; the client sees a cut.
    """
    limits = application.settings.limits.http
    share = InputShare(application.inputs)
    bounded = BoundedStream(stream, limits.write_s, calls=application.calls)
    connection = HttpConnection(bounded, limits, share, address, hands=application.hands)
    connection.stream.unheld = unheld
    try:
        with application.connection(address, connection.stream):
            if is_taken_over:
                run = partial(_go_on, connection, application, slot)
            else:
                _hold(connection, application, slot)
                run = partial(_serve_new, connection, application)
            await _run_contained(run, application)
        connection.stream.end_held()
    finally:
        share.release()
        # A connection lies in a cycle with its stream, which the collector may be slow to find, and
        # what a client had sent of a body is megabytes.
        connection.input.buffer = bytearray()
        if connection.stream.held is not None:
            connection.stream.held.release()
        await trio.aclose_forcefully(connection.stream)
        application.handle_closed(slot)


def _hold(connection: HttpConnection, application: Application, slot: int) -> None:
    """Write what happens on a new connection to its slot, if it has one; say why it has none."""
    stream = connection.stream
    if application.slots is not None and slot != NO_SLOT:
        try:
            stream.held = application.slots.hold(slot, connection)
        except (OSError, ValueError) as error:
            stream.unheld = f"its frontend cannot map their slots: {error}"
    if stream.unheld:
        application.warn_unheld(stream.unheld)


async def _serve_new(connection: HttpConnection, application: Application) -> None:
    async with connection.reading():
        await _serve(connection, application)
    await connection.close_in_order()


async def _go_on(connection: HttpConnection, application: Application, slot: int) -> None:
    """Serve a connection that a life of this frontend before has begun, or cut it."""
    stream = connection.stream
    try:
        takeover = take_over(stream, application.slots, slot)
    except TakeoverRefused as refused:
        logger.info("a connection was not taken over: %s", refused)
        application.counters.connections_lost += 1
        await stream.abort()
        return
    application.counters.connections_taken_over += 1
    async with trio.open_nursery() as nursery:
        assert stream.held is not None
        start_background_task_soon(nursery, end_trial, stream.held.slot, name="takeover-trial")
        await stream.finish(takeover.rest)
        match takeover.state:
            case HttpState() as state:
                stream.held.state = connection
                connection.take_over(state, takeover.kept_input)
                async with connection.reading():
                    if not state.is_last:
                        await _serve(connection, application, is_taken_over=True)
            case SessionState() as state:
                connection.access = AccessEntry(trio.current_time(), is_taken_over=True)
                try:
                    await go_on_with_websocket(connection, application, state, takeover.kept_input)
                finally:
                    _log(connection, application, ("GET", SOCKET_PATH), SWITCHING)
        await connection.close_in_order()
        nursery.cancel_scope.cancel("the connection is over")


async def _run_contained(run: Callable[[], Awaitable[None]], application: Application) -> None:
    """The firewall of the connection."""
    try:
        await run()
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the client is gone, or we have cut it
    except* Exception as group:
        application.counters.connections_failed += 1
        logger.error("a connection failed; only it is closed", exc_info=group)


async def _serve(
    connection: HttpConnection, application: Application, *, is_taken_over: bool = False
) -> None:
    """Answer requests until there are no more; a connection that is taken over may be idle."""
    is_idle = is_taken_over and not connection.input.has_request()
    if is_idle and not await _wait_next(connection, application):
        return
    while True:
        try:
            request = await connection.next_request()
        except ApiError as error:
            connection.standing_headers.append(("x-request-id", application.ids.draw_request_id()))
            connection.access = AccessEntry(trio.current_time())
            await connection.answer_error(error)
            _count(connection, application)
            return
        if request is None:
            return
        request_id = request.request_id or application.ids.draw_request_id()
        connection.standing_headers.append(("x-request-id", request_id))
        if application.is_draining:
            connection.close_after_answer()
        if application.settings.otlp_endpoint:
            set_traceparent(request.header("traceparent", ""))
        with log_fields(request_id=request_id):
            await _answer(connection, application, request)
        if request.asks_for_websocket and not connection.status:
            return  # it was a socket, and is over
        if not await connection.next_cycle():
            return
        if not await _wait_next(connection, application):
            return


async def _wait_next(connection: HttpConnection, application: Application) -> bool:
    """Wait idle for a next request; False when there will be none."""
    with application.idle(connection.scope, connection.limits.idle_s):
        if await connection.input.wait_request():
            return not connection.scope.cancel_called
    return False


async def _answer(
    connection: HttpConnection, application: Application, request: HttpRequest
) -> None:
    """Answer one request; the firewall of the request."""
    entry = connection.access
    # By a life of this frontend before.
    entry.is_taken_over = bool(connection.state.claimed) or connection.state.is_begun
    try:
        if connection.state.is_begun:
            connection.status = 200
            if not connection.state.claimed and request.method != "GET":
                await connection.stream.abort()
                return
        if request.asks_for_websocket:
            await _serve_socket(connection, application, request)
        else:
            await dispatch(connection, application, request)
    except ApiError as error:
        await _answer_failure(connection, request, error)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        raise
    except Exception as error:
        what = (_request_id(connection), request.method, request.path[:200])
        logger.error("request %s: %s %r failed", *what, exc_info=error)
        await _answer_failure(connection, request, internal_error())
    finally:
        _count(connection, application, request)


def _request_id(connection: HttpConnection) -> str:
    return dict(connection.standing_headers)["x-request-id"]


async def _answer_failure(
    connection: HttpConnection, request: HttpRequest, error: ApiError
) -> None:
    if connection.status:
        await connection.stream.abort()  # the answer had begun: it must not look whole
    else:
        await connection.answer_error(error, error_body(request, error, _request_id(connection)))


async def _serve_socket(
    connection: HttpConnection, application: Application, request: HttpRequest
) -> None:
    """Check a WebSocket handshake as any request, then hand the connection over.

    At its end it is logged as one request; what runs in its lanes is logged there.
    """
    offered = request.values("sec-websocket-protocol")
    given = authorization_of_offer(offered)
    principal = authorize(request, application, is_open=False, authorization=given)
    if request.path != SOCKET_PATH:
        raise ApiError(404, f"WebSockets are served at {SOCKET_PATH}", "route_not_found")
    key, rank = request.websocket_key(), request.header(RANK_HEADER_NAME)
    ranked({}, rank)
    application.check_accepting()
    early = await connection.begin_upgrade()
    opening = Opening(key, SUBPROTOCOL if SUBPROTOCOL in offered else "", early)
    await run_websocket(connection, application, principal, opening, rank=rank)


def _count(
    connection: HttpConnection, application: Application, request: HttpRequest | None = None
) -> None:
    """Count and log a request that has ended, or what was none."""
    method = "-" if request is None else request.method
    name = method if method in COUNTED_METHODS else "other"
    if status := connection.status:
        application.counters.answers[name, connection.route, status] += 1
        application.changes.notify()
    elif request is not None and request.asks_for_websocket:
        status = SWITCHING
    path = "-" if request is None else request.path
    _log(connection, application, (name, path), status or CLIENT_LEFT)


def _log(connection: HttpConnection, application: Application, asked: Asked, status: int) -> None:
    is_gone, is_cancelled = connection.is_gone, trio.current_effective_deadline() == -math.inf
    if is_cancelled and application.hands_over:
        return  # it goes on in another process
    is_cut = is_cancelled or connection.stream.aborted
    end = "client left" if is_gone else "cut" if is_cut else ""
    entry, now, write = connection.access, trio.current_time(), application.access_log.write
    write(entry, asked, status, now, end=end, client=connection.address)
