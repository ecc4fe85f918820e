"""Events into histories: numbers, text, tokens, usage, and each kind of end."""

import json
from typing import Any

import pytest

from triolet.bench.load.events import (
    EventFault,
    chat_body,
    note_chat_chunk,
    note_refusal,
    note_response_event,
    note_whole_answer,
    read_response_event,
    response_body,
)
from triolet.bench.load.history import Outcome, RequestHistory
from triolet.bench.load.schedule import Ask

ASK = Ask(3, 0.0, "a fox", 5, 7)
USAGE = {"input_tokens": 4, "output_tokens": 2, "total_tokens": 6}


def history() -> RequestHistory:
    return RequestHistory(3, due_s=0.0, sent_s=0.0)


def note(seen: RequestHistory, **event: Any) -> bool:
    return note_response_event(read_response_event(json.dumps(event).encode()), seen, 2.0)


def test_a_response_is_written_down() -> None:
    seen = history()
    assert not note(seen, type="response.created", sequence_number=0, response={"id": "resp_1"})
    assert seen.response_id == "resp_1"
    delta = {"type": "response.output_text.delta", "delta": "ab", "token_ids": [1, 2]}
    assert not note(seen, sequence_number=5, **delta)
    assert not note(seen, type="response.output_text.done", sequence_number=6, text="ab")
    assert seen.outcome is Outcome.RUNNING
    end = {"id": "resp_1", "status": "completed", "usage": USAGE, "error": None}
    assert note(seen, type="response.completed", sequence_number=9, response=end)
    assert list(seen.numbers) == [0, 5, 6, 9]
    assert (seen.text, seen.token_ids) == ("ab", [1, 2])
    assert (seen.outcome, seen.input_tokens, seen.output_tokens) == (Outcome.COMPLETED, 4, 2)


@pytest.mark.parametrize(
    ("event", "outcome", "error"),
    [
        (
            {"type": "error", "error": {"code": "model_not_found"}},
            Outcome.REFUSED,
            "model_not_found",
        ),
        ({"type": "error", "error": {"type": "server_error"}}, Outcome.REFUSED, "server_error"),
        (
            {"type": "response.failed", "response": {"error": {"code": "engine_died"}}},
            Outcome.FAILED,
            "engine_died",
        ),
        (
            {"type": "response.incomplete", "response": {"status": "cancelled"}},
            Outcome.CANCELLED,
            "",
        ),
        (
            {"type": "response.incomplete", "response": {"status": "incomplete"}},
            Outcome.COMPLETED,
            "",
        ),
    ],
)
def test_ends_are_told_apart(event: dict[str, Any], outcome: Outcome, error: str) -> None:
    seen = history()
    assert note(seen, **event)
    assert (seen.outcome, seen.error) == (outcome, error)


def test_a_chat_is_written_down() -> None:
    seen = history()
    chunks: list[dict[str, Any]] = [
        {"id": "c", "choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"id": "c", "choices": [{"delta": {"content": "ab"}}]},
        {"id": "c", "choices": [{"delta": {}, "finish_reason": "length"}]},
        {"id": "c", "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}},
    ]
    for chunk in chunks:
        note_chat_chunk(json.dumps(chunk).encode(), seen, 1.0)
    assert (seen.text, len(seen.delta_times_s), seen.output_tokens) == ("ab", 1, 2)
    assert list(seen.numbers) == [0, 1, 2, 3]
    assert seen.outcome is Outcome.RUNNING, "[DONE] is the end"
    note_chat_chunk(b'{"error":{"code":"engine_died"}}', seen, 1.0)
    assert (seen.outcome, seen.error) == (Outcome.FAILED, "engine_died")


def test_whole_answers_and_refusals_are_written_down() -> None:
    seen = history()
    note_whole_answer(json.dumps({"id": "r", "usage": USAGE}).encode(), seen, 1.0)
    assert (seen.outcome, seen.output_tokens) == (Outcome.COMPLETED, 2)
    for body, error in (
        (b'{"error":{"code":"overloaded"}}', "503 overloaded"),
        (b"?", "503 error"),
    ):
        seen = history()
        note_refusal(503, body, seen, 1.0)
        assert (seen.outcome, seen.error) == (Outcome.REFUSED, error)


def test_bodies_ask_for_so_many_tokens() -> None:
    response = json.loads(response_body(ASK, stream=True))
    assert (response["input"], response["max_output_tokens"], response["stream"]) == (
        "a fox",
        5,
        True,
    )
    assert response["runtime"] == {"seed": 7, "ignore_eos": True}
    chat = json.loads(chat_body(ASK))
    assert (chat["messages"][0]["content"], chat["max_completion_tokens"]) == ("a fox", 5)


def test_nonsense_is_refused() -> None:
    with pytest.raises(EventFault):
        read_response_event(b"{")
    with pytest.raises(EventFault):
        note_chat_chunk(b'{"choices": 3}', history(), 0.0)
    with pytest.raises(EventFault):
        note_whole_answer(b"[]", history(), 0.0)
