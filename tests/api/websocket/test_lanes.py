"""Lanes: order, limits and names, as a table and under random events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import ApiError
from triolet.api.http.held import SessionState, TurnState
from triolet.api.openai.responses_request import ResponseRequest, ResumeRequest
from triolet.api.settings import SocketLimits
from triolet.api.websocket.lanes import CANCELLED, Lanes, Start, Turn, session_behind
from triolet.engine.sampling_params import SamplingParams

LIMITS = SocketLimits(
    lanes_active_max=2, lane_names_max=3, queued_per_lane_max=2, queued_bytes_max=100
)


def request(name: str | None) -> ResponseRequest:
    return ResponseRequest(input=[], sampling=SamplingParams(), stream_id=name)


class RecordingResponse:
    """Keeps what is asked of it."""

    response_id = "resp_1"

    def __init__(self) -> None:
        self.asked: list[object] = []

    def grant(self, tokens: int) -> None:
        self.asked.append(tokens)

    def cancel(self, reason: str) -> None:
        self.asked.append(reason)


def test_what_a_client_wants_before_there_is_a_response_is_done_when_there_is() -> None:
    turn, response = Turn.of(Start(request("a"), b"x" * 1, "resp_x")), RecordingResponse()
    turn.granted += 3
    turn.is_cancelled = True
    turn.begin(response)
    assert turn.is_begun
    assert response.asked == [3, CANCELLED]
    patient, left_alone = Turn(None, "resp_1"), RecordingResponse()
    patient.begin(left_alone)
    assert left_alone.asked == []


def test_what_is_resumed_has_begun() -> None:
    assert not Turn.of(Start(request("a"), b"x", "resp_x")).is_begun
    resume = ResumeRequest(response_id="resp_2", starting_after=None)
    assert Turn.of(Start(resume, b"x", "resp_2")).is_begun


def test_events_that_were_sent_say_how_far_each_turn_is() -> None:
    """Of a lane the first turn that has not ended, until its last event; then the one behind it."""
    first, second = TurnState("a", "resp_1", b"{}"), TurnState("a", "resp_2", b"{}")
    default = TurnState(None, "resp_3", b"", 4)
    texts = [
        b'{"type":"response.created","sequence_number":0,"stream_id":"a"}',
        b'{"type":"response.output_text.delta","sequence_number":3,"stream_id":"a"}',
        b'{"type":"response.output_text.delta","sequence_number":7}',
        b'{"type":"runtime.queued","position":3}',
        b'{"type":"response.output_text.delta","sequence_number":1,"stream_id":"unknown"}',
    ]
    session = SessionState("me", "session", ["a"], [first, default, second], grant=None)
    begun = TurnState("a", "resp_1", b"", 3)
    moved = TurnState(None, "resp_3", b"", 7)
    assert session_behind(session, []) == session
    behind = SessionState("me", "session", ["a"], [begun, moved, second], grant=None)
    assert session_behind(session, texts) == behind
    texts += [
        b'{"type":"response.incomplete","sequence_number":4,"stream_id":"a"}',
        b'{"type":"response.created","sequence_number":0,"stream_id":"a"}',
    ]
    begun = TurnState("a", "resp_2", b"", 0)
    assert session_behind(session, texts).turns == [moved, begun]


@pytest.mark.parametrize(
    ("names", "size", "message"),
    [
        (["a", "b", "c"], 1, "lanes are active"),
        (["a", "a", "a", "a"], 1, "wait in this lane"),
        (["a", "a", "a"], 60, "too large together"),
    ],
)
def test_limits_refuse_and_change_nothing(names: list[str], size: int, message: str) -> None:
    lanes = Lanes(LIMITS)
    for name in names[:-1]:
        lanes.handle_request(Start(request(name), b"x" * size, "resp_x"))
    active = lanes.active
    with pytest.raises(ApiError, match=message):
        lanes.handle_request(Start(request(names[-1]), b"x" * size, "resp_x"))
    assert lanes.active == active
    lanes.check_invariants()


def test_names_never_come_free_but_the_default_lane_has_none() -> None:
    lanes = Lanes(LIMITS)
    for name in ("a", "b", "c", None, "a"):
        assert lanes.handle_request(Start(request(name), b"x" * 1, "resp_x")) is not None
        assert lanes.handle_ended(name) is None
    with pytest.raises(ApiError, match="lane names"):
        lanes.handle_request(Start(request("d"), b"x" * 1, "resp_x"))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([None, "a", "b", "c", "d"])), max_size=60))
def test_random_events_keep_order_and_limits(events: list[tuple[bool, str | None]]) -> None:
    lanes = Lanes(LIMITS)
    expected: dict[str | None, list[ResponseRequest]] = {}
    refused = 0
    for is_create, name in events:
        if is_create:
            made = request(name)
            try:
                start = lanes.handle_request(Start(made, b"x" * 30, "resp_x"))
            except ApiError:
                refused += 1
            else:
                queue = expected.setdefault(name, [])
                queue.append(made)
                assert (start is not None) == (len(queue) == 1)
        elif expected.get(name):
            expected[name].pop(0)
            following = lanes.handle_ended(name)
            if following is None:
                assert expected.pop(name) == []
            else:
                assert following.request is expected[name][0]
        lanes.check_invariants()
    assert refused <= len(events)
