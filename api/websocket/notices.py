"""WebSocket events that belong to no response: errors, and why a socket ends.

Sans-IO: errors in, events out; only the words are here.
"""

from ..errors import SERVER_ERROR, ApiError
from ..openai.response_events import Event
from ..schema.fields import JsonObject


def error_event(error: ApiError, stream_id: str | None, event_id: str | None = None) -> Event:
    """An error of one lane, or of the socket; `event_id` is what the client called its message."""
    body = error.body()["error"]
    assert isinstance(body, dict)
    event: Event = {"type": "error", "status": error.status, "error": body}
    if error.retry_after_s is not None:
        body["headers"] = dict(error.headers())
    if event_id is not None:
        body["event_id"] = event_id
    if stream_id is not None:
        event["stream_id"] = stream_id
    return event


def too_old() -> ApiError:
    """Why a socket at its age limit takes nothing more, and ends."""
    message = "The socket has reached its age limit; open another"
    return ApiError(400, message, "websocket_connection_limit_reached")


def overloaded() -> ApiError:
    """Why a socket ends whose requests were refused so often."""
    message = "The server is overloaded; open another socket"
    return ApiError(503, message, "server_overloaded", SERVER_ERROR)


def steer_failed(event: JsonObject) -> Event:
    """OpenAI's answer for input that is not taken; it returns the input."""
    return {
        "type": "response.steer.failed",
        "sequence_number": 0,
        "error": {
            "type": "invalid_request_error",
            "code": "steering_not_supported",
            "message": "Steering is not served; send response.create",
        },
        "steer": {
            "input": event.get("input"),
            "previous_response_id": event.get("previous_response_id"),
        },
    }
