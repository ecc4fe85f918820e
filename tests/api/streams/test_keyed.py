"""A request with an idempotency key, sent to any frontend and however often, is executed once."""

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from triolet.api.settings import ServerLimits
from triolet.api.streams.executions import INTERRUPTED
from triolet.api.streams.keyed import GIVEN_UP
from triolet.runtime.errors import NoEngine, Overloaded, RequestFailed

from ..chunks import frames_of, said_of
from ..fakes import Answer, Fail, Say, open_client
from .frontends import KEYS, REPLAYED, STEADY, at_once, open_keyed

Body = dict[str, Any]
RESPONSE: Body = {}
CHAT: Body = {"path": "chat/completions", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: Body = {"path": "completions", "prompt": "hi"}
OTHERS = pytest.mark.parametrize("body", [CHAT, COMPLETION], ids=["chat", "completion"])
ALL = pytest.mark.parametrize(
    "body", [RESPONSE, CHAT, COMPLETION], ids=["response", "chat", "completion"]
)
USAGE: Body = {"stream": True, "stream_options": {"include_usage": True}}
STREAMS: dict[str, Body] = {
    "chat": {**CHAT, **USAGE},
    "choices": {**CHAT, **USAGE, "n": 3, "return_token_ids": True},
    "logprobs": {**CHAT, **USAGE, "logprobs": True, "top_logprobs": 1},
    "completions": {**COMPLETION, **USAGE, "prompt": ["hi", "ho"], "n": 2, "echo": True},
    "scored": {**COMPLETION, **USAGE, "echo": True, "logprobs": 1},
    "many choices": {**COMPLETION, **USAGE, "n": 20},
}
WHENEVER = pytest.mark.parametrize(
    "after_s", [0.0, 2.5, 20.0], ids=["together", "within", "after the end"]
)
# The home of the key, and who are asked: all ways there are, but for the names of the two.
WAYS = pytest.mark.parametrize(
    ("home", "frontends"), [(0, (0, 0)), (0, (0, 1)), (0, (1, 0)), (1, (0, 0))]
)
HOMES = pytest.mark.parametrize("home", [0, 1])


@ALL
@WHENEVER
@WAYS
async def test_both_get_the_whole_answer_of_one_execution(
    body: Body,
    home: int,
    frontends: tuple[int, int],
    after_s: float,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_keyed(home) as keyed:
        first, second = await at_once(keyed, *frontends, after_s=after_s, **body)
        assert first.status == second.status == 200, (first.body, second.body)
        assert first.body == second.body
        assert len(keyed.executed) == 1
        assert first.json["id"] in keyed.executed[0]
        assert {REPLAYED in first.headers, REPLAYED in second.headers} == {False, True}
        assert after_s == 0 or second.headers[REPLAYED] == "true"


@WHENEVER
@WAYS
async def test_both_read_all_events_of_one_execution(
    home: int,
    frontends: tuple[int, int],
    after_s: float,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_keyed(home) as keyed:
        first, second = await at_once(keyed, *frontends, after_s=after_s, stream=True)
        events, again = list(first.events()), list(second.events())
        for found in (events, again):
            text = "".join([event.get("delta", "") for event in found])
            assert text == "012345678"
        for place in (0, 1, 2, 3, -4, -3, -2, -1):
            assert events[place] == again[place]
        assert keyed.executed == [events[0]["response"]["id"]]


@pytest.mark.parametrize("name", STREAMS)
@WAYS
@WHENEVER
async def test_both_get_the_stream_of_one_execution(
    name: str,
    home: int,
    frontends: tuple[int, int],
    after_s: float,
    autojump_clock: trio.testing.MockClock,
) -> None:
    body = STREAMS[name]
    async with open_keyed(home) as keyed:
        first, second = await at_once(keyed, *frontends, after_s=after_s, **body)
        assert first.status == second.status == 200, (first.body, second.body)
        said = [said_of(list(frames_of(answer.body))) for answer in (first, second)]
        assert said[0] == said[1]
        assert said[0][1][-1] == "[DONE]"
        ids = {each.rpartition("-")[0] or each for each in keyed.executed}
        assert len(ids) == 1
        assert {choice["chunk"]["id"] for choice in said[0][0].values()} == ids
        assert [REPLAYED in first.headers, REPLAYED in second.headers].count(True) == 1


@HOMES
async def test_a_response_in_the_background_is_begun_once(
    home: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed(home) as keyed:
        answers = await at_once(keyed, 0, 1, 0, background=True)
        assert len({answer.json["id"] for answer in answers}) == 1
        assert keyed.executed == [answers[0].json["id"]]


@ALL
@pytest.mark.parametrize("stream", [False, True])
@HOMES
async def test_another_body_is_refused_whether_it_runs_or_ended(
    body: Body, home: int, stream: bool, autojump_clock: trio.testing.MockClock
) -> None:
    body = {**body, "stream": stream}
    async with open_keyed(home) as keyed, trio.open_nursery() as nursery:
        nursery.start_soon(partial(keyed.post, 0, **body))
        await trio.sleep(1.5)
        for _ in range(2):
            for other in ({**body, "top_p": 0.5}, {**body, "stream": not stream}):
                for frontend in (0, 1):
                    answer = await keyed.post(frontend, **other)
                    assert (answer.status, answer.error["code"]) == (422, "idempotency_key_reused")
                    assert answer.error["param"] == "Idempotency-Key"
            await trio.sleep(20)
        assert len(keyed.executed) == 1


@OTHERS
async def test_one_key_is_for_one_route(body: Body, autojump_clock: trio.testing.MockClock) -> None:
    async with open_keyed() as keyed:
        assert (await keyed.post(0)).status == 200
        assert (await keyed.post(1, **body)).status == 422
        assert len(keyed.executed) == 1


@HOMES
async def test_a_key_is_its_principals(home: int, autojump_clock: trio.testing.MockClock) -> None:
    async with open_keyed(home) as keyed:
        mine = await keyed.post(0)
        others = await keyed.post(0, client="two")
        assert mine.json["id"] != others.json["id"]
        assert len(keyed.executed) == 2


async def test_what_is_no_key_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with open_keyed() as keyed:
        application = keyed.server.applications[0]
        for key in ("a b", "x" * 256):
            headers = {**KEYS["one"], "idempotency-key": key}
            async with open_client(application) as connection:
                answer = await connection.request("POST", "/v1/responses", {"input": "hi"}, headers)
            assert (answer.status, answer.error["code"]) == (400, "invalid_idempotency_key")
        assert not keyed.executed


@ALL
@HOMES
async def test_what_was_refused_before_its_admission_is_executed_when_it_comes_again(
    body: Body, home: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed(home) as keyed:
        for generator in keyed.server.generators:
            generator.refuse = Overloaded(limit="requests_max")
        assert [answer.status for answer in await at_once(keyed, 0, 1, 1, **body)] == [429] * 3
        assert (await keyed.post(0, **body, temperature=-1)).status == 400
        for generator in keyed.server.generators:
            generator.refuse = None
        # It was not executed, so another body does no harm.
        assert (await keyed.post(1, **body, top_p=0.5)).status == 200
        assert len(keyed.executed) == 1


@ALL
@HOMES
async def test_a_failure_is_an_answer_unless_it_asks_to_come_again(
    body: Body, home: int, autojump_clock: trio.testing.MockClock
) -> None:
    for failure, status, executed in (
        (RequestFailed("r", "it broke"), 500, 1),
        (NoEngine(), 503, 3),
    ):
        async with open_keyed(home) as keyed:
            keyed.use(Say("a"), Fail(failure, after_s=2))
            answers: list[Answer] = await at_once(keyed, 0, 1, after_s=0.5, **body)
            answers.append(await keyed.post(1, **body))
            assert [answer.status for answer in answers] == [status] * 3
            assert status == 503 or "it broke" in answers[-1].error["message"]
            assert len(keyed.executed) == executed


@ALL
@pytest.mark.parametrize("stream", [False, True])
async def test_it_goes_on_when_its_client_leaves(
    body: Body, stream: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed() as keyed:
        with trio.move_on_after(3):
            await keyed.post(0, **body, stream=stream)
        await trio.sleep(100 * stream)
        answer = await keyed.post(1, **body, stream=stream)
        assert answer.status == 200
        assert len(keyed.executed) == 1
        assert not keyed.server.generators[0].aborted
        if stream and body:
            (choice,) = said_of(list(frames_of(answer.body)))[0].values()
            assert choice["text"] == "012345678"
        else:
            assert "012345678" in answer.body.decode()


@HOMES
async def test_one_whose_client_left_before_its_admission_is_executed_by_the_next(
    home: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed(home) as keyed:
        keyed.use(*STEADY, opens_after_s=5)
        answers: list[Answer] = []

        async def wait() -> None:
            answers.append(await keyed.post(1))

        async with trio.open_nursery() as nursery:
            with trio.move_on_after(3):
                nursery.start_soon(wait)
                await trio.lowlevel.checkpoint()
                await keyed.post(0)
        assert [answer.status for answer in answers] == [200]
        assert len(keyed.executed) == 1


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


@HOMES
async def test_an_answer_that_was_deleted_is_gone(
    home: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed(home) as keyed:
        first = await keyed.post(0)
        async with open_client(keyed.server.applications[1]) as connection:
            path = f"/v1/responses/{first.json['id']}"
            assert (await connection.request("DELETE", path, None, KEYS["one"])).status == 200
        for frontend in (0, 1):
            answer = await keyed.post(frontend)
            assert (answer.status, answer.error["code"]) == (410, "idempotency_answer_gone")
            assert "deleted" in answer.error["message"]
        assert len(keyed.executed) == 1


@ALL
@HOMES
async def test_an_answer_that_was_forgotten_is_gone_until_its_time_is_over(
    body: Body, home: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed(home) as keyed:
        application = keyed.server.applications[0]
        for service in (application.responses, application.completions):
            service.store.ended.bytes_max = 0
        assert (await keyed.post(0, **body)).status == 200
        answer = await keyed.post(1, **body)
        assert (answer.status, answer.error["code"]) == (410, "idempotency_answer_gone")
        assert "make room" in answer.error["message"]
        assert len(keyed.executed) == 1
    async with open_keyed(home) as keyed:
        assert (await keyed.post(0, **body)).status == 200
        await trio.sleep(ServerLimits().ended_s + 1)
        assert (await keyed.post(1, **body)).status == 200
        assert len(keyed.executed) == 2


@OTHERS
@pytest.mark.parametrize("more", [{}, USAGE], ids=["whole", "stream"])
async def test_what_was_interrupted_is_a_conflict(
    body: Body, more: Body, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed() as keyed, trio.open_nursery() as nursery:
        nursery.start_soon(partial(keyed.post, 0, **body, **more))
        await trio.sleep(2.5)
        keyed.server.applications[0].completions.store.cancel_all("the drain's grace is over")
        answer = await keyed.post(1, **body, **more)
        assert (answer.status, answer.error["code"]) == (409, "idempotency_answer_lost")
        assert INTERRUPTED in answer.error["message"]
        assert len(keyed.executed) == 1


async def test_an_executor_that_was_given_up_is_a_conflict(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_keyed(home=0) as keyed:
        await keyed.post(1)
        del keyed.server.epochs[1]
        keyed.server.publish(lost=[1])
        answer = await keyed.post(0)
        assert (answer.status, answer.error["code"]) == (409, "idempotency_answer_lost")
        assert GIVEN_UP in answer.error["message"]
        assert len(keyed.executed) == 1


async def test_without_its_home_nothing_is_executed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_keyed(home=1) as keyed:
        keyed.server.kill(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keyed.server.succeed, 1, 5)
            assert (await keyed.post(0)).status == 200
            assert trio.current_time() > 5
        keyed.home = 1
        del keyed.server.epochs[1]
        keyed.server.publish(lost=[1])
        answer = await keyed.post(0, input="ho")
        assert answer.status == 503
        assert len(keyed.executed) == 1
