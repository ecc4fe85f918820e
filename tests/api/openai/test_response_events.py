"""Objects and events of a response: endings, and what they say of the request."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from triolet.api.errors import engine_error
from triolet.api.openai.logprobs import make_formatter
from triolet.api.openai.response_events import TERMINAL_TYPES, Ending, Status
from triolet.api.responses.record import ResponseRecord
from triolet.api.responses.record_reader import RecordReader
from triolet.runtime.frontend.generation import Usage

from ..records import COMPLETED, make_record, make_request, say, spell


def end(status: Status, reason: str | None = None, **values: Any) -> list[Any]:
    error = engine_error() if status is Status.FAILED else None
    record = make_record(**values)
    if record.items:
        say(record, "a", "")
    seen = record.last_number
    record.end(Ending(status=status, usage=Usage(3, 50), reason=reason, error=error))
    return RecordReader.behind(record, seen).take(100)


@pytest.mark.parametrize(
    ("status", "reason", "terminal"),
    [
        (Status.COMPLETED, None, "response.completed"),
        (Status.INCOMPLETE, "max_output_tokens", "response.incomplete"),
        (Status.INCOMPLETE, "deadline", "response.incomplete"),
        (Status.CANCELLED, None, "response.incomplete"),
    ],
)
def test_endings(status: Status, reason: str | None, terminal: str) -> None:
    events = end(status, reason)
    last = events[-1]
    response = last["response"]
    assert [event["sequence_number"] for event in events] == [16, 17, 18, 19]
    assert (last["type"], response["status"]) == (terminal, status)
    assert response["incomplete_details"] == (reason and {"reason": reason})
    assert last["type"] in TERMINAL_TYPES.values()
    # What was said counts, not what the engine computed beyond.
    assert response["usage"]["output_tokens"] == 2


def test_the_end_formats_logprobs_once() -> None:
    calls: list[list[int]] = []

    def spell_noted(token_ids: Sequence[int]) -> list[bytes]:
        calls.append(list(token_ids))
        return spell(token_ids)

    request = make_request(include=["message.output_text.logprobs"])
    events = make_record().events
    formatter = make_formatter(spell_noted, 0)
    record = ResponseRecord(attrs.evolve(events, request=request, formatter=formatter))
    say(record, "a", "b")
    record.end(COMPLETED)
    last: list[Any] = RecordReader.behind(record, 16).take(100)
    assert calls == [[0, 1]]
    assert last[-1]["response"] == record.snapshot()
    assert last[-1]["response"]["output"] == [last[-2]["item"]]


def test_a_failure_says_what_was_said_and_why() -> None:
    (last,) = end(Status.FAILED)
    response = last["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "request_failed")
    assert response["output"][0]["content"][0]["text"] == "a"


def test_a_response_without_output_has_no_item() -> None:
    (last,) = end(Status.COMPLETED, generate=False)
    assert last["response"]["output"] == []


def test_the_object_echoes_the_request() -> None:
    snapshot = make_record(background=True, previous_response_id="resp_0").snapshot()
    assert (snapshot["background"], snapshot["store"]) == (True, True)
    assert snapshot["previous_response_id"] == "resp_0"
