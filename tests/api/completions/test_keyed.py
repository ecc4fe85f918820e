"""Chat completions and completions with a key, whole and streamed: executed once, and kept."""

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from triolet.api.settings import ServerLimits
from triolet.api.streams.executions import INTERRUPTED
from triolet.runtime.errors import NoEngine, Overloaded, RequestFailed

from ..chunks import frames_of, said_of
from ..fakes import Answer, Fail, Say
from ..streams.frontends import REPLAYED, at_once, open_keyed

CHAT: dict[str, Any] = {"path": "chat/completions", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"path": "completions", "prompt": "hi"}
BODIES = pytest.mark.parametrize("body", [CHAT, COMPLETION], ids=["chat", "completion"])
FRONTENDS = pytest.mark.parametrize("frontends", [(0, 0), (0, 1), (1, 0)])
TIMES = pytest.mark.parametrize(
    "after_s", [0.0, 2.5, 20.0], ids=["together", "within", "after the end"]
)
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
STREAMS: dict[str, dict[str, Any]] = {
    "chat": {**CHAT, **USAGE},
    "choices": {**CHAT, **USAGE, "n": 3, "return_token_ids": True},
    "logprobs": {**CHAT, **USAGE, "logprobs": True, "top_logprobs": 1},
    "completions": {**COMPLETION, **USAGE, "prompt": ["hi", "ho"], "n": 2, "echo": True},
    "scored": {**COMPLETION, **USAGE, "echo": True, "logprobs": 1},
    "many choices": {**COMPLETION, **USAGE, "n": 20},
}


@BODIES
@FRONTENDS
@TIMES
async def test_both_get_the_answer_of_one_execution(
    body: dict[str, Any],
    frontends: tuple[int, int],
    after_s: float,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_keyed() as keyed:
        first, second = await at_once(keyed, *frontends, after_s=after_s, **body)
        assert first.status == second.status == 200, (first.body, second.body)
        assert first.body == second.body
        assert len(keyed.executed) == 1
        assert {REPLAYED in first.headers, REPLAYED in second.headers} == {False, True}
        other = await keyed.post(0, **{**body, "seed": 5})
        assert (other.status, other.error["code"]) == (422, "idempotency_key_reused")


@BODIES
async def test_it_goes_on_when_its_client_leaves(
    body: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed() as keyed:
        with trio.move_on_after(3):
            await keyed.post(0, **body)
        assert (await keyed.post(1, **body)).status == 200
        assert len(keyed.executed) == 1
        assert not keyed.server.generators[0].aborted


@BODIES
async def test_one_key_is_for_one_route(
    body: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed() as keyed:
        assert (await keyed.post(0)).status == 200
        assert (await keyed.post(1, **body)).status == 422
        assert (await keyed.post(0, **body, stream=True)).status == 422
        assert len(keyed.executed) == 1


@pytest.mark.parametrize("name", STREAMS)
@FRONTENDS
@TIMES
async def test_both_get_the_stream_of_one_execution(
    name: str,
    frontends: tuple[int, int],
    after_s: float,
    autojump_clock: trio.testing.MockClock,
) -> None:
    body = STREAMS[name]
    async with open_keyed() as keyed:
        first, second = await at_once(keyed, *frontends, after_s=after_s, **body)
        assert first.status == second.status == 200, (first.body, second.body)
        said = [said_of(list(frames_of(answer.body))) for answer in (first, second)]
        assert said[0] == said[1]
        assert said[0][1][-1] == "[DONE]"
        ids = {each.rpartition("-")[0] or each for each in keyed.executed}
        assert len(ids) == 1
        assert {choice["chunk"]["id"] for choice in said[0][0].values()} == ids
        assert [REPLAYED in first.headers, REPLAYED in second.headers].count(True) == 1
        for stream in (True, False):
            other = await keyed.post(0, **{**body, "stream": stream, "seed": 5})
            assert (other.status, other.error["code"]) in (
                (422, "idempotency_key_reused"),
                (400, "invalid_value"),
            )


async def test_a_stream_goes_on_when_its_client_leaves(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_keyed() as keyed:
        with trio.move_on_after(3):
            await keyed.post(0, **STREAMS["chat"])
        await trio.sleep(100)
        answer = await keyed.post(1, **STREAMS["chat"])
        (choice,) = said_of(list(frames_of(answer.body)))[0].values()
        assert choice["text"] == "012345678"
        assert len(keyed.executed) == 1
        assert not keyed.server.generators[0].aborted


async def test_an_echo_with_nothing_computed_is_one_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for more in ({}, USAGE):
        async with open_keyed() as keyed:
            body = {**COMPLETION, **more, "echo": True, "max_tokens": 0}
            first, second = await at_once(keyed, 0, 1, **body)
            assert first.status == 200
            assert first.body == second.body
            assert not keyed.executed


@BODIES
async def test_an_answer_that_was_forgotten_is_gone_until_its_time_is_over(
    body: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed() as keyed:
        kept = keyed.server.applications[0].completions.store.ended
        kept.bytes_max = 0
        assert (await keyed.post(0, **body)).status == 200
        answer = await keyed.post(1, **body)
        assert (answer.status, answer.error["code"]) == (410, "idempotency_answer_gone")
        assert "make room" in answer.error["message"]
        assert len(keyed.executed) == 1
    async with open_keyed() as keyed:
        assert (await keyed.post(0, **body)).status == 200
        await trio.sleep(ServerLimits().ended_s + 1)
        assert (await keyed.post(0, **body)).status == 200
        assert len(keyed.executed) == 2


@BODIES
@pytest.mark.parametrize("more", [{}, USAGE], ids=["whole", "stream"])
async def test_what_was_interrupted_is_a_conflict(
    body: dict[str, Any], more: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed() as keyed, trio.open_nursery() as nursery:
        nursery.start_soon(partial(keyed.post, 0, **body, **more))
        await trio.sleep(2.5)
        keyed.server.applications[0].completions.store.cancel_all("the drain's grace is over")
        answer = await keyed.post(1, **body, **more)
        assert (answer.status, answer.error["code"]) == (409, "idempotency_answer_lost")
        assert INTERRUPTED in answer.error["message"]
        assert len(keyed.executed) == 1


RESPONSE: dict[str, Any] = {}
ALL = pytest.mark.parametrize(
    "body", [RESPONSE, CHAT, COMPLETION], ids=["response", "chat", "completion"]
)


@ALL
async def test_a_refusal_is_no_answer(
    body: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed() as keyed:
        for generator in keyed.server.generators:
            generator.refuse = Overloaded(limit="requests_max")
        assert [answer.status for answer in await at_once(keyed, 0, 1, **body)] == [429, 429]
        for generator in keyed.server.generators:
            generator.refuse = None
        assert (await keyed.post(1, **body)).status == 200
        assert len(keyed.executed) == 1


@ALL
async def test_a_failure_is_one_unless_it_asks_to_come_again(
    body: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    for failure, status, executed in (
        (RequestFailed("r", "it broke"), 500, 1),
        (NoEngine(), 503, 3),
    ):
        async with open_keyed() as keyed:
            keyed.use(Say("a"), Fail(failure, after_s=2))
            answers: list[Answer] = await at_once(keyed, 0, 1, after_s=0.5, **body)
            answers.append(await keyed.post(1, **body))
            assert [answer.status for answer in answers] == [status] * 3
            assert len(keyed.executed) == executed
