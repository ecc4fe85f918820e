"""Chat and plain completions over HTTP: whole and streamed, batches, choices and logprobs."""

from typing import Any

import pytest
import trio
import trio.testing

from triolet.engine.errors import EngineDied
from triolet.engine.messages import FinishReason, RequestEvent, RequestEventKind

from ..fakes import Fail, FakeGenerator, Say, make_application, open_client

CHAT_PATH, PATH = "/v1/chat/completions", "/v1/completions"
CHAT: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
DIED = EngineDied("engine 0", "was killed by SIGKILL")
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


async def ask(path: str, body: dict[str, Any], generator: FakeGenerator | None = None) -> Any:
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", path, body)
    assert answer.status == 200, answer.body
    return list(answer.events()) if body.get("stream") else answer.json


async def test_a_whole_chat_completion() -> None:
    body = await ask(CHAT_PATH, {**CHAT, "return_token_ids": True})
    assert body["choices"][0]["message"]["content"] == "Hello world"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["token_ids"] == [0, 1, 2]
    assert body["prompt_token_ids"] == [7, 8, 9]
    assert body["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("body", [CHAT, {"prompt": "hi"}, {"prompt": ["hi", "ho"]}])
async def test_a_failure_within_a_stream_is_an_error_event(body: dict[str, Any]) -> None:
    generator = FakeGenerator([Say("a"), Fail(DIED, after_s=0.01)])
    path = CHAT_PATH if "messages" in body else PATH
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", path, {**body, "stream": True})
        last = list(answer.events())[-1]
        assert last["error"]["code"] == "engine_died"
        assert (await client.request("GET", "/live")).status == 200
    assert not generator.active


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_error_output_fails_a_completion(stream: bool) -> None:
    generator = FakeGenerator(finish_reason=FinishReason.ERROR)
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", PATH, {"prompt": "a", "stream": stream})
    if stream:
        assert list(answer.events())[-1]["error"]["code"] == "request_failed"
    else:
        assert (answer.status, answer.error["code"]) == (500, "request_failed")


async def test_a_whole_completion() -> None:
    generator = FakeGenerator()
    body = await ask(PATH, {"model": "toy", "prompt": "hi", "seed": 3}, generator)
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl")
    (choice,) = body["choices"]
    assert choice == {
        "index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop",
        "stop_reason": None,
    }  # fmt: skip
    assert body["usage"]["total_tokens"] == 6
    (call,) = generator.calls
    assert (call.prompt, call.streaming) == ("hi", False)
    assert (call.params.max_tokens, call.params.seed) == (16, 3)


@pytest.mark.parametrize(
    ("prompt", "echoed"),
    [
        ("ab", ["ab"]),
        ([97, 98], ["ab"]),
        (["a", "b"], ["a", "b"]),
        ([[97], [98, 99]], ["a", "bc"]),
        (["a", [98]], ["a", "b"]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_every_form_of_prompt_with_echo(
    prompt: object, echoed: list[str], stream: bool
) -> None:
    generator = FakeGenerator()
    request = {"prompt": prompt, "echo": True, "stream": stream, "max_tokens": 2}
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", PATH, request)
    texts = [""] * len(echoed)
    reasons: list[str | None] = [None] * len(echoed)
    for part in [*answer.events()][:-1] if stream else [answer.json]:
        for choice in part["choices"]:
            assert reasons[choice["index"]] is None
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == [f"{text}Hello" for text in echoed]
    assert reasons == ["length"] * len(echoed)
    assert len({call.request_id for call in generator.calls}) == len(echoed)


async def test_a_batch_runs_at_the_same_time(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator(
        scripts={"slow": [Say("s", after_s=10)], "quick": [Say("q", after_s=9)]}
    )
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", PATH, {"prompt": ["slow", "quick", "slow"]})
        assert [choice["text"] for choice in answer.json["choices"]] == ["s", "q", "s"]
        assert trio.current_time() < 11
        request = {"prompt": ["slow", "quick"], "stream": True}
        answer = await client.request("POST", PATH, request)
        assert trio.current_time() < 22
    *chunks, done = answer.events()
    assert done == {"type": "[DONE]"}
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [1, 0]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_of_nothing_more_asks_no_engine(stream: bool) -> None:
    generator = FakeGenerator()
    asked = {"prompt": ["ab", [99]], "echo": True, "max_tokens": 0, "return_token_ids": True}
    parts = await ask(PATH, {**asked, **(USAGE if stream else {})}, generator)
    parts = parts[:-1] if stream else [parts]
    assert generator.calls == []
    assert parts[-1]["usage"]["total_tokens"] == 4
    choices = [choice for part in parts for choice in part["choices"] if choice["text"]]
    assert [choice["text"] for choice in choices] == ["ab", "c"]
    assert [choice["prompt_token_ids"] for choice in choices] == [[1, 97, 98], [99]]


async def test_special_tokens_can_be_left_out() -> None:
    generator = FakeGenerator()
    await ask(PATH, {"prompt": "ab", "add_special_tokens": False}, generator)
    assert generator.calls[0].prompt == [97, 98]


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_aborts_the_whole_batch(
    stream: bool, autojump_clock: trio.testing.MockClock
) -> None:
    generator = FakeGenerator([Say("a"), Say("b", after_s=1000)])
    async with open_client(make_application(generator)) as client:
        await client.send("POST", PATH, {"prompt": ["x", "y", "z"], "stream": stream})
        await trio.testing.wait_all_tasks_blocked()
        assert len(generator.active) == 3
    await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() < 500
    assert len(generator.aborted) == 3


async def test_choices_of_a_chat() -> None:
    whole = await ask(CHAT_PATH, {**CHAT, "n": 2})
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    assert {choice["message"]["content"] for choice in whole["choices"]} == {"Hello world"}
    *chunks, usage, done = await ask(CHAT_PATH, {**CHAT, "n": 2, **USAGE})
    texts, roles, ends = ["", ""], [0, 0], [0, 0]
    for chunk in chunks:
        assert chunk["usage"] is None
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        roles[choice["index"]] += choice["delta"].get("role") == "assistant"
        ends[choice["index"]] += choice["finish_reason"] == "stop"
    assert (texts, roles, ends) == (["Hello world"] * 2, [1, 1], [1, 1])
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (3, 6)
    assert done == {"type": "[DONE]"}


async def test_choices_of_prompts_are_numbered_through() -> None:
    body = await ask(PATH, {"prompt": ["a", "b"], "n": 2, "echo": True})
    found = [(choice["index"], choice["text"][0]) for choice in body["choices"]]
    assert found == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    assert body["usage"]["prompt_tokens"] == 6
    asked = {"prompt": ["a", "b"], "n": 2, "echo": True, **USAGE}
    *chunks, usage, _ = await ask(PATH, asked)
    assert (usage["choices"], usage["usage"]) == ([], body["usage"])
    texts = [""] * 4
    for chunk in chunks:
        assert chunk["usage"] is None
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["aHello world"] * 2 + ["bHello world"] * 2


@pytest.mark.parametrize("asked", [{}, {"logprobs": 0}], ids=["no engine", "scored"])
async def test_echoes_alone_have_their_choices(asked: dict[str, Any]) -> None:
    body = await ask(
        PATH,
        {"prompt": ["a", "b"], "n": 2, "echo": True, "max_tokens": 0, **asked},
    )
    found = [(choice["index"], choice["text"]) for choice in body["choices"]]
    assert found == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
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
    assert [entry for found in said if found for entry in found["content"]] == content


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
    found = choice["logprobs"]
    assert found["tokens"] == ["\a", "\b", "\t", "\0"]
    assert found["token_logprobs"] == [None, -0.25, -0.25, -0.25]
    assert found["top_logprobs"] == [None, {"\b": -0.25}, {"\t": -0.25}, {"\0": -0.25}]
    assert found["text_offset"] == [0, 0, 1, 2]  # three tokens of two characters, and one more


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
        found = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            joined = [x for choice in found if choice["logprobs"] for x in choice["logprobs"][name]]
            assert joined == whole[index]["logprobs"][name]


async def test_a_deadline_is_named_as_far_as_there_are_words() -> None:
    generator = FakeGenerator(finish_reason=FinishReason.DEADLINE)
    body = await ask(
        CHAT_PATH,
        {**CHAT, "runtime": {"deadline_ms": 2500}},
        generator,
    )
    (choice,) = body["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "deadline")
    assert generator.calls[0].options.deadline_s == 2.5
    body = await ask(PATH, {"prompt": "a", "runtime": {"deadline_ms": 7}}, generator)
    assert body["choices"][0]["stop_reason"] == "deadline"
    assert generator.calls[1].options.deadline_s == 0.007


async def test_a_piece_without_text_is_sent_for_its_logprobs() -> None:
    generator = FakeGenerator([Say(""), Say("x")])
    chunks = await ask(
        CHAT_PATH,
        {**CHAT, "logprobs": True, "stream": True},
        generator,
    )
    found = [c["choices"][0]["logprobs"] for c in chunks if c.get("choices")]
    assert sum(len(item["content"]) for item in found if item) == 2


@pytest.mark.parametrize("path", [CHAT_PATH, PATH])
async def test_from_where_an_answer_is_inexact_is_told(path: str) -> None:
    moved = RequestEvent(RequestEventKind.MIGRATED, exact=False)
    exact = RequestEvent(RequestEventKind.MIGRATED)
    body = {**(CHAT if path == CHAT_PATH else {"prompt": "hi"}), "runtime": {"inexact_ok": True}}
    for event, expected in ((exact, []), (moved, [{"inexact_from": 2}])):
        generator = FakeGenerator([Say("a", events=(exact,)), Say("b"), Say("c", events=(event,))])
        (choice,) = (await ask(path, body, generator))["choices"]
        assert ([choice["runtime"]] if "runtime" in choice else []) == expected
        chunks = await ask(path, {**body, "stream": True}, generator)
        assert not any("error" in chunk for chunk in chunks)
        choices = [choice for chunk in chunks for choice in chunk.get("choices", [])]
        assert [choice["runtime"] for choice in choices if "runtime" in choice] == expected
        assert all(call.options.inexact_ok for call in generator.calls)
