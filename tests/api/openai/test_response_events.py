"""The builder: numbers are a function of the tokens alone; endings and what their objects say."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from triolet.api.errors import engine_error
from triolet.api.openai.logprobs import make_teller
from triolet.api.openai.response_events import TERMINAL_TYPES, Ending, Event, Status
from triolet.runtime.frontend.generation import Usage

from ..fakes import make_logprobs
from ..records import make_record, spell


def number(event: Event) -> int:
    value = event["sequence_number"]
    assert isinstance(value, int)
    return value


def end(status: Status, reason: str | None = None, **values: Any) -> list[Event]:
    error = engine_error() if status is Status.FAILED else None
    ending = Ending(status=status, usage=Usage(3, 50), reason=reason, error=error)
    return make_record(**values).events.end(ending, "a", 2)


def test_numbers_of_the_opening_and_of_a_delta() -> None:
    events = make_record().events
    assert [number(event) for event in events.opening()] == [0, 1, 2, 3]
    assert number(events.delta("a", 1, None).event()) == 4
    assert "token_ids" not in events.delta("a", 1, None).event()
    with_ids = events.delta("ab", 5, [7, 8]).event()
    assert (with_ids["token_ids"], with_ids["token_index"]) == ([7, 8], 3)


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
    assert isinstance(response, dict)
    assert [number(event) for event in events] == [6, 7, 8, 9]
    assert (last["type"], response["status"]) == (terminal, status)
    assert response["incomplete_details"] == (reason and {"reason": reason})
    assert last["type"] in TERMINAL_TYPES
    # What was said counts, not what the engine computed beyond.
    assert response["usage"]["output_tokens"] == 2


def test_the_end_tells_logprobs_in_one_spelling() -> None:
    calls: list[list[int]] = []

    def spell_noted(token_ids: Sequence[int]) -> list[bytes]:
        calls.append(list(token_ids))
        return spell(token_ids)

    events = attrs.evolve(make_record().events, teller=make_teller(spell_noted, 0))
    ending = Ending(status=Status.COMPLETED, usage=Usage(3, 2))
    *_, item_done, terminal = events.end(ending, "ab", 2, make_logprobs([97, 98], 0))
    assert calls == [[97, 98]]
    assert terminal["response"] == events.final(ending, "ab", 2, make_logprobs([97, 98], 0))
    assert terminal["response"]["output"] == [item_done["item"]]


def test_a_failure_keeps_what_was_said_and_its_number() -> None:
    (last,) = end(Status.FAILED)
    assert number(last) == 9
    response = last["response"]
    assert isinstance(response, dict)
    assert (response["status"], response["error"]["code"]) == ("failed", "request_failed")
    assert response["output"][0]["content"][0]["text"] == "a"


def test_a_response_without_output_has_no_item() -> None:
    opening = make_record(generate=False).events.opening()
    assert [event["type"] for event in opening] == ["response.created", "response.in_progress"]
    (last,) = end(Status.COMPLETED, generate=False)
    response = last["response"]
    assert isinstance(response, dict)
    assert response["output"] == []


def test_the_object_echoes_the_request() -> None:
    snapshot = make_record(background=True, previous_response_id="resp_0").snapshot()
    assert (snapshot["background"], snapshot["store"]) == (True, True)
    assert snapshot["previous_response_id"] == "resp_0"
