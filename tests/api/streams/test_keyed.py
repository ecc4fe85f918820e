"""A request with an idempotency key, sent to any frontend and however often, is executed once."""

import pytest
import trio
import trio.testing

from triolet.api.settings import ServerLimits
from triolet.api.streams.keyed import GIVEN_UP
from triolet.runtime.errors import Overloaded, RequestFailed

from ..fakes import Answer, Fail, Say, open_client
from .frontends import KEYS, REPLAYED, STEADY, at_once, open_keyed

WHENEVER = pytest.mark.parametrize(
    "after_s", [0.0, 2.5, 20.0], ids=["together", "within", "after the end"]
)
BY_BOTH = pytest.mark.parametrize("frontends", [(0, 0), (0, 1), (1, 0)])


@pytest.fixture(params=[0, 1], ids=["home 0", "home 1"])
def home(request: pytest.FixtureRequest) -> int:
    number = request.param
    assert isinstance(number, int)
    return number


@WHENEVER
@BY_BOTH
async def test_both_get_the_whole_answer_of_one_execution(
    home: int,
    frontends: tuple[int, int],
    after_s: float,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_keyed(home) as keyed:
        first, second = await at_once(keyed, *frontends, after_s=after_s)
        assert first.status == second.status == 200, (first.body, second.body)
        assert first.body == second.body
        assert keyed.executed == [first.json["id"]]
        assert {REPLAYED in first.headers, REPLAYED in second.headers} == {False, True}
        assert after_s == 0 or second.headers[REPLAYED] == "true"


@WHENEVER
@BY_BOTH
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


async def test_a_response_in_the_background_is_begun_once(
    home: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed(home) as keyed:
        answers = await at_once(keyed, 0, 1, 0, background=True)
        assert len({answer.json["id"] for answer in answers}) == 1
        assert keyed.executed == [answers[0].json["id"]]


async def test_another_body_is_refused_whether_it_runs_or_ended(
    home: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed(home) as keyed, trio.open_nursery() as nursery:
        nursery.start_soon(keyed.post, 0)
        await trio.sleep(1.5)
        for _ in range(2):
            for frontend in (0, 1):
                answer = await keyed.post(frontend, input="ho")
                assert (answer.status, answer.error["code"]) == (422, "idempotency_key_reused")
                assert answer.error["param"] == "Idempotency-Key"
            await trio.sleep(20)
        assert len(keyed.executed) == 1


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


async def test_what_was_refused_before_its_admission_is_executed_when_it_comes_again(
    home: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed(home) as keyed:
        for generator in keyed.server.generators:
            generator.refuse = Overloaded(limit="requests_max")
        assert [answer.status for answer in await at_once(keyed, 0, 1, 1)] == [429] * 3
        assert (await keyed.post(0, max_output_tokens=-1)).status == 400
        for generator in keyed.server.generators:
            generator.refuse = None
        # It was not executed, so another body does no harm.
        answer = await keyed.post(1, input="ho")
        assert answer.status == 200
        assert keyed.executed == [answer.json["id"]]


async def test_a_failure_is_an_answer(home: int, autojump_clock: trio.testing.MockClock) -> None:
    async with open_keyed(home) as keyed:
        keyed.use(Say("a"), Fail(RequestFailed("r", "it broke"), after_s=2))
        for answer in await at_once(keyed, 1, 0, after_s=1) + await at_once(keyed, 0, 1):
            assert answer.status == 500
            assert "it broke" in answer.error["message"]
        assert len(keyed.executed) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_it_goes_on_when_its_client_leaves(
    home: int, stream: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed(home) as keyed:
        with trio.move_on_after(3):
            await keyed.post(0, stream=stream)
        answer = await keyed.post(1, stream=stream)
        assert answer.status == 200
        assert len(keyed.executed) == 1
        assert not keyed.server.generators[0].aborted
        assert "012345678" in answer.body.decode() or stream


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


async def test_an_answer_that_was_deleted_or_forgotten_is_gone(
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
        keyed.home = 1 - home
        store = keyed.server.applications[0].responses.store
        store.ended.count_max = 0
        assert (await keyed.post(0)).status == 200
        answer = await keyed.post(1)
        assert (answer.status, "make room" in answer.error["message"]) == (410, True)
        assert len(keyed.executed) == 2


async def test_its_key_is_new_when_its_time_is_over(
    home: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_keyed(home) as keyed:
        first = await keyed.post(0)
        await trio.sleep(ServerLimits().ended_s + 1)
        second = await keyed.post(1)
        assert keyed.executed == [first.json["id"], second.json["id"]]


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
