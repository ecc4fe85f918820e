"""Comments on silent event streams: when they come, and that others have none."""

from typing import Any

import pytest
import trio.testing
from openai._streaming import ServerSentEvent, SSEDecoder

from triolet.api.http.keep_alive import COMMENT, COMMENT_LINE
from triolet.nurseries.tasks.service import open_service

from ..fakes import FakeGenerator, Say, make_application, open_client
from ..streams.frontends import KEYS, open_server

ONE = KEYS["one"]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "hi", "stream": True},
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi", "stream": True},
}
SLOW = [Say("a"), Say("b", after_s=100.0), Say("c", after_s=7.0), Say("d", after_s=20.0)]


async def body_of(path: str, generator: FakeGenerator, period_s: float) -> bytes:
    application = make_application(generator, sse_keep_alive_s=period_s)
    async with (
        open_service(application.keep_alive.run, name="keep-alive"),
        open_client(application) as client,
    ):
        answer = await client.request("POST", path, BODIES[path])
    assert not application.keep_alive._streams
    assert answer.status == 200
    return answer.body


@pytest.mark.parametrize("path", BODIES)
async def test_a_silent_stream_says_something_within_each_period(
    path: str, autojump_clock: trio.testing.MockClock
) -> None:
    body = await body_of(path, FakeGenerator(SLOW), 15.0)
    assert COMMENT == b": keep-alive\n\n"
    assert COMMENT_LINE == b": keep-alive\n"
    assert 6 <= body.count(COMMENT_LINE) <= 8  # in 100 s and 20 s of silence, and not in 7 s
    plain = await body_of(path, FakeGenerator(SLOW), 0)
    assert COMMENT_LINE not in plain
    found, wanted = map(events_of, (body, plain))
    assert len(found) == len(wanted), "comments stand between whole events"
    assert all(event.data == "[DONE]" or event.json() for event in found)


def events_of(body: bytes) -> list[ServerSentEvent]:
    """As OpenAI's client reads it, which takes an empty line too many for an event."""
    return list(SSEDecoder().iter_bytes(iter([body])))


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_with_tokens_has_none(
    path: str, autojump_clock: trio.testing.MockClock
) -> None:
    body = await body_of(path, FakeGenerator([Say("a", after_s=7.0)] * 20), 15.0)
    assert COMMENT_LINE not in body


async def test_a_stream_that_another_frontend_has_says_something(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_server() as server:
        own, other = server.applications
        async with (
            open_service(own.keep_alive.run, name="keep-alive"),
            open_client(other) as beside,
            open_client(own) as client,
        ):
            body = {"input": "hi", "background": True}
            begun = await beside.request("POST", "/v1/responses", body, ONE)
            path = f"/v1/responses/{begun.json['id']}?stream=true"
            answer = await client.request("GET", path, headers=ONE)
        assert 1000 / 20 <= answer.body.count(COMMENT_LINE) <= 1000 / 14
        server.nursery.cancel_scope.cancel("the test is over")
