"""The one shape of an error on the wire, and the map from typed errors of lower floors to it.

Sans-IO: builds values. The texts come from a closed list: a typed error's own sentence, or a fixed
one; the text of an unexpected exception never reaches a client (it may hold addresses or paths).

    {"error": {"message": str, "type": str, "param": str | null, "code": str}}
"""

import math

import attrs

from ..engine.errors import EngineError, InvalidParameter, InvalidRequest, PromptTooLong
from ..runtime.errors import NoEngine, Overloaded, PromptRefused, RequestFailed

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
# An engine restart takes seconds; a client that comes back earlier only meets the next refusal.
RETRY_AFTER_ENGINE_S = 2.0
# Headers that answers of a status must have (RFC 9110, 11.6.1 and 15.5.22; RFC 6455, 4.4). Claude
# Code sends a refused key again and again unless a header of its SDK says that it is of no use.
_STATUS_HEADERS = {
    401: (("www-authenticate", "Bearer"), ("x-should-retry", "false")),
    426: (("upgrade", "websocket"), ("connection", "upgrade"), ("sec-websocket-version", "13")),
}
# Limit of an engine's own sentence; enough for a reason, too little for a dump.
PUBLIC_TEXT_CHARACTERS_MAX = 500


@attrs.frozen
class ApiError(Exception):
    """Refusal or failure as the client sees it; `status` is HTTP's, also inside socket events.

    `param` is the path of the field at fault, in the client's own spelling (`input[2].role`).
    """

    status: int
    message: str
    code: str
    type: str = INVALID_REQUEST
    param: str | None = None
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, object]:
        """The error object that every route answers with."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> list[tuple[str, str]]:
        """Headers of the status; `Retry-After` in whole seconds, where coming back helps."""
        said = list(_STATUS_HEADERS.get(self.status, ()))
        if self.code == RequestFailed.code:  # and would fail again: SDKs send a 500 three times
            said.append(("x-should-retry", "false"))
        if self.retry_after_s is not None:
            said.append(("retry-after", str(max(1, math.ceil(self.retry_after_s)))))
        return said


def bad_field(path: str, reason: str, code: str = "invalid_value") -> ApiError:
    """A 400 that names the field: `path` as in `messages[0].content`."""
    return ApiError(400, f"{path}: {reason}", code, param=path)


def unsupported(path: str, reason: str) -> ApiError:
    """A 400 for a field that we know and do not serve as asked."""
    return bad_field(path, reason, "unsupported_parameter")


def internal_error() -> ApiError:
    """The fixed 500 for whatever was not foreseen."""
    message = "The server failed on this request; it has been logged"
    return ApiError(500, message, "internal_error", SERVER_ERROR)


def engine_error() -> ApiError:
    """The fixed 500 for a request that the engine ended without saying why."""
    return ApiError(500, "The engine ended this request", "request_failed", SERVER_ERROR)


def frontends_died(what: str, code: str) -> ApiError:
    """The 500 for what ended two frontends in turn, and is left alone."""
    message = f"The frontend that had this {what} died, and so did those that went on with it"
    return ApiError(500, message, code, SERVER_ERROR)


def too_many_readers(what: str, readers_max: int) -> ApiError:
    """The 429 for one more reader of one response or completion."""
    reason = f"{readers_max} readers are attached to this {what} already"
    return ApiError(429, reason, "too_many_readers", "rate_limit_error")


def head_too_large() -> ApiError:
    """The 431 for more headers than are read."""
    return ApiError(431, "The request head is too large", "request_head_too_large")


def body_too_large(limit: int) -> ApiError:
    """The 413 for a body over the limit, in bytes."""
    return ApiError(413, f"The body is over {limit} bytes", "request_too_large")


def no_room() -> ApiError:
    """The 503 for a large body while others fill the room for those."""
    message = "The server has no room for so large a body now; send it again"
    return _come_again(message, "server_overloaded")


def draining() -> ApiError:
    """The 503 for new work while what is in flight is being served."""
    message = "The server is draining: it serves what is in flight and takes nothing new"
    return _come_again(message, "server_draining")


def _come_again(message: str, code: str, retry_after_s: float = RETRY_AFTER_ENGINE_S) -> ApiError:
    return ApiError(503, message, code, SERVER_ERROR, retry_after_s=retry_after_s)


def to_api_error(error: Exception, names: dict[str, str] | None = None) -> ApiError:
    """The answer for `error`; unknown kinds become one fixed 500.

    `names` maps fields of `SamplingParams` to the protocol's spelling (`max_tokens` is
    `max_output_tokens` in Responses).
    """
    match error:
        case ApiError():
            return error
        case PromptTooLong() | PromptRefused():
            return ApiError(
                400, str(error), error.code, param=(names or {}).get("prompt", "prompt")
            )
        case InvalidParameter(parameter=parameter, reason=reason):
            return bad_field((names or {}).get(parameter, parameter), reason, error.code)
        case InvalidRequest():
            return ApiError(400, str(error), error.code)
        case Overloaded():
            return ApiError(
                429, str(error), error.code, "rate_limit_error", retry_after_s=error.retry_after_s
            )
        case NoEngine():
            return _come_again(_public(error), error.code, error.retry_after_s)
        case RequestFailed():
            return ApiError(500, _public(error), error.code, SERVER_ERROR)
        case EngineError() if error.retryable:
            return _come_again(_public(error), error.code)
        case _:
            return internal_error()


def _public(error: EngineError) -> str:
    """The first line, cut: a traceback of a worker stays in the log."""
    return str(error).split("\n", 1)[0][:PUBLIC_TEXT_CHARACTERS_MAX]


def no_answer(party: str, code: str) -> ApiError:
    """The 503 for a process of this server that is silent, or between two lives."""
    return ApiError(
        503,
        f"{party} does not answer; ask again",
        code,
        SERVER_ERROR,
        retry_after_s=RETRY_AFTER_ENGINE_S,
    )


def response_not_found(response_id: str) -> ApiError:
    """The 404 for an id that is unknown, or another principal's."""
    return ApiError(
        404,
        f"Response with id {response_id[:100]!r} not found",
        "response_not_found",
        param="response_id",
    )


def completion_not_found(completion_id: str) -> ApiError:
    """The 404 for an id that is unknown, or another principal's."""
    return ApiError(
        404,
        f"Streamed completion with id {completion_id[:100]!r} not found",
        "completion_not_found",
        param="id",
    )
