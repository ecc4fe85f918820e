"""Error object of the Messages protocol.

Sans-IO: an `ApiError` in, a JSON object out. It has all that ours has, and two fields more:

    {"type": "error", "error": {"type", "message", "param", "code"}, "request_id": str | null}
"""

from ...engine.errors import PromptTooLong
from ..errors import INVALID_REQUEST, ApiError
from ..schema.fields import JsonObject

# {status: type}, where it is another one than its class of statuses has.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_object(error: ApiError, request_id: str | None = None) -> JsonObject:
    """Body of an error for a client of this protocol."""
    kind = _TYPES.get(error.status, INVALID_REQUEST if error.status < 500 else "api_error")
    message, cause = error.message, error.__cause__
    if isinstance(cause, PromptTooLong):
        # Anthropic's own words, by which Claude Code knows what to do.
        tokens, most = cause.prompt_tokens, cause.max_model_len
        message = f"prompt is too long: {tokens} tokens > {most} maximum"
    about = {"type": kind, "message": message, "param": error.param, "code": error.code}
    return {"type": "error", "error": about, "request_id": request_id}
