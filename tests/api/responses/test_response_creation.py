"""Responses over HTTP: whole and streamed, refused, aborted, cancelled; how long tokens wait."""

from typing import Any

import pytest
import trio
import trio.testing

from triolet.api.settings import ServerLimits
from triolet.engine.errors import EngineDied, PromptTooLong
from triolet.engine.messages import FinishReason
from triolet.runtime.errors import NoEngine, Overloaded
from triolet.runtime.text.prompts import ChatPrompt

from ..fakes import Fail, FakeGenerator, HttpClient, Say, make_application, open_client

CHAT = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
RESPONSE = {"model": "toy", "input": "hi"}
DIED = EngineDied("engine 0", "was killed by SIGKILL")


async def test_a_whole_response(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator()
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", "/v1/responses", {**RESPONSE, "instructions": "Be"})
    assert answer.status == 200
    response = answer.json
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "Hello world"
    assert response["usage"]["total_tokens"] == 6
    call = generator.calls[0]
    assert call.prompt == ChatPrompt(
        [{"role": "system", "content": "Be"}, {"role": "user", "content": "hi"}]
    )
    assert not call.streaming
    assert generator.aborted == []


async def test_a_streamed_response_has_the_events_in_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    generator = FakeGenerator([Say("a"), Say("b", after_s=1)])
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", "/v1/responses", {**RESPONSE, "stream": True})
    events = list(answer.events())
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added",
        "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    numbers = [event["sequence_number"] for event in events]
    assert numbers == [0, 1, 2, 3, 8, 16, 17, 18, 19, 20]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "code", "retry"),
    [
        (Overloaded(3.2), 429, "overloaded", "4"),
        (NoEngine(), 503, "no_engine", "1"),
        (DIED, 503, "engine_died", "2"),
        (PromptTooLong(200, 128), 400, "context_length_exceeded", None),
    ],
)
async def test_refusals_at_admission_are_http_errors(
    path: str, stream: bool, refusal: Exception, status: int, code: str, retry: str | None
) -> None:
    generator = FakeGenerator(refuse=refusal)
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", path, {**CHAT, **RESPONSE, "stream": stream})
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.headers.get("retry-after") == retry


async def test_an_engine_death_fails_a_whole_response_with_503() -> None:
    generator = FakeGenerator([Say("a"), Fail(DIED)])
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", "/v1/responses", RESPONSE)
        assert (answer.status, answer.error["code"]) == (503, "engine_died")
        chat = await client.request("POST", "/v1/chat/completions", CHAT)
    assert (chat.status, chat.error["code"]) == (503, "engine_died")
    assert chat.headers["retry-after"] == "2"


async def test_an_engine_error_output_fails_the_response() -> None:
    generator = FakeGenerator(finish_reason=FinishReason.ERROR)
    async with open_client(make_application(generator)) as client:
        for path in ("/v1/responses", "/v1/chat/completions"):
            answer = await client.request("POST", path, {**CHAT, **RESPONSE})
            assert (answer.status, answer.error["code"]) == (500, "request_failed")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_aborts(
    path: str, stream: bool, autojump_clock: trio.testing.MockClock
) -> None:
    generator = FakeGenerator([Say("a"), Say("b", after_s=1000)])
    application = make_application(generator)
    async with open_client(application) as client:
        await client.send("POST", path, {**CHAT, **RESPONSE, "stream": stream})
        await trio.testing.wait_all_tasks_blocked()
        assert len(generator.active) == 1
    await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() < 500
    assert len(generator.aborted) == 1
    assert application.responses.store.active == 0


async def test_cancel_by_http_ends_the_stream_as_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    generator = FakeGenerator([Say("a"), Say("b", after_s=1000)])
    application = make_application(generator)
    async with open_client(application) as streaming, open_client(application) as other:
        await streaming.send("POST", "/v1/responses", {**RESPONSE, "stream": True})
        await trio.testing.wait_all_tasks_blocked()
        (response_id,) = generator.active
        snapshot = await other.request("GET", f"/v1/responses/{response_id}")
        assert snapshot.json["status"] == "in_progress"
        cancelled = await other.request("POST", f"/v1/responses/{response_id}/cancel")
        assert cancelled.json["status"] == "cancelled"
        assert cancelled.json["output"][0]["content"][0]["text"] == "a"
        events = list((await streaming.read_answer()).events())
        assert events[-1]["type"] == "response.incomplete"
        assert events[-1]["response"] == cancelled.json
        again = await other.request("POST", f"/v1/responses/{response_id}/cancel")
        assert again.json == cancelled.json
        kept = await other.request("GET", f"/v1/responses/{response_id}")
        assert kept.json == cancelled.json
        unknown = await other.request("POST", "/v1/responses/resp_0/cancel")
        assert (unknown.status, unknown.error["code"]) == (404, "response_not_found")
    assert trio.current_time() < 500
    assert generator.aborted == [response_id]


async def test_pipelined_requests_are_answered_in_order() -> None:
    generator = FakeGenerator(scripts={"one": [Say("1")], "two": [Say("2")]})
    async with open_client(make_application(generator)) as client:
        await client.send("POST", "/v1/responses", {"input": "one"})
        second = HttpClient(client.stream)
        await second.send("POST", "/v1/responses", {"input": "two"})
        first_answer = await client.read_answer()
        rest, closed = client.protocol.trailing_data
        assert not closed
        if rest:
            second.protocol.receive_data(rest)
        second_answer = await second.read_answer()
    texts = [a.json["output"][0]["content"][0]["text"] for a in (first_answer, second_answer)]
    assert texts == ["1", "2"]


RESPONSES, COMPLETIONS = "/v1/responses", "/v1/completions"


@pytest.mark.parametrize(
    ("path", "body", "merge_s"),
    [
        (RESPONSES, {"input": "hi", "stream": True}, 0.25),
        (RESPONSES, {"input": "hi", "stream": True, "runtime": {"merge_ms": 40}}, 0.04),
        (RESPONSES, {"input": "hi", "stream": True, "runtime": {"merge_ms": 0}}, 0.0),
        (RESPONSES, {"input": "hi"}, 1.0),
        (RESPONSES, {"input": "hi", "runtime": {"merge_ms": 40}}, 1.0),
        ("/v1/chat/completions", {**CHAT, "stream": True}, 0.25),
        ("/v1/chat/completions", CHAT, 1.0),
        (COMPLETIONS, {"prompt": "hi", "stream": True}, 0.25),
        (COMPLETIONS, {"prompt": "hi"}, 1.0),
    ],
)
async def test_how_long_tokens_wait(path: str, body: dict[str, Any], merge_s: float) -> None:
    generator = FakeGenerator()
    application = make_application(generator, limits=ServerLimits(merge_ms=250))
    async with open_client(application) as client:
        assert (await client.request("POST", path, body)).status == 200
    assert [call.options.merge_s for call in generator.calls] == [merge_s]
