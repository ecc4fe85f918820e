"""Response records: their events, with and without tools, to a reader from any number."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import ApiError, engine_error
from triolet.api.openai.response_events import Ending, Status
from triolet.api.openai.response_items import MESSAGE
from triolet.api.responses.history import Conversation, with_output
from triolet.api.responses.record import ResponseRecord
from triolet.api.responses.record_reader import RecordReader
from triolet.runtime.text.outputs import GenerationOutput, Usage

from ..records import COMPLETED, as_read, check_invariants, make_record, say, taken

DELTA = MESSAGE.delta

ALL = 2**30
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL_LONG = CALL.replace("1}}", f'{"1" * 4000}, "b": "{"é" * 1000}"}}}}')
TEXT = f"Well, {CALL}\n{CALL}"
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]


def make_said(*texts: str, ending: Ending | None = None, **values: Any) -> ResponseRecord:
    """With a token for each text."""
    record = make_record("resp_00ab", **values)
    for text in texts:
        say(record, text)
        check_invariants(record)
    if ending is not None:
        record.end(ending)
        check_invariants(record)
    return record


def make_calls(*texts: str, ending: Ending | None = COMPLETED, **values: Any) -> ResponseRecord:
    return make_said(*texts, ending=ending, tools=TOOLS, **values)


def read_all(record: ResponseRecord, after: int | None = None, characters: int = 1) -> list[Any]:
    reader, found = RecordReader.behind(record, after), list[Any]()
    while reader.is_ready:
        found += taken(reader, characters)
    return found


def numbers(events: list[Any]) -> list[int]:
    return [event["sequence_number"] for event in events]


def types(events: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def text_of(events: list[Any]) -> str:
    return "".join([event["delta"] for event in events if event["type"] == DELTA])


def test_numbers_are_eight_for_a_token() -> None:
    record = make_record()
    reader = RecordReader.behind(record)
    events = taken(reader)
    for text in "abc":
        say(record, text)
        events += taken(reader)
    record.end(COMPLETED)
    events += taken(reader)
    assert numbers(events) == [0, 1, 2, 3, 8, 16, 24, 25, 26, 27, 28]
    assert (reader.is_done, reader.is_ready, reader.merged) == (True, False, 0)


def test_what_waits_is_merged_with_the_number_of_its_last_part() -> None:
    reader = RecordReader.behind(make_said("a", "b", "c"), 3)
    (delta,) = taken(reader)
    assert (delta["delta"], delta["sequence_number"]) == ("abc", 24)
    assert reader.merged == 2


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_take_is_bounded_and_says_that_more_is_there(is_ended: bool) -> None:
    reader = RecordReader.behind(
        make_said("aa", "bb", "cc", ending=COMPLETED if is_ended else None), 3
    )
    assert text_of(taken(reader, 3)) == "aabb"
    assert (reader.is_ready, reader.lag) == (True, 2)
    assert text_of(taken(reader, 3)) == "cc"
    assert reader.is_done is is_ended


@pytest.mark.parametrize("record", [make_said(*"abcd", ending=COMPLETED), make_calls(*TEXT)])
def test_a_reader_goes_on_behind_any_number(record: ResponseRecord) -> None:
    events = read_all(record)
    for after in range(record.last_number + 1):
        rest = [event for event in events if event["sequence_number"] > after]
        assert read_all(record, after) == rest
    assert RecordReader.behind(record, record.last_number).is_done
    for after in (record.last_number + 1, -1):
        with pytest.raises(ApiError) as caught:
            RecordReader.behind(record, after)
        assert (caught.value.code, caught.value.param) == ("invalid_value", "starting_after")


def test_ahead_of_what_was_said_is_refused() -> None:
    record = make_said("a")
    RecordReader.behind(record, 8)
    with pytest.raises(ApiError, match="beyond the last event, 8"):
        RecordReader.behind(record, 9)


def test_silent_tokens_make_no_event_unless_ids_are_asked_for() -> None:
    texts = ("", "é", "")
    record = make_said(*texts, ending=COMPLETED)
    with_ids = make_said(*texts, ending=COMPLETED, runtime={"token_ids": True})
    assert numbers(read_all(record, 3)) == [16, 24, 25, 26, 27]
    assert numbers(read_all(with_ids, 3, characters=9)) == [24, 25, 26, 27, 28]
    (delta,) = [event for event in taken(RecordReader.behind(with_ids)) if event["type"] == DELTA]
    assert (delta["token_ids"], delta["token_index"]) == ([0, 1, 2], 0)
    assert (record.token_ids, with_ids.token_ids) == (None, [0, 1, 2])


def test_a_text_that_the_end_completes_is_a_delta_of_its_own() -> None:
    together, apart = make_record(), make_record()
    together.append(GenerationOutput("a\ufffd", [1], 1, texts=["a", "\ufffd"]))
    apart.append(GenerationOutput("a", [1], 1))
    apart.append(GenerationOutput("\ufffd", [], 1))
    for record in (together, apart):
        record.end(COMPLETED)
        assert numbers(read_all(record, 3)) == [8, 9, 10, 11, 12, 13]


def test_a_failure_has_the_terminal_event_alone() -> None:
    failed = Ending(status=Status.FAILED, usage=Usage(3, 0), error=engine_error())
    for record in (make_said("a", ending=failed), make_calls("a", ending=failed)):
        *_, delta, terminal = read_all(record)
        assert (delta["type"], terminal["type"]) == (DELTA, "response.failed")
        (item,) = terminal["response"]["output"]
        assert (item["status"], item["content"][0]["text"]) == ("incomplete", "a")
        assert terminal["response"]["error"]["code"] == "request_failed"


def test_notices_stand_between_the_deltas() -> None:
    record = make_record()
    record.add_notice({"type": "runtime.queued"})
    say(record, "a")
    record.add_notice({"type": "runtime.preempted"})
    say(record, "b")
    events = taken(RecordReader.behind(record))
    assert [event["type"] for event in events[4:]] == [
        "runtime.queued", DELTA, "runtime.preempted", DELTA
    ]  # fmt: skip
    assert numbers(events)[4:] == [3, 8, 8, 16]
    resumed = taken(RecordReader.behind(record, 8))
    assert [event["type"] for event in resumed] == ["runtime.preempted", DELTA]
    unasked = RecordReader.behind(record, 8, with_notices=False)
    assert [event["type"] for event in taken(unasked)] == [DELTA]
    record.add_notice({"type": "runtime.resumed"})
    assert not unasked.is_ready
    check_invariants(record)


def test_a_response_without_output() -> None:
    record = make_said(generate=False, ending=COMPLETED)
    events = read_all(record)
    assert numbers(events) == [0, 1, 2]
    assert events[-1]["response"]["output"] == []
    assert numbers(read_all(record, 1)) == [2]


LOGPROBS: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}


@given(st.lists(st.sampled_from(["a", "", "bc"]), max_size=8), st.integers(0, 9), st.booleans())
def test_logprobs_go_with_their_tokens_from_any_number(
    texts: list[str], seen: int, is_ended: bool
) -> None:
    record = make_said(*texts, ending=COMPLETED if is_ended else None, **LOGPROBS)
    first = min(seen, len(texts))
    events: list[Any] = taken(RecordReader.behind(record, max(3, 8 * first)))
    entries = [entry for event in events if event["type"] == DELTA for entry in event["logprobs"]]
    assert [entry["bytes"] for entry in entries] == [[i] for i in range(first, len(texts))]
    if is_ended:
        whole = as_read(record.snapshot())
        entries = whole["output"][0]["content"][0]["logprobs"]
        assert [entry["bytes"] for entry in entries] == [[i] for i in range(len(texts))]
        assert whole["top_logprobs"] == 1
    assert record.extra_bytes >= len(texts) * 4 * 5


# ---- tools


def test_a_text_and_two_calls_are_three_items() -> None:
    output: Any = make_calls(TEXT).snapshot()["output"]
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
    record = make_calls(*CALL, *CALL, parallel_tool_calls=False)
    assert record.snapshot()["output"] == make_calls(CALL).snapshot()["output"]
    assert len(make_calls(*CALL, *CALL).items) == 2


def test_events_are_openais_in_their_order() -> None:
    events = read_all(make_calls(CALL))
    assert types(events) == [
        "created", "in_progress", "output_item.added", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert numbers(events) == [0, 1, 8, 9, 10, 11, 12]
    assert events[4]["arguments"] == '{"a": 1}'
    assert events[-1]["response"]["tools"][0]["name"] == "f"


@given(st.lists(st.integers(1, len(TEXT) - 1), max_size=9))
def test_cuts_change_neither_items_nor_what_deltas_add_up_to(cuts: list[int]) -> None:
    places = sorted({0, len(TEXT), *cuts})
    record = make_calls(*[TEXT[first:stop] for first, stop in itertools.pairwise(places)])
    assert record.snapshot()["output"] == make_calls(TEXT).snapshot()["output"]
    deltas = [event for event in read_all(record) if "arguments.delta" in event["type"]]
    first = "".join(event["delta"] for event in deltas if event["output_index"] == 1)
    assert first == '{"a": 1}'


@pytest.mark.parametrize("characters", [1, 7, 1000])
@pytest.mark.parametrize("text", [TEXT, CALL, "Well, <tool", " a\n"])
def test_each_token_is_said_once(text: str, characters: int) -> None:
    record = make_calls(*text, runtime={"token_ids": True}, **LOGPROBS)
    events = read_all(record, characters=characters)
    ids: list[int] = []
    logprobs: list[Any] = []
    for event in events:
        if "token_ids" in event:
            assert event["token_index"] == len(ids)
            assert len(event["logprobs"]) == len(event["token_ids"])
            ids += event["token_ids"]
            logprobs += event["logprobs"]
    assert ids == list(range(len(text)))
    assert [entry["bytes"] for entry in logprobs] == [list(chr(i).encode()) for i in ids]
    output = as_read(record.snapshot())["output"]
    assert events[-1]["response"]["output"] == output
    for index, item in enumerate(output):
        if item["type"] == "message":
            deltas = [e for e in events if e["type"] == DELTA and e["output_index"] == index]
            of_deltas = [entry for delta in deltas for entry in delta["logprobs"]]
            assert item["content"][0]["logprobs"] == of_deltas
            done = next(e for e in events if e["type"] == "response.output_item.done")
            assert done["item"] == output[done["output_index"]]
    plain: Any = make_calls(*text).snapshot()["output"]
    assert [item["type"] for item in output] == [item["type"] for item in plain]


def test_token_ids_are_kept_for_who_goes_on_with_them() -> None:
    record = make_calls("a", "b", input=None, runtime={"input_token_ids": [7]})
    assert with_output(Conversation((), [7]), record).token_ids == [7, 0, 1]
    assert not any("token_ids" in event for event in read_all(record))


def test_a_call_that_is_cut_is_incomplete() -> None:
    ending = Ending(status=Status.INCOMPLETE, usage=Usage(3, 0), reason="max_output_tokens")
    record = make_calls(CALL[:45], ending=ending)
    [item] = record.calls
    assert (item["status"], item["name"]) == ("incomplete", "f")
    assert read_all(record)[-1]["type"] == "response.incomplete"


def test_what_is_kept_grows_with_the_arguments() -> None:
    said = [with_output(Conversation(), make_calls(call)) for call in (CALL, CALL_LONG)]
    assert said[1].size_bytes >= said[0].size_bytes + 5000
