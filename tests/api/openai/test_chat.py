"""Answers of chat and of completions: chunks, whole ones, and the tool calls in them."""

from typing import Any, cast

import attrs

from triolet.api.openai.chat import AnsweredPrompt, ChatAnswer, ChatMessages, WholeChoice
from triolet.api.openai.completions import CompletionsAnswer, usage_of
from triolet.api.openai.tool_use import ToolChoiceValue
from triolet.api.schema.fields import JsonObject
from triolet.engine.messages import FinishReason
from triolet.runtime.text.outputs import GenerationOutput, Usage
from triolet.runtime.text.tool_calls import ToolChoice

from ..answers import TOOLS

ANSWER = ChatAnswer(completion_id="chatcmpl_1", created=5, model="toy")
WITH_IDS = ChatAnswer(completion_id="chatcmpl_1", created=5, model="toy", with_token_ids=True)

COMPLETION = CompletionsAnswer(completion_id="cmpl_1", created=5, model="toy")
COMPLETION_IDS = CompletionsAnswer(
    completion_id="cmpl_1", created=5, model="toy", with_token_ids=True
)


def choices_of(found: JsonObject) -> list[dict[str, Any]]:
    choices = found["choices"]
    assert isinstance(choices, list)
    return choices


def test_a_piece_and_an_end_in_one_output_are_two_chunks() -> None:
    output = GenerationOutput("a", [1, 2], 2, finish_reason=FinishReason.STOP, stop_reason="END")
    text, end = ANSWER.chunks(output)
    assert text["choices"] == [
        {"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}
    ]
    assert end["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": "END"}
    ]
    assert (end["id"], end["object"]) == ("chatcmpl_1", "chat.completion.chunk")


def test_a_piece_without_text_is_silent_unless_ids_are_wanted() -> None:
    output = GenerationOutput("", [1], 1)
    assert ANSWER.chunks(output) == COMPLETION.chunks(output) == []
    assert len(WITH_IDS.chunks(output)) == 1
    output.index = 2
    (chunk,) = COMPLETION_IDS.chunks(output)
    (choice,) = choices_of(chunk)
    assert (choice["index"], choice["token_ids"]) == (2, [1])


def test_a_whole_completion() -> None:
    output = GenerationOutput("ab", [1, 2], 2, finish_reason=FinishReason.LENGTH)
    choice = WholeChoice(AnsweredPrompt([7, 8]), output)
    completion = WITH_IDS.whole([choice], Usage(2, 2, 1))
    (said,) = choices_of(completion)
    assert said["message"]["content"] == "ab"
    assert said["finish_reason"] == "length"
    assert said["token_ids"] == [1, 2]
    assert completion["prompt_token_ids"] == [7, 8]
    assert completion["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


TEXT = 'Well.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
ID = "chatcmpl_abc"


def test_a_whole_message() -> None:
    calls = ChatMessages(ID, TOOLS)
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
    calls = ChatMessages(ID, TOOLS)
    message = calls.message(0, "Hello. \n")
    assert (message["content"], "tool_calls" in message) == ("Hello. \n", False)
    assert calls.finish_reason(0, "stop") == "stop"
    assert ChatMessages(ID, TOOLS).message(0, "")["content"] == ""


def test_deltas_add_up_to_the_message_of_their_choice() -> None:
    calls = ChatMessages(ID, TOOLS)
    content, arguments, heads = "", "", list[Any]()
    for place, character in enumerate(TEXT):
        delta: Any = calls.delta(2, character, is_last=place == len(TEXT) - 1)
        assert calls.delta(1, "x", is_last=False) == {"content": "x"}
        content += delta.get("content", "")
        for part in delta.get("tool_calls", []):
            arguments += part["function"]["arguments"]
            heads += [(part["id"], part["function"]["name"])] if "id" in part else []
    assert (content, arguments, heads) == ("Well.", '{"a": 1}', [("call_2_0_abc", "f")])


def test_one_call_alone_when_they_must_not_be_parallel() -> None:
    twice = TEXT + TEXT
    assert len(cast("list[Any]", ChatMessages(ID, TOOLS).message(0, twice)["tool_calls"])) == 2
    once = ChatMessages(ID, attrs.evolve(TOOLS, is_parallel=False)).message(0, twice)
    assert once["tool_calls"] == ChatMessages(ID, TOOLS).message(0, TEXT)["tool_calls"]
    assert once["content"] == "Well.Well."
    calls = ChatMessages(ID, attrs.evolve(TOOLS, is_parallel=False))
    parts = [calls.delta(0, piece, is_last=False) for piece in twice]
    assert {
        part["index"] for delta in parts for part in cast("Any", delta.get("tool_calls", []))
    } == {0}


def test_a_named_call_ends_with_stop() -> None:
    calls = ChatMessages(ID, attrs.evolve(TOOLS, choice=ToolChoiceValue(ToolChoice.REQUIRED, "f")))
    calls.message(0, TEXT)
    assert calls.finish_reason(0, "stop") == "stop"


def test_the_last_piece_ends_the_choice() -> None:
    output = GenerationOutput("a", [1], 1, finish_reason=FinishReason.STOP, stop_reason="END")
    (chunk,) = COMPLETION.chunks(output)
    assert chunk["choices"] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop", "stop_reason": "END"}
    ]


def test_a_whole_answer_keeps_the_order() -> None:
    end = GenerationOutput("", [], 0, index=1, finish_reason=FinishReason.LENGTH)
    choices = [
        WholeChoice(AnsweredPrompt([1], "p"), GenerationOutput("a", [], 0)),
        WholeChoice(AnsweredPrompt([2]), end),
    ]
    whole = COMPLETION_IDS.whole(choices, usage_of([Usage(1, 2, 1), Usage(3, 4)]))
    first, second = choices_of(whole)
    assert (first["text"], first["prompt_token_ids"]) == ("pa", [1])
    assert (second["index"], second["finish_reason"]) == (1, "length")
    assert whole["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 6,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_ids_of_a_prompt_come_with_its_echo() -> None:
    opening = COMPLETION_IDS.opening(1, AnsweredPrompt([4], "p"))
    assert opening is not None
    (choice,) = choices_of(opening)
    assert COMPLETION.opening(1, AnsweredPrompt([4])) is None
    assert (choice["text"], choice["prompt_token_ids"]) == ("p", [4])
    assert COMPLETION.usage_chunk(Usage(1, 2))["choices"] == []
    assert ANSWER.usage_chunk(Usage(1, 2))["choices"] == []
