"""What a socket tells that is no event of a response."""

import pytest

from triolet.api.errors import ApiError, draining
from triolet.api.websocket.notices import error_event, overloaded, steer_failed, too_old


def test_an_error_names_its_lane_and_the_message_at_fault() -> None:
    error = ApiError(404, "No such thing", "not_found")
    assert error_event(error, None) == {
        "type": "error",
        "status": 404,
        "error": error.body()["error"],
    }
    event = error_event(error, "a", "message 7")
    body = event["error"]
    assert isinstance(body, dict)
    assert (event["stream_id"], body["event_id"]) == ("a", "message 7")


def test_an_error_says_when_to_come_back() -> None:
    body = error_event(draining(), None)["error"]
    assert isinstance(body, dict)
    assert body["headers"] == dict(draining().headers())


@pytest.mark.parametrize(
    ("error", "code"),
    [(too_old(), "websocket_connection_limit_reached"), (overloaded(), "server_overloaded")],
)
def test_why_a_socket_ends_is_told_by_code(error: ApiError, code: str) -> None:
    assert error.code == code


def test_steering_is_refused_and_its_input_comes_back() -> None:
    event = steer_failed({"type": "response.steer", "input": "left"})
    assert event["type"] == "response.steer.failed"
    assert event["steer"] == {"input": "left", "previous_response_id": None}
