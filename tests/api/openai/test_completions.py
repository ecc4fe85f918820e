"""Chunks and whole answers of completions."""

from typing import Any

from triolet.api.openai.completions import CompletionsAnswer, WholeChoice, usage_of
from triolet.api.schema.fields import JsonObject
from triolet.runtime.frontend.generation import FinishReason, GenerationOutput, Usage

ANSWER = CompletionsAnswer(completion_id="cmpl_1", created=5, model="toy")
WITH_IDS = CompletionsAnswer(completion_id="cmpl_1", created=5, model="toy", with_token_ids=True)


def choices_of(found: JsonObject) -> list[dict[str, Any]]:
    choices = found["choices"]
    assert isinstance(choices, list)
    return choices


def test_a_piece_without_text_is_silent_unless_ids_are_wanted() -> None:
    output = GenerationOutput("", [1], 1)
    assert ANSWER.chunks(2, output) == []
    (chunk,) = WITH_IDS.chunks(2, output)
    (choice,) = choices_of(chunk)
    assert (choice["index"], choice["token_ids"]) == (2, [1])


def test_the_last_piece_ends_the_choice() -> None:
    output = GenerationOutput("a", [1], 1, finish_reason=FinishReason.STOP, stop_reason="END")
    (chunk,) = ANSWER.chunks(0, output)
    assert chunk["choices"] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop", "stop_reason": "END"}
    ]


def test_a_whole_answer_keeps_the_order() -> None:
    choices = [
        WholeChoice(prompt_token_ids=[1], echoed="p", text="a"),
        WholeChoice(prompt_token_ids=[2]),
    ]
    whole = WITH_IDS.whole(choices, usage_of([Usage(1, 2, 1), Usage(3, 4)]))
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
    (choice,) = choices_of(WITH_IDS.echo_chunk(1, "p", [4]))
    assert (choice["text"], choice["prompt_token_ids"]) == ("p", [4])
    assert ANSWER.usage_chunk(Usage(1, 2))["choices"] == []
