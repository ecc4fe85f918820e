"""Calls in chunks and in whole messages say the same, by choice."""

from typing import Any, cast

from triolet.api.openai.chat import ChatToolCalls

TEXT = 'Well.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
ID = "chatcmpl_abc"


def test_a_whole_message() -> None:
    calls = ChatToolCalls(ID)
    assert calls.message(0, TEXT) == {
        "role": "assistant",
        "content": "Well.",
        "refusal": None,
        "tool_calls": [
            {
                "id": "call_0_0_abc",
                "type": "function",
                "function": {"name": "f", "arguments": '{"a": 1}'},
            }
        ],
    }
    assert calls.finish_reason(0, "stop") == "tool_calls"
    assert calls.finish_reason(0, "length") == "length"
    assert calls.finish_reason(1, "stop") == "stop"


def test_without_a_call_the_text_is_as_it_was() -> None:
    calls = ChatToolCalls(ID)
    message = calls.message(0, "Hello. \n")
    assert (message["content"], "tool_calls" in message) == ("Hello. \n", False)
    assert calls.finish_reason(0, "stop") == "stop"
    assert ChatToolCalls(ID).message(0, "")["content"] == ""


def test_deltas_add_up_to_the_message_of_their_choice() -> None:
    calls = ChatToolCalls(ID)
    content, arguments, heads = "", "", list[Any]()
    for place, character in enumerate(TEXT):
        deltas: list[Any] = calls.deltas(2, character, is_last=place == len(TEXT) - 1)
        assert calls.deltas(1, "x", is_last=False) == [{"content": "x"}]
        for delta in deltas:
            content += delta.get("content", "")
            for part in delta.get("tool_calls", []):
                arguments += part["function"]["arguments"]
                heads += [(part["id"], part["function"]["name"])] if "id" in part else []
    assert (content, arguments, heads) == ("Well.", '{"a": 1}', [("call_2_0_abc", "f")])


def test_one_call_alone_when_they_must_not_be_parallel() -> None:
    twice = TEXT + TEXT
    assert len(cast("list[Any]", ChatToolCalls(ID).message(0, twice)["tool_calls"])) == 2
    once = ChatToolCalls(ID, calls_max=1).message(0, twice)
    assert once["tool_calls"] == ChatToolCalls(ID).message(0, TEXT)["tool_calls"]
    assert once["content"] == "Well.Well."
    calls = ChatToolCalls(ID, calls_max=1)
    parts = [delta for piece in twice for delta in calls.deltas(0, piece, is_last=False)]
    assert {
        part["index"] for delta in parts for part in cast("Any", delta.get("tool_calls", []))
    } == {0}


def test_a_named_call_ends_with_stop() -> None:
    calls = ChatToolCalls(ID, is_named=True)
    calls.message(0, TEXT)
    assert calls.finish_reason(0, "stop") == "stop"
