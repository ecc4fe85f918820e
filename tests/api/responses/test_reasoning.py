"""Reasoning in Responses: items and events, a stream resumed anywhere, and the next turn."""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.openai.response_events import Status
from triolet.api.responses.history import Conversation, input_items, with_output
from triolet.api.responses.record import ResponseRecord
from triolet.api.responses.record_reader import RecordReader

from ..answers import THINKING, THINKING_CALLS
from ..chunks import frames_of
from ..fakes import FakeGenerator, Say, make_application, open_client, open_responses
from ..records import COMPLETED, as_read, check_invariants, make_record, say, taken

TOKENS = ["<think>", "\n", "Hm", ", ", "hm", ".\n", "</think>", "\n\n", "Yes", "."]
CALL = ["<tool_call>", '\n{"name": "f", ', '"arguments": {}}', "\n</tool_call>"]
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
TEMPLATE = "{{ messages }}<think></think>"


def said(*texts: str, is_open: bool = False, **values: Any) -> ResponseRecord:
    record = make_record("resp_00ab", **{"answers": THINKING, **values})
    if is_open:
        record.open_reasoning()
    for text in texts:
        say(record, text)
        check_invariants(record)
    return record


def events_of(record: ResponseRecord) -> list[Any]:
    return taken(RecordReader.behind(record))


def kinds(events: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_reasoning_is_an_item_before_the_message() -> None:
    record = said(*TOKENS)
    record.end(COMPLETED)
    events = events_of(record)
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    reasoning, message = events[-1]["response"]["output"]
    part = {"type": "reasoning_text", "text": "Hm, hm."}
    head = {"id": "rs_0_00ab", "type": "reasoning", "status": "completed"}
    assert reasoning == {**head, "summary": [], "content": [part]}
    assert message["content"][0]["text"] == "Yes."
    place = {"item_id": "rs_0_00ab", "output_index": 0, "content_index": 0}
    assert events[4].items() >= {**place, "delta": "Hm, hm."}.items()
    assert events[5].items() >= {**place, "text": "Hm, hm."}.items()
    assert events[6].items() >= {**place, "part": part}.items()
    details = events[-1]["response"]["usage"]["output_tokens_details"]
    assert details == {"reasoning_tokens": 7}


def test_a_summary_is_all_of_the_reasoning() -> None:
    record = said(*TOKENS, reasoning={"summary": "auto"})
    record.end(COMPLETED)
    events = events_of(record)
    assert kinds(events)[3:7] == [
        *("reasoning_summary_part.added", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done"),
    ]
    assert events[4].items() >= {"summary_index": 0, "delta": "Hm, hm."}.items()
    part = {"type": "summary_text", "text": "Hm, hm."}
    assert events[-1]["response"]["output"][0]["summary"] == [part]
    assert "content" not in events[-1]["response"]["output"][0]
    assert events[-1]["response"]["reasoning"] == {"effort": None, "summary": "auto"}


def test_a_prompt_may_have_opened_it_and_it_may_be_cut() -> None:
    record = said("Hm", ".", is_open=True)
    record.end(attrs.evolve(COMPLETED, status=Status.INCOMPLETE))
    (item,) = events_of(record)[-1]["response"]["output"]
    assert (item["type"], item["status"]) == ("reasoning", "incomplete")
    assert item["content"][0]["text"] == "Hm."


def test_calls_follow_the_reasoning() -> None:
    record = said(*TOKENS[:8], *CALL, answers=THINKING_CALLS, tools=[TOOL])
    record.end(COMPLETED)
    output = events_of(record)[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "function_call"]


PIECES = st.lists(st.sampled_from([*TOKENS, *CALL, "<", "think", " "]), max_size=14)


@given(texts=PIECES, seen=st.integers(0, 30), is_open=st.booleans(), with_ids=st.booleans())
def test_a_stream_that_is_resumed_anywhere_is_the_same(
    texts: list[str], seen: int, is_open: bool, with_ids: bool
) -> None:
    values: dict[str, Any] = {"answers": THINKING_CALLS, "tools": [TOOL], "is_open": is_open}
    if with_ids:
        values |= {"runtime": {"token_ids": True}, "include": ["message.output_text.logprobs"]}
    record = said(*texts, **values)
    record.end(COMPLETED)
    single = [event for part in parts_one_by_one(record) for event in part]
    numbers = [event["sequence_number"] for event in single]
    assert numbers == sorted(set(numbers))
    number = numbers[min(seen, len(numbers) - 1)]
    rest = taken(RecordReader.behind(record, number))
    assert text_of(rest) == text_of([e for e in single if e["sequence_number"] > number])
    if with_ids:
        ids = [i for event in single for i in event.get("token_ids", [])]
        assert ids == list(range(len(texts)))


def parts_one_by_one(record: ResponseRecord) -> list[list[Any]]:
    """As a reader takes them that is never behind."""
    reader, found = RecordReader.behind(record), []
    while not reader.is_done:
        found.append(taken(reader, 1))
    return found


def text_of(events: list[Any]) -> dict[str, str]:
    found = dict[str, str]()
    for event in events:
        if event["type"].endswith(".delta"):
            found[event["item_id"]] = found.get(event["item_id"], "") + event["delta"]
    return {name: text for name, text in found.items() if text}


def test_the_next_turn_has_the_reasoning() -> None:
    record = said(*TOKENS)
    record.end(COMPLETED)
    asked = Conversation([{"role": "user", "content": "hi"}])
    after = with_output(asked, record)
    answer = {"role": "assistant", "content": "Yes."}
    assert after.messages[-1] == {**answer, "reasoning_content": "Hm, hm.", "thinking": "Hm, hm."}
    assert after.size_bytes > with_output(asked, said("Yes.")).size_bytes
    items: list[Any] = as_read(input_items(after, "resp_1"))
    assert [item["type"] for item in items] == ["message", "reasoning", "message"]
    assert items[1]["content"] == [{"type": "reasoning_text", "text": "Hm, hm."}]


# ---- through a whole application


SCRIPT = [Say(text) for text in TOKENS]


@pytest.mark.parametrize("n", [1, 2])
async def test_chat_parts_every_choice_and_counts_its_tokens(n: int) -> None:
    application = make_application(FakeGenerator(SCRIPT, chat_template=TEMPLATE))
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "n": n}
    async with open_responses(application), open_client(application) as client:
        answer = await client.request("POST", "/v1/chat/completions", body)
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        stream = await client.request("POST", "/v1/chat/completions", streamed)
    whole = answer.json
    assert [each["message"]["reasoning_content"] for each in whole["choices"]] == ["Hm, hm."] * n
    assert [each["message"]["content"] for each in whole["choices"]] == ["Yes."] * n
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 7 * n}
    assert f'"reasoning_tokens":{7 * n}'.encode() in stream.body
    chunks = [chunk for _, chunk in frames_of(stream.body) if chunk != "[DONE]"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert sum(len(delta.get("reasoning", "")) for delta in deltas) == n * len("Hm, hm.")
    assert b"think" not in stream.body


async def test_a_prompt_that_opens_the_reasoning_is_seen_by_both_protocols() -> None:
    prompt = [*map(ord, "<think>\n")]
    generator = FakeGenerator(SCRIPT[2:], chat_template=TEMPLATE, prompt_tokens=prompt)
    application = make_application(generator)
    messages = [{"role": "user", "content": "hi"}]
    async with open_responses(application), open_client(application) as client:
        chat = await client.request("POST", "/v1/chat/completions", {"messages": messages})
        response = await client.request("POST", "/v1/responses", {"input": "hi"})
    assert chat.json["choices"][0]["message"]["reasoning"] == "Hm, hm."
    assert [item["type"] for item in response.json["output"]] == ["reasoning", "message"]
