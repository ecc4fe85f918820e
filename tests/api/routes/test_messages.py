"""Messages over HTTP, as Anthropic's clients send them: whole, streamed, counted, refused."""

from typing import Any

import pytest

from triolet.engine.errors import EngineDied, PromptTooLong
from triolet.engine.messages import FinishReason

from ..anthropic.events import events_of, message_of
from ..fakes import Fail, FakeGenerator, Say, make_application, open_client

PATH = "/v1/messages"
BODY: dict[str, Any] = {
    "model": "claude-opus-5-5",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
}
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-app": "cli"}
MESSAGE = {
    "type": "message",
    "role": "assistant",
    "model": "toy",
    "content": [{"type": "text", "text": "Hello world"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 3,
    },
}
DIED = EngineDied("engine 0", "was killed by SIGKILL")


async def test_a_whole_message() -> None:
    async with open_client(make_application()) as client:
        answer = await client.request("POST", f"{PATH}?beta=true", BODY, HEADERS)
    message = answer.json
    assert message.pop("id").startswith("msg_00")
    assert message == MESSAGE
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


async def test_a_stream_adds_up_to_the_whole_message() -> None:
    async with open_client(make_application()) as client:
        answer = await client.request("POST", PATH, {**BODY, "stream": True}, HEADERS)
        message = message_of(events_of(answer.body))
        assert (await client.request("GET", "/live")).status == 200
    assert message.pop("id").startswith("msg_00")
    assert message == MESSAGE


async def test_the_tokens_of_a_prompt_are_counted() -> None:
    body = {"model": "toy", "messages": BODY["messages"]}
    async with open_client(make_application()) as client:
        counted = await client.request("POST", f"{PATH}/count_tokens", body, HEADERS)
        asked = {"model": "toy", "messages": BODY["messages"]}
        tokens = await client.request("POST", "/tokenize", asked)
    assert counted.json == {"input_tokens": tokens.json["count"]}


async def test_a_message_of_one_key_is_made_once() -> None:
    generator = FakeGenerator()
    headers = {**HEADERS, "idempotency-key": "k"}
    async with open_client(make_application(generator)) as client:
        for body in (BODY, {**BODY, "stream": True}):
            keyed = {**headers, "idempotency-key": f"k{len(generator.calls)}"}
            first, again = [await client.request("POST", PATH, body, keyed) for _ in range(2)]
            assert again.headers["idempotent-replayed"] == "true"
            if body.get("stream"):
                ids = {message_of(events_of(each.body))["id"] for each in (first, again)}
                assert len(ids) == 1
            else:
                assert first.json == again.json
    assert len(generator.calls) == 2


REFUSED: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("POST", PATH, {**BODY, "max_tokens": 0}, 400, "invalid_request_error"),
    ("POST", PATH, {**BODY, "model": "gpt"}, 404, "not_found_error"),
    ("POST", f"{PATH}/batches", BODY, 404, "not_found_error"),
    ("GET", PATH, {}, 405, "invalid_request_error"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "kind"), REFUSED)
async def test_refusals_are_anthropics_error_objects(
    method: str, path: str, body: dict[str, Any], status: int, kind: str
) -> None:
    async with open_client(make_application()) as client:
        answer = await client.request(method, path, body, HEADERS)
        other = await client.request("POST", "/v1/chat/completions", {})
    assert (answer.status, answer.json["type"], answer.error["type"]) == (status, "error", kind)
    assert answer.json["request_id"] == answer.headers["request-id"]
    assert "type" not in other.json, "an error of another protocol is another"
    assert "request-id" not in other.headers


async def test_a_key_comes_as_anthropics_clients_send_it() -> None:
    async with open_client(make_application(api_keys=("k",))) as client:
        answer = await client.request("POST", PATH, BODY, {**HEADERS, "x-api-key": "k"})
        assert answer.status == 200
        answer = await client.request("POST", PATH, BODY, {**HEADERS, "x-api-key": "other"})
        assert (answer.status, answer.error["type"]) == (401, "authentication_error")
        assert answer.headers["x-should-retry"] == "false"


async def test_a_prompt_that_is_too_long_is_refused_in_anthropics_words() -> None:
    generator = FakeGenerator(refuse=PromptTooLong(70_000, 65_536))
    async with open_client(make_application(generator)) as client:
        for stream in (False, True):
            answer = await client.request("POST", PATH, {**BODY, "stream": stream}, HEADERS)
            assert (answer.status, answer.error["param"]) == (400, "messages")
            assert answer.error["message"] == "prompt is too long: 70000 tokens > 65536 maximum"


async def test_a_failure_within_a_stream_is_an_error_event() -> None:
    generator = FakeGenerator([Say("a"), Fail(DIED, after_s=0.01)])
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", PATH, {**BODY, "stream": True})
        *_, last = events_of(answer.body)
        assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")
        assert last["error"]["code"] == "engine_died"
        whole = await client.request("POST", PATH, BODY)
        assert (whole.status, whole.error["type"]) == (503, "overloaded_error")


async def test_an_error_of_the_engine_is_one_of_the_api() -> None:
    generator = FakeGenerator(finish_reason=FinishReason.ERROR)
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", PATH, BODY)
    assert (answer.status, answer.error["type"]) == (500, "api_error")


async def test_tools_of_other_servers_are_ignored_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    async with open_client(make_application()) as client:
        for _ in range(2):
            answer = await client.request("POST", PATH, {**BODY, "tools": [search]})
            assert answer.status == 200
    assert caplog.text.count("tools of the type web_search_20250305 are ignored") == 1
