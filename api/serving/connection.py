"""HTTP connection handler behind a firewall: what goes wrong on a connection ends it alone.

Reads heads, answers plain requests through the routes, hands a WebSocket handshake over. A request
that fails unexpectedly is answered 500 if its answer has not begun, else its connection is cut, so
that the client can tell a broken stream from a whole one.
"""

import logging

import trio

from ...nurseries.logs import log_fields
from ..application import Application
from ..errors import ApiError, internal_error
from ..http.connection import HttpConnection
from ..http.request import HttpRequest
from ..http.stream import BoundedStream
from ..routes.table import SOCKET_PATH, authorize, dispatch
from ..settings import LOCAL, InputShare
from ..websocket.session import run_websocket

logger = logging.getLogger(__name__)
# Methods that are counted by name; a client may invent others.
COUNTED_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH"})


async def run_connection(
    stream: trio.abc.Stream, application: Application, address: str = LOCAL
) -> None:
    """Serve one connection to its end and close it. Raises nothing but cancellation.

    `address` is what it is counted for (`limits.address_of`).

    Resource handling: owns `stream`. Cancellation: aborts what runs; the client sees a cut.
    """
    limits = application.settings.limits.http
    share = InputShare(application.inputs)
    connection = HttpConnection(BoundedStream(stream, limits.write_s), limits, share)
    try:
        with application.connection(address):
            await _run_contained(connection, application)
    finally:
        share.release()
        await trio.aclose_forcefully(connection.stream)


async def _run_contained(connection: HttpConnection, application: Application) -> None:
    """The firewall of the connection."""
    try:
        async with connection.reading():
            await _serve(connection, application)
        await connection.close_in_order()
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the client is gone, or we have cut it
    except* Exception as group:
        application.counters.connections_failed += 1
        logger.error("a connection failed; only it is closed", exc_info=group)


async def _serve(connection: HttpConnection, application: Application) -> None:
    while True:
        try:
            request = await connection.next_request()
        except ApiError as error:
            connection.standing_headers.append(("x-request-id", application.ids.draw_request_id()))
            await connection.answer_error(error)
            _count(connection, application, "-")
            return
        if request is None:
            return
        request_id = request.request_id or application.ids.draw_request_id()
        connection.standing_headers.append(("x-request-id", request_id))
        if application.is_draining:
            connection.close_after_answer()
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
        await connection.wait_readable()
    return connection.has_early_bytes and not connection.scope.cancel_called


async def _answer(
    connection: HttpConnection, application: Application, request: HttpRequest
) -> None:
    """Answer one request; the firewall of the request."""
    try:
        if request.asks_for_websocket:
            await _serve_socket(connection, application, request)
        else:
            await dispatch(connection, application, request)
    except ApiError as error:
        await _answer_failure(connection, error)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        raise
    except Exception as error:
        request_id = dict(connection.standing_headers).get("x-request-id")
        what = (request_id, request.method, request.path[:200])
        logger.error("request %s: %s %r failed", *what, exc_info=error)
        await _answer_failure(connection, internal_error())
    finally:
        _count(connection, application, request.method)


async def _answer_failure(connection: HttpConnection, error: ApiError) -> None:
    if connection.status:
        await connection.stream.abort()  # the answer had begun: it must not look whole
    else:
        await connection.answer_error(error)


async def _serve_socket(
    connection: HttpConnection, application: Application, request: HttpRequest
) -> None:
    """Check a WebSocket handshake as any request, then hand the connection over."""
    principal = authorize(request, application, is_open=False)
    if request.path != SOCKET_PATH:
        raise ApiError(404, "There is no socket on this route", "route_not_found")
    key = request.websocket_key()
    application.check_accepting()
    early = await connection.begin_upgrade()
    await run_websocket(connection, application, principal, key=key, early=early)


def _count(connection: HttpConnection, application: Application, method: str) -> None:
    if connection.status:
        name = method if method in COUNTED_METHODS else "other"
        application.counters.answers[name, connection.route, connection.status] += 1
        application.totals.changed()
        logger.debug("%s %s %d", name, connection.route, connection.status)
