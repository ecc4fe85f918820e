"""Chat and plain completions over HTTP, whole and streamed, alone and in batches."""

from typing import Any

import pytest
import trio
import trio.testing

from triolet.engine.errors import EngineDied
from triolet.engine.messages import FinishReason

from ..fakes import Fail, FakeGenerator, Say, make_application, open_client

CHAT_PATH, PATH = "/v1/chat/completions", "/v1/completions"
CHAT = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
DIED = EngineDied("engine 0", "was killed by SIGKILL")
COUNT = [Say("one "), Say("two "), Say("three")]


async def test_a_whole_chat_completion() -> None:
    async with open_client(make_application()) as client:
        answer = await client.request("POST", CHAT_PATH, {**CHAT, "return_token_ids": True})
    body = answer.json
    assert body["choices"][0]["message"]["content"] == "Hello world"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["token_ids"] == [0, 1, 2]
    assert body["prompt_token_ids"] == [7, 8, 9]
    assert body["usage"]["completion_tokens"] == 3


async def test_a_streamed_chat_completion_with_usage() -> None:
    request = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    async with open_client(make_application()) as client:
        answer = await client.request("POST", CHAT_PATH, request)
    *chunks, usage, done = answer.events()
    assert done == {"type": "[DONE]"}
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 6
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == (
        "Hello world"
    )
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


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
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", PATH, {"model": "toy", "prompt": "hi", "seed": 3})
    body = answer.json
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl")
    assert body["choices"] == [
        {
            "index": 0,
            "text": "Hello world",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
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
    request = {
        "prompt": ["ab", [99]],
        "echo": True,
        "max_tokens": 0,
        "return_token_ids": True,
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    }
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", PATH, request)
    assert generator.calls == []
    parts = list(answer.events())[:-1] if stream else [answer.json]
    assert parts[-1]["usage"]["total_tokens"] == 4
    choices = [choice for part in parts for choice in part["choices"] if choice["text"]]
    assert [choice["text"] for choice in choices] == ["ab", "c"]
    assert [choice["prompt_token_ids"] for choice in choices] == [[1, 97, 98], [99]]


async def test_special_tokens_can_be_left_out() -> None:
    generator = FakeGenerator()
    async with open_client(make_application(generator)) as client:
        await client.request("POST", PATH, {"prompt": "ab", "add_special_tokens": False})
    assert generator.calls[0].prompt == [97, 98]


async def test_usage_of_a_batch_is_the_sum() -> None:
    request = {"prompt": ["a", "b"], "stream": True, "stream_options": {"include_usage": True}}
    async with open_client(make_application()) as client:
        answer = await client.request("POST", PATH, request)
    *_, usage, done = answer.events()
    assert done == {"type": "[DONE]"}
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 12)


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
