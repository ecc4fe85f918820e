"""The table of routes, and who may use them: checks in one order for every request.

Host and Origin first, then the key, then the route: without a key no one learns which routes exist
(`/live`, `/health`, `/ready`, `/version` are open). A test walks this table with no, a wrong and a
right key.
"""

import attrs

from ..anthropic.error_object import error_object
from ..anthropic.messages_request import COUNT_TOKENS, MESSAGES_BODY
from ..application import Application, Call
from ..errors import ApiError
from ..http.access import ANONYMOUS, authorization_of
from ..http.connection import HttpConnection
from ..http.request import HttpRequest
from ..openai.chat_requests import CHAT
from ..openai.completion_requests import COMPLETIONS
from ..openai.fields.responses_fields import RESPONSES
from ..openai.tokenizer_request import DETOKENIZE, TOKENIZE
from ..schema.fields import JsonObject
from .admin import (
    RESTART,
    SIGNAL,
    get_feed,
    get_places,
    get_tree,
    restart,
    send_signal,
)
from .completions import (
    MESSAGES_PATH,
    STREAM_QUERY,
    count_message_tokens,
    create_chat_completion,
    create_completion,
    create_message,
    resume_chat_completion,
    resume_completion,
    resume_message,
    speak_messages,
)
from .openapi import Route, openapi_document
from .operations import (
    detokenize,
    get_docs,
    get_health,
    get_live,
    get_load,
    get_metrics,
    get_model,
    get_ready,
    get_tokenizer_info,
    get_version,
    list_models,
    tokenize,
)
from .page import get_page, get_page_file
from .responses import (
    GET_QUERY,
    ITEMS_QUERY,
    cancel_response,
    count_input_tokens,
    create_response,
    delete_response,
    get_response,
    list_input_items,
)

SOCKET_PATH = "/v1/responses"
# Methods that the answer to any OPTIONS names.
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
# Headers that a page of another origin may send, if it does not say, and read, beside the usual.
ALLOWED_HEADERS = (
    "authorization, api-key, content-type, idempotency-key, last-event-id, x-api-key,"
    " x-data-parallel-rank, x-request-id"
)
EXPOSED_HEADERS = "x-request-id, request-id, retry-after, idempotent-replayed"
# Routes of OpenAI's and Ollama's APIs that clients may look for, and what to do without them.
_TEXT_ALONE = "no model for embeddings, ranking, images, audio or moderation is here, only for text"
_NO_OLLAMA = "Ollama's API is not served; use its OpenAI-compatible one, under /v1"
ABSENT = {
    **dict.fromkeys(("/api/chat", "/api/generate", "/api/tags", "/api/embed"), _NO_OLLAMA),
    "/v1/responses/compact": "compaction is not supported; send a summary of your own as `input`, "
    "or `truncation: auto`, which drops the oldest turns",
    "/v1/batches": "batches are not supported over HTTP; `triolet batch` runs a file of requests",
    "/v1/embeddings": _TEXT_ALONE,
    "/v1/rerank": _TEXT_ALONE,
    "/v1/images/generations": _TEXT_ALONE,
    "/v1/audio/speech": _TEXT_ALONE,
    "/v1/audio/transcriptions": _TEXT_ALONE,
    "/v1/moderations": _TEXT_ALONE,
}


@attrs.frozen
class Match:
    """Result of a look-up: the route, or the methods that the path has."""

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
    # A path that is a route by itself is no parameter of another.
    matching = [pair for pair in matching if not pair[1]] or matching
    if not matching:
        return NO_ROUTE
    allowed: list[str] = []
    for one, _ in matching:
        allowed += ["GET", "HEAD"] if one.method == "GET" else [one.method]
    found = [pair for pair in matching if pair[0].method == method]
    route, value = found[0] if found else (None, "")
    return Match(route, value, (*allowed, "OPTIONS"))


def error_body(request: HttpRequest, error: ApiError, request_id: str) -> JsonObject:
    """Body of an error in the protocol that this request speaks."""
    if request.path.startswith(MESSAGES_PATH) and not request.asks_for_websocket:
        return error_object(error, request_id)
    return error.body()


def authorize(
    request: HttpRequest,
    application: Application,
    *,
    is_open: bool,
    is_admin: bool = False,
    authorization: str | None = None,
) -> str:
    """Host, Origin and key, in this order; the principal. Raises `ApiError` 400, 401 or 403.

    `authorization` is for requests without such a header.
    """
    if request.host:
        application.origins.check_host(request.host)
    application.origins.check_origin(request.header("origin"), request.host)
    if is_open:
        return ANONYMOUS
    authorization = authorization_of(request.header) or authorization
    if is_admin:
        return application.authentication.check_admin(authorization)
    return application.authentication.authenticate(authorization)


async def dispatch(
    connection: HttpConnection, application: Application, request: HttpRequest
) -> None:
    """Answer one request. Raises `ApiError` as long as the answer has not begun."""
    match = match_route(request)
    if request.path.startswith(MESSAGES_PATH):
        speak_messages(connection)
    if match.route is not None:
        connection.route = match.route.path
        connection.access.is_quiet = match.route.is_quiet
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
        connection.access.is_quiet = True
        authorize(request, application, is_open=True)  # browsers ask before they send a key
        # The same of all routes: without a key no one learns which there are.
        allowed = ", ".join(METHODS)
        headers = [("allow", allowed)]
        if is_cross_origin:
            # Headers as the page asks for them: SDKs send their own, and ours are harmless.
            wanted = request.header("access-control-request-headers") or ALLOWED_HEADERS
            headers.append(("access-control-allow-methods", allowed))
            headers.append(("access-control-allow-headers", wanted))
        await connection.answer(204, b"", headers=headers)
        return
    if route is not None:
        principal = authorize(request, application, is_open=route.is_open, is_admin=route.is_admin)
        parts = (match.resource_id, request.query, route.body)
        await route.handler(Call(connection, application, principal, *parts))
        return
    authorize(request, application, is_open=False)
    absent = ABSENT.get(request.path)
    if absent or not match.allowed:
        message = f"There is no route {request.path[:200]!r}"
        message = f"{message}: {absent}" if absent else message
        raise ApiError(404, message, "route_not_found")
    connection.standing_headers.append(("allow", ", ".join(match.allowed)))
    message = f"{request.method[:20]} is not allowed here; {', '.join(match.allowed)} are"
    raise ApiError(405, message, "method_not_allowed")


async def get_openapi(call: Call) -> None:
    """`GET /openapi.json`: this table, as OpenAPI 3.1."""
    routes = [
        route for route in ROUTES if call.application.authentication.has_admin or not route.is_admin
    ]
    has_keys = bool(call.application.authentication.digests)
    application = call.application
    vocabulary = application.generator.tokenizer_info().get("vocab_size")
    maxima = {
        "resume-keep": application.settings.resume_keep_s,
        "logprobs": application.generator.max_logprobs,
        "engine": max(0, len(application.generator.health().engines) - 1),
    }
    if isinstance(vocabulary, int):
        maxima["vocabulary"] = vocabulary - 1
    document = openapi_document(routes, has_keys=has_keys, maxima=maxima)
    await call.connection.answer_json(200, document)


_RESPONSE: JsonObject = {"input": "Tell me a story.", "max_output_tokens": 64, "stream": True}
_CHAT: JsonObject = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 64,
    "stream": True,
}
_TEXT: JsonObject = {"prompt": "Once upon a time", "max_tokens": 64, "stream": True}
ROUTES: tuple[Route, ...] = (
    Route(
        "POST", "/v1/responses", create_response, body=RESPONSES, is_keyed=True, example=_RESPONSE
    ),
    Route(
        "POST",
        "/v1/responses/input_tokens",
        count_input_tokens,
        body=RESPONSES,
        example={"input": "Tell me a story."},
    ),
    Route("POST", "/v1/responses/{id}/cancel", cancel_response),
    Route("GET", "/v1/responses/{id}", get_response, query=GET_QUERY),
    Route("DELETE", "/v1/responses/{id}", delete_response),
    Route("GET", "/v1/responses/{id}/input_items", list_input_items, query=ITEMS_QUERY),
    Route(
        "POST",
        "/v1/chat/completions",
        create_chat_completion,
        body=CHAT,
        is_keyed=True,
        example=_CHAT,
    ),
    Route("GET", "/v1/chat/completions/{id}/stream", resume_chat_completion, query=STREAM_QUERY),
    Route(
        "POST", "/v1/completions", create_completion, body=COMPLETIONS, is_keyed=True, example=_TEXT
    ),
    Route("GET", "/v1/completions/{id}/stream", resume_completion, query=STREAM_QUERY),
    Route("POST", MESSAGES_PATH, create_message, body=MESSAGES_BODY, is_keyed=True, example=_CHAT),
    Route("GET", f"{MESSAGES_PATH}/{{id}}/stream", resume_message, query=STREAM_QUERY),
    Route(
        "POST",
        f"{MESSAGES_PATH}/count_tokens",
        count_message_tokens,
        body=COUNT_TOKENS,
        example={"messages": _CHAT["messages"]},
    ),
    Route("POST", "/tokenize", tokenize, body=TOKENIZE, example={"prompt": "Once upon a time"}),
    Route("POST", "/detokenize", detokenize, body=DETOKENIZE, example={"tokens": [72, 105]}),
    Route("GET", "/tokenizer_info", get_tokenizer_info),
    Route("GET", "/v1/models", list_models),
    Route("GET", "/v1/models/{id...}", get_model),
    Route("GET", "/metrics", get_metrics, is_quiet=True),
    Route("GET", "/load", get_load, is_quiet=True),
    Route("GET", "/openapi.json", get_openapi, is_quiet=True),
    Route("GET", "/", get_page, is_open=True, is_quiet=True),
    Route("GET", "/page/{id}", get_page_file, is_open=True, is_quiet=True),
    Route("GET", "/docs", get_docs, is_open=True, is_quiet=True),
    Route("GET", "/admin/tree", get_tree, is_admin=True),
    Route("GET", "/admin/feed", get_feed, is_admin=True),
    Route("GET", "/admin/places", get_places, is_admin=True),
    Route("POST", "/admin/restart", restart, is_admin=True, body=RESTART),
    Route("POST", "/admin/signal", send_signal, is_admin=True, body=SIGNAL),
    Route("GET", "/live", get_live, is_open=True, is_quiet=True),
    Route("GET", "/ready", get_ready, is_open=True, is_quiet=True),
    Route("GET", "/health", get_health, is_open=True, is_quiet=True),
    Route("GET", "/version", get_version, is_open=True, is_quiet=True),
)

# Routes without parameters, by method and path: nearly all requests are for one of them.
_PLAIN = {
    (route.method, route.path): _search(route.path, route.method)
    for route in ROUTES
    if "{" not in route.path
}
