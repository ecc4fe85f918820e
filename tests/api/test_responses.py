"""The builder: numbers are a function of the tokens alone, merged or not; endings and merging."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import engine_error
from triolet.api.responses import (
    DELTA,
    TERMINAL_TYPES,
    Event,
    ResponseEvents,
    ResponseIdentity,
    merge_deltas,
)
from triolet.api.responses_request import ResponseRequest, read_response_request
from triolet.engine.messages import FinishReason
from triolet.runtime.generation import GenerationOutput, Usage

IDENTITY = ResponseIdentity(response_id="resp_1", item_id="msg_1", created_at=5, model="toy")


def request(**runtime: object) -> ResponseRequest:
    return read_response_request({"input": "x", "runtime": runtime}, model="toy")


def output(text: str, first: int, count: int) -> GenerationOutput:
    return GenerationOutput(text, list(range(first, first + count)), first + count)


def build(pieces: list[tuple[str, int]], **runtime: object) -> list[Event]:
    """All events of a response that says these (text, tokens)."""
    events = ResponseEvents(IDENTITY, request(**runtime))
    made, count = events.begin(), 0
    for text, tokens in pieces:
        made += events.output(output(text, count, tokens))
        count += tokens
    made += events.finish(FinishReason.STOP, Usage(3, count))
    return made


def number(event: Event) -> int:
    value = event["sequence_number"]
    assert isinstance(value, int)
    return value


def test_numbers_of_an_unmerged_stream_have_no_gap() -> None:
    events = build([("a", 1), ("b", 1), ("c", 1)])
    assert [number(event) for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


pieces = st.lists(st.tuples(st.text(alphabet="xyz", max_size=2), st.just(1)), max_size=12)


@given(pieces, st.lists(st.booleans(), min_size=12, max_size=12), st.booleans())
def test_a_merged_stream_is_the_same_with_fewer_deltas(
    said: list[tuple[str, int]], joins: list[bool], token_ids: bool
) -> None:
    merged: list[tuple[str, int]] = []
    for (text, tokens), join in zip(said, joins, strict=False):
        if merged and join:
            merged[-1] = (merged[-1][0] + text, merged[-1][1] + tokens)
        else:
            merged.append((text, tokens))
    one, other = build(said, token_ids=token_ids), build(merged, token_ids=token_ids)
    assert [e for e in one if e["type"] != DELTA] == [e for e in other if e["type"] != DELTA]
    by_number = {number(event): event for event in one}
    for event in other:
        if event["type"] == DELTA and (token_ids or event["delta"]):
            assert number(event) >= 4
            assert number(event) in by_number or not token_ids
    texts = ["".join(str(e["delta"]) for e in es if e["type"] == DELTA) for es in (one, other)]
    assert texts[0] == texts[1]


def test_merging_deltas_afterwards_equals_building_them_merged() -> None:
    for token_ids in (False, True):
        one = [e for e in build([("a", 1), ("b", 2)], token_ids=token_ids) if e["type"] == DELTA]
        (whole,) = [e for e in build([("ab", 3)], token_ids=token_ids) if e["type"] == DELTA]
        assert merge_deltas(*one) == whole
    assert merge_deltas(one[0], build([])[-1]) is None


def test_a_piece_without_text_is_silent_unless_ids_are_wanted() -> None:
    assert len(build([("", 1), ("é", 1)])) == len(build([("é", 2)]))
    with_ids = [e for e in build([("", 1), ("é", 1)], token_ids=True) if e["type"] == DELTA]
    assert [event["token_ids"] for event in with_ids] == [[0], [1]]


@pytest.mark.parametrize(
    ("reason", "terminal", "status"),
    [
        (FinishReason.STOP, "response.completed", "completed"),
        (FinishReason.LENGTH, "response.incomplete", "incomplete"),
        (FinishReason.ABORT, "response.incomplete", "cancelled"),
    ],
)
def test_endings(reason: FinishReason, terminal: str, status: str) -> None:
    events = ResponseEvents(IDENTITY, request())
    events.begin()
    events.output(output("a", 0, 2))
    last = events.finish(reason, Usage(3, 2))[-1]
    response = last["response"]
    assert isinstance(response, dict)
    assert (last["type"], response["status"], number(last)) == (terminal, status, 9)
    assert last["type"] in TERMINAL_TYPES


def test_a_failure_keeps_what_was_said_and_its_number() -> None:
    events = ResponseEvents(IDENTITY, request())
    events.begin()
    events.output(output("a", 0, 2))
    (last,) = events.fail(engine_error(), Usage(3, 2))
    assert number(last) == 9
    response = last["response"]
    assert isinstance(response, dict)
    assert response["status"] == "failed"
    assert response["error"]["code"] == "request_failed"


def test_a_cancel_counts_what_the_client_saw() -> None:
    events = ResponseEvents(IDENTITY, request())
    events.begin()
    events.output(output("a", 0, 1))
    last = events.cancel(Usage(3, 50))[-1]
    response = last["response"]
    assert isinstance(response, dict)
    assert response["usage"]["output_tokens"] == 1
