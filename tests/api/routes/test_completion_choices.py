"""Several choices and logprobs over HTTP, whole and streamed, of chat and of completions."""

from typing import Any

import pytest

from triolet.engine.messages import FinishReason

from ..fakes import FakeGenerator, Say, make_application, open_client

CHAT_PATH, PATH = "/v1/chat/completions", "/v1/completions"
CHAT: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


async def ask(path: str, body: dict[str, Any], generator: FakeGenerator | None = None) -> Any:
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", path, body)
    assert answer.status == 200, answer.body
    return list(answer.events()) if body.get("stream") else answer.json


async def test_choices_of_a_chat() -> None:
    body = await ask(CHAT_PATH, {**CHAT, "n": 3})
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in body["choices"]} == {"Hello world"}
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 9)


async def test_choices_of_a_streamed_chat() -> None:
    *chunks, usage, done = await ask(CHAT_PATH, {**CHAT, "n": 2, **USAGE})
    texts, roles, ends = ["", ""], [0, 0], [0, 0]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        roles[choice["index"]] += "role" in choice["delta"]
        ends[choice["index"]] += choice["finish_reason"] == "stop"
    assert (texts, roles, ends) == (["Hello world"] * 2, [1, 1], [1, 1])
    assert usage["usage"]["completion_tokens"] == 6
    assert done == {"type": "[DONE]"}


async def test_choices_of_prompts_are_numbered_through() -> None:
    body = await ask(PATH, {"prompt": ["a", "b"], "n": 2, "echo": True})
    told = [(choice["index"], choice["text"][0]) for choice in body["choices"]]
    assert told == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    assert body["usage"]["prompt_tokens"] == 6
    *chunks, _ = await ask(PATH, {"prompt": ["a", "b"], "n": 2, "echo": True, "stream": True})
    texts = [""] * 4
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["aHello world"] * 2 + ["bHello world"] * 2


@pytest.mark.parametrize("asked", [{}, {"logprobs": 0}], ids=["no engine", "scored"])
async def test_echoes_alone_have_their_choices(asked: dict[str, Any]) -> None:
    body = await ask(PATH, {"prompt": ["a", "b"], "n": 2, "echo": True, "max_tokens": 0, **asked})
    told = [(choice["index"], choice["text"]) for choice in body["choices"]]
    assert told == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    once = await ask(PATH, {"prompt": ["a", "b"], "echo": True, "max_tokens": 0, **asked})
    assert body["usage"] == once["usage"]


async def test_a_streamed_chat_tells_the_prompts_ids_as_a_whole_one_does() -> None:
    asked = {**CHAT, "return_token_ids": True, "n": 2}
    whole = await ask(CHAT_PATH, asked)
    *chunks, _ = await ask(CHAT_PATH, {**asked, "stream": True})
    openings = chunks[:2]
    assert [chunk["prompt_token_ids"] for chunk in openings] == [whole["prompt_token_ids"]] * 2
    assert not any("prompt_token_ids" in chunk for chunk in chunks[2:])
    plain = await ask(CHAT_PATH, {**CHAT, "stream": True})
    assert "prompt_token_ids" not in plain[0]


async def test_logprobs_of_a_chat() -> None:
    asked = {"logprobs": True, "top_logprobs": 2}
    (choice,) = (await ask(CHAT_PATH, {**CHAT, **asked}))["choices"]
    content = choice["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[0], [1], [2]]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2, 2]
    chunks = await ask(CHAT_PATH, {**CHAT, **asked, "stream": True})
    said = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk.get("choices")]
    assert [entry for told in said if told for entry in told["content"]] == content


async def test_prompt_logprobs_of_a_chat_are_vllms() -> None:
    body = await ask(CHAT_PATH, {**CHAT, "prompt_logprobs": 1})
    assert body["prompt_logprobs"] == [
        None,
        {"8": {"logprob": -0.25, "rank": 1, "decoded_token": "\b"}},
        {"9": {"logprob": -0.25, "rank": 1, "decoded_token": "\t"}},
    ]
    assert body["choices"][0]["logprobs"] is None


async def test_logprobs_of_a_completion_as_lm_eval_reads_them() -> None:
    body = await ask(PATH, {"prompt": "ab", "echo": True, "max_tokens": 1, "logprobs": 1})
    (choice,) = body["choices"]
    told = choice["logprobs"]
    assert told["tokens"] == ["\a", "\b", "\t", "\0"]
    assert told["token_logprobs"] == [None, -0.25, -0.25, -0.25]
    assert told["top_logprobs"] == [None, {"\b": -0.25}, {"\t": -0.25}, {"\0": -0.25}]
    assert told["text_offset"] == [0, 0, 1, 2]  # three tokens of two characters, and one more


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_alone_can_be_scored(stream: bool) -> None:
    asked = {"prompt": "ab", "echo": True, "max_tokens": 0, "logprobs": 0}
    body = await ask(PATH, {**asked, **(USAGE if stream else {})})
    if stream:
        first, end, usage, _ = body
        (choice,), usage = first["choices"], usage["usage"]
        assert end["choices"][0]["finish_reason"] == "length"
    else:
        (choice,), usage = body["choices"], body["usage"]
        assert choice["finish_reason"] == "length"
    assert choice["text"] == "ab"
    assert choice["logprobs"]["tokens"] == ["\a", "\b", "\t"]
    assert usage["completion_tokens"] == 0


async def test_streamed_logprobs_of_a_completion_are_the_whole_ones() -> None:
    asked = {"prompt": ["ab"], "echo": True, "logprobs": 1, "n": 2}
    whole = (await ask(PATH, asked))["choices"]
    *chunks, _ = await ask(PATH, {**asked, "stream": True})
    for index in range(2):
        told = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            joined = [x for choice in told if choice["logprobs"] for x in choice["logprobs"][name]]
            assert joined == whole[index]["logprobs"][name]


async def test_a_deadline_is_told_as_far_as_there_are_words() -> None:
    generator = FakeGenerator(finish_reason=FinishReason.DEADLINE)
    body = await ask(CHAT_PATH, {**CHAT, "runtime": {"deadline_ms": 2500}}, generator)
    (choice,) = body["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "deadline")
    assert generator.calls[0].deadline_s == 2.5
    body = await ask(PATH, {"prompt": "a", "runtime": {"deadline_ms": 7}}, generator)
    assert body["choices"][0]["stop_reason"] == "deadline"
    assert generator.calls[1].deadline_s == 0.007


async def test_a_piece_without_text_is_told_for_its_logprobs() -> None:
    generator = FakeGenerator([Say(""), Say("x")])
    chunks = await ask(CHAT_PATH, {**CHAT, "logprobs": True, "stream": True}, generator)
    told = [c["choices"][0]["logprobs"] for c in chunks if c.get("choices")]
    assert sum(len(item["content"]) for item in told if item) == 2
