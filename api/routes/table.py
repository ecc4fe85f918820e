"""The table of routes, and who may use them: checks in one order for every request.

Host and Origin first, then the key, then the route: without a key no one learns which routes exist
(`/live`, `/health`, `/ready`, `/version` are open). A test walks this table with no, a wrong and a
right key.
"""

import attrs

from ..application import Application, Call
from ..errors import ApiError
from ..http.access import ANONYMOUS
from ..http.connection import HttpConnection
from ..http.request import HttpRequest
from ..openai.completion_requests import CHAT, COMPLETIONS
from ..openai.responses_fields import RESPONSES
from ..openai.tokenizer_request import DETOKENIZE, TOKENIZE
from .completions import (
    STREAM_QUERY,
    create_chat_completion,
    create_completion,
    resume_chat_completion,
    resume_completion,
)
from .openapi import Route, openapi_document
from .operations import (
    RESTART,
    detokenize,
    get_docs,
    get_health,
    get_live,
    get_load,
    get_metrics,
    get_model,
    get_ready,
    get_tokenizer_info,
    get_tree,
    get_version,
    list_models,
    restart,
    tokenize,
)
from .responses import (
    GET_QUERY,
    ITEMS_QUERY,
    cancel_response,
    create_response,
    delete_response,
    get_response,
    list_input_items,
)

SOCKET_PATH = "/v1/responses"
# What a page of another origin may send, if it does not say, and read, beside the usual.
ALLOWED_HEADERS = "authorization, content-type, idempotency-key, last-event-id, x-request-id"
EXPOSED_HEADERS = "x-request-id, retry-after, idempotent-replayed"


@attrs.frozen
class Match:
    """What the table says about a path: the route, or the methods that there are."""

    route: Route | None = None
    resource_id: str = ""
    allowed: tuple[str, ...] = ()


NO_ROUTE = Match()


def match_route(request: HttpRequest) -> Match:
    """Look a request up; a HEAD request finds the GET route."""
    method = "GET" if request.method == "HEAD" else request.method
    return _PLAIN.get((method, request.path)) or _search(request.path, method)


def _search(path: str, method: str) -> Match:
    matching = [(one, value) for one in ROUTES if (value := one.match(path)) is not None]
    if not matching:
        return NO_ROUTE
    allowed: list[str] = []
    for one, _ in matching:
        allowed += ["GET", "HEAD"] if one.method == "GET" else [one.method]
    found = [pair for pair in matching if pair[0].method == method]
    route, value = found[0] if found else (None, "")
    return Match(route, value, (*allowed, "OPTIONS"))


def authorize(
    request: HttpRequest, application: Application, *, is_open: bool, is_admin: bool = False
) -> str:
    """Host, Origin and key, in this order; the principal. Raises `ApiError` 400, 401 or 403."""
    if request.host:
        application.origins.check_host(request.host)
    application.origins.check_origin(request.header("origin"), request.host)
    if is_open:
        return ANONYMOUS
    authorization = request.header("authorization")
    if is_admin:
        return application.authentication.check_admin(authorization)
    return application.authentication.authenticate(authorization)


async def dispatch(
    connection: HttpConnection, application: Application, request: HttpRequest
) -> None:
    """Answer one request. Raises `ApiError` as long as the answer has not begun."""
    match = match_route(request)
    if match.route is not None:
        connection.route = match.route.path
        if match.route.is_admin and not application.authentication.has_admin:
            match = NO_ROUTE
    route, origin = match.route, request.header("origin")
    is_cross_origin = origin is not None and application.origins.allows_cross_origin(origin)
    if origin is not None and is_cross_origin:
        connection.standing_headers += [
            ("access-control-allow-origin", origin),
            ("access-control-expose-headers", EXPOSED_HEADERS),
            ("vary", "origin"),
        ]
    if request.method == "OPTIONS":
        authorize(request, application, is_open=True)  # browsers ask before they send a key
        allowed = ", ".join(match.allowed or ("OPTIONS",))
        headers = [("allow", allowed)]
        if is_cross_origin:
            # All that the page asks for: SDKs send headers of their own, and ours are harmless.
            wanted = request.header("access-control-request-headers") or ALLOWED_HEADERS
            headers.append(("access-control-allow-methods", allowed))
            headers.append(("access-control-allow-headers", wanted))
        await connection.answer(204, b"", headers=headers)
        return
    if route is not None:
        principal = authorize(request, application, is_open=route.is_open, is_admin=route.is_admin)
        parts = (match.resource_id, request.query)
        await route.handler(Call(connection, application, principal, *parts))
        return
    authorize(request, application, is_open=False)
    if not match.allowed:
        path = request.path[:200]
        raise ApiError(404, f"There is no route {path!r}", "route_not_found")
    connection.standing_headers.append(("allow", ", ".join(match.allowed)))
    message = f"{request.method[:20]} is not allowed here; see Allow"
    raise ApiError(405, message, "method_not_allowed")


async def get_openapi(call: Call) -> None:
    """`GET /openapi.json`: this table, as OpenAPI 3.1."""
    routes = [
        route for route in ROUTES if call.application.authentication.has_admin or not route.is_admin
    ]
    await call.connection.answer_json(200, openapi_document(routes))


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/responses", create_response, body=RESPONSES, is_keyed=True),
    Route("POST", "/v1/responses/{id}/cancel", cancel_response),
    Route("GET", "/v1/responses/{id}", get_response, query=GET_QUERY),
    Route("DELETE", "/v1/responses/{id}", delete_response),
    Route("GET", "/v1/responses/{id}/input_items", list_input_items, query=ITEMS_QUERY),
    Route("POST", "/v1/chat/completions", create_chat_completion, body=CHAT, is_keyed=True),
    Route("GET", "/v1/chat/completions/{id}/stream", resume_chat_completion, query=STREAM_QUERY),
    Route("POST", "/v1/completions", create_completion, body=COMPLETIONS, is_keyed=True),
    Route("GET", "/v1/completions/{id}/stream", resume_completion, query=STREAM_QUERY),
    Route("POST", "/tokenize", tokenize, body=TOKENIZE),
    Route("POST", "/detokenize", detokenize, body=DETOKENIZE),
    Route("GET", "/tokenizer_info", get_tokenizer_info),
    Route("GET", "/v1/models", list_models),
    Route("GET", "/v1/models/{id...}", get_model),
    Route("GET", "/metrics", get_metrics),
    Route("GET", "/load", get_load),
    Route("GET", "/openapi.json", get_openapi),
    Route("GET", "/docs", get_docs, is_open=True),
    Route("GET", "/admin/tree", get_tree, is_admin=True),
    Route("POST", "/admin/restart", restart, is_admin=True, body=RESTART),
    Route("GET", "/live", get_live, is_open=True),
    Route("GET", "/ready", get_ready, is_open=True),
    Route("GET", "/health", get_health, is_open=True),
    Route("GET", "/version", get_version, is_open=True),
)

# Those without parameters, by method and path: nearly all requests are for one of them.
_PLAIN = {
    (route.method, route.path): _search(route.path, route.method)
    for route in ROUTES
    if "{" not in route.path
}
