"""Chunks and whole completions."""

from triolet.api.openai.chat import ChatAnswer
from triolet.engine.messages import FinishReason
from triolet.runtime.frontend.generation import GenerationOutput, GenerationStream, Usage

from ..fakes import FakeFlow, FakeGenerator, make_collector

ANSWER = ChatAnswer(completion_id="chatcmpl_1", created=5, model="toy")
WITH_IDS = ChatAnswer(completion_id="chatcmpl_1", created=5, model="toy", with_token_ids=True)


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
    assert ANSWER.chunks(output) == []
    assert len(WITH_IDS.chunks(output)) == 1


async def test_a_whole_completion() -> None:
    collector = make_collector(only_when_finished=True)
    stream = GenerationStream("r", [7, 8], [FakeFlow(collector, FakeGenerator())])
    collector.cached_tokens = 1
    collector.token_ids.extend([1, 2])
    collector.put(GenerationOutput("a", [1], 1))
    collector.put(GenerationOutput("b", [2], 2, finish_reason=FinishReason.LENGTH))
    completion = WITH_IDS.completion(await stream.collect())
    choices = completion["choices"]
    assert isinstance(choices, list)
    (choice,) = choices
    assert choice["message"]["content"] == "ab"
    assert choice["finish_reason"] == "length"
    assert choice["token_ids"] == [1, 2]
    assert completion["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_the_usage_chunk_has_no_choices() -> None:
    chunk = ANSWER.usage_chunk(Usage(1, 2))
    assert chunk["choices"] == []
