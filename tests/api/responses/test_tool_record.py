"""Items and events of responses with tools: however the text came, from wherever they are read."""

import itertools
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import ApiError
from triolet.api.openai.logprobs import make_teller
from triolet.api.openai.response_events import (
    DELTA,
    Ending,
    ResponseEvents,
    ResponseIdentity,
    Status,
)
from triolet.api.openai.responses_request import read_response_request
from triolet.api.responses.history import Conversation, with_output
from triolet.api.responses.tool_record import ToolRecord
from triolet.runtime.frontend.generation import GenerationOutput, Usage

from ..fakes import make_logprobs
from ..records import as_read, spell

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL_LONG = CALL.replace("1}}", f'{"1" * 4000}, "b": "{"é" * 1000}"}}}}')
TEXT = f"Well, {CALL}\n{CALL}"
IDENTITY = ResponseIdentity(response_id="resp_00ab", item_id="msg_cd", created_at=1, model="m")
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
COMPLETED = Ending(status=Status.COMPLETED, usage=Usage(3, 0))


def make_record(*pieces: str, ending: Ending | None = COMPLETED, **more: Any) -> ToolRecord:
    values: dict[str, Any] = {"input": "a", "tools": TOOLS, **more}
    request = read_response_request(values, model="m", has_tools=True)
    alternatives = request.sampling.logprobs
    record = ToolRecord(ResponseEvents(IDENTITY, request, make_teller(spell, alternatives)))
    for count, piece in enumerate(pieces, 1):
        told = None if alternatives is None else make_logprobs([count], alternatives)
        record.append(GenerationOutput(piece, [count], count, logprobs=told))
        record.check_invariants()
    if ending is not None:
        record.end(ending)
    record.check_invariants()
    return record


def read_all(record: ToolRecord, after: int | None = None, characters: int = 1) -> list[Any]:
    reader = record.reader(after)
    found: list[Any] = []
    while reader.is_ready:
        found += as_read(reader.take(characters))
    return found


def test_a_text_and_two_calls_are_three_items() -> None:
    output: Any = make_record(TEXT).snapshot()["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert output[0]["content"][0]["text"] == "Well,"
    assert output[1] == {
        "id": "fc_0_00ab",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_0_00ab",
        "name": "f",
        "arguments": '{"a": 1}',
    }


def test_one_call_alone_when_they_must_not_be_parallel() -> None:
    pieces = CALL + CALL
    record = make_record(*pieces, parallel_tool_calls=False)
    assert record.snapshot()["output"] == make_record(CALL).snapshot()["output"]
    assert len(make_record(*pieces).items) == 2


def test_events_are_openais_in_their_order() -> None:
    events = read_all(make_record(CALL))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[4]["arguments"] == '{"a": 1}'
    assert events[-1]["response"]["tools"][0]["name"] == "f"


@given(st.lists(st.integers(1, len(TEXT) - 1), max_size=9))
def test_cuts_change_neither_items_nor_what_deltas_add_up_to(cuts: list[int]) -> None:
    places = sorted({0, len(TEXT), *cuts})
    pieces = [TEXT[first:stop] for first, stop in itertools.pairwise(places)]
    record, whole = make_record(*pieces), make_record(TEXT)
    assert record.snapshot()["output"] == whole.snapshot()["output"]
    deltas = [event for event in read_all(record) if "arguments.delta" in event["type"]]
    first = "".join(event["delta"] for event in deltas if event["output_index"] == 1)
    assert first == '{"a": 1}'


def test_who_comes_back_gets_the_rest() -> None:
    record = make_record(*TEXT)
    events = read_all(record)
    for place, event in enumerate(events):
        assert read_all(record, event["sequence_number"]) == events[place + 1 :]
    with pytest.raises(ApiError, match="beyond the last event"):
        record.reader(events[-1]["sequence_number"] + 1)
    with pytest.raises(ApiError, match="negative"):
        record.reader(-1)


@pytest.mark.parametrize("characters", [2, 5, 1000])
def test_deltas_that_wait_are_merged(characters: int) -> None:
    record = make_record(*TEXT)
    each, merged = read_all(record), read_all(record, characters=characters)
    assert len(merged) < len(each)
    numbers = [event["sequence_number"] for event in merged]
    assert numbers == sorted(set(numbers))
    for item_id in {event["item_id"] for event in each if "delta" in event}:
        parts, whole = (
            [event for event in events if "delta" in event and event["item_id"] == item_id]
            for events in (each, merged)
        )
        assert "".join(e["delta"] for e in parts) == "".join(e["delta"] for e in whole)
        assert parts[-1]["sequence_number"] == whole[-1]["sequence_number"]
    others = [event for event in each if "delta" not in event]
    assert [event for event in merged if "delta" not in event] == others
    reader = record.reader()
    assert len(reader.take(2**20)) + reader.merged == len(each)
    for event in merged[:-1]:
        following = read_all(record, event["sequence_number"])
        assert following == each[-len(following) :]


@pytest.mark.parametrize("characters", [1, 7, 1000])
@pytest.mark.parametrize("text", [TEXT, CALL, "Well, <tool", " a\n"])
def test_each_token_is_told_once(text: str, characters: int) -> None:
    asked: dict[str, Any] = {"top_logprobs": 1, "runtime": {"token_ids": True}}
    record = make_record(*text, **asked)
    events = read_all(record, characters=characters)
    ids: list[int] = []
    logprobs: list[Any] = []
    for event in events:
        if "token_ids" in event:
            assert event["token_index"] == len(ids)
            assert len(event["logprobs"]) == len(event["token_ids"])
            ids += event["token_ids"]
            logprobs += event["logprobs"]
    assert ids == list(range(1, len(text) + 1))
    assert [entry["bytes"] for entry in logprobs] == [list(chr(i).encode()) for i in ids]
    output = as_read(record.snapshot())["output"]
    assert events[-1]["response"]["output"] == output
    for index, item in enumerate(output):
        if item["type"] == "message":
            deltas = [e for e in events if e["type"] == DELTA and e["output_index"] == index]
            told = [entry for delta in deltas for entry in delta["logprobs"]]
            assert item["content"][0]["logprobs"] == told
            done = next(e for e in events if e["type"] == "response.output_item.done")
            assert done["item"] == output[done["output_index"]]
    plain = make_record(*text).snapshot()["output"]
    assert [item["type"] for item in output] == [item["type"] for item in cast("Any", plain)]


def test_token_ids_are_kept_for_who_goes_on_with_them() -> None:
    asked: dict[str, Any] = {"input": None, "runtime": {"input_token_ids": [7]}}
    record = make_record("a", "b", **asked)
    assert with_output(Conversation((), [7]), record).token_ids == [7, 1, 2]
    assert not any("token_ids" in event for event in read_all(record))


def test_a_call_that_is_cut_is_incomplete() -> None:
    ending = Ending(status=Status.INCOMPLETE, usage=Usage(3, 0), reason="max_output_tokens")
    record = make_record(CALL[:45], ending=ending)
    [item] = record.calls
    assert (item["status"], item["name"]) == ("incomplete", "f")
    assert read_all(record)[-1]["type"] == "response.incomplete"


def test_what_is_kept_grows_with_its_events_and_arguments() -> None:
    few, many = make_record("x"), make_record(*"x" * 1000)
    assert many.extra_bytes > few.extra_bytes + 300_000
    said = [with_output(Conversation(), make_record(call)) for call in (CALL, CALL_LONG)]
    assert said[1].size_bytes >= said[0].size_bytes + 5000


def test_notices_are_for_those_who_want_them() -> None:
    record = make_record(ending=None)
    record.add_notice({"type": "runtime.queued", "response_id": "resp_00ab"})
    assert len(read_all(record)) == 3
    assert len(record.reader(with_notices=False).take(9)) == 2
    assert not record.reader().is_done
