"""Whole answers of chat completions and completions: computed once for their key, kept, or lost."""

from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triolet.api.errors import ApiError
from triolet.api.responses.answers import Computation, WholeAnswers
from triolet.api.responses.claims import Standing
from triolet.api.responses.executions import Executions
from triolet.api.schema.fields import JsonObject
from triolet.api.settings import ServerLimits
from triolet.runtime.errors import NoEngine, Overloaded, RequestFailed

from ..fakes import Answer, Fail, Say
from .frontends import Values
from .test_keyed import REPLAYED, at_once, open_keyed

CHAT: dict[str, Any] = {"path": "chat/completions", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"path": "completions", "prompt": "hi"}
BODIES = pytest.mark.parametrize("body", [CHAT, COMPLETION], ids=["chat", "completion"])
FRONTENDS = pytest.mark.parametrize("frontends", [(0, 0), (0, 1), (1, 0)])


@BODIES
@FRONTENDS
@pytest.mark.parametrize("after_s", [0.0, 2.5, 20.0], ids=["together", "within", "after the end"])
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
        streamed = await keyed.post(0, **body, stream=True)
        assert (streamed.status, streamed.error["code"]) == (400, "unsupported_parameter")
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


@attrs.define(eq=False)
class Frontend:
    """What one life knows; its answers have `bytes_max`."""

    journal: Values
    epoch: int = 1
    bytes_max: int = 2**20
    answers: WholeAnswers = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        limits = ServerLimits(ended_bytes_max=self.bytes_max)
        executions = Executions(8, self.epoch, self.journal, is_whole=True)
        self.answers = WholeAnswers(limits, executions, self.journal)

    def standing(self, answer_id: str, principal: str = "p") -> Standing:
        found = self.answers.execution_of(answer_id, principal)
        return (found or self.answers.executions.execution_of(answer_id, 1, 0)).standing

    async def compute(self, answer_id: str, found: JsonObject | ApiError) -> None:
        async def answer() -> JsonObject:
            await trio.lowlevel.checkpoint()
            if isinstance(found, ApiError):
                raise found
            return found

        await self.answers.run(Computation(answer_id, "p", answer))


async def test_ended_ones_outlive_their_frontend_and_others_are_lost() -> None:
    journal = Values()
    first = Frontend(journal)
    await first.compute("a", {"text": "x"})
    await first.compute("b", ApiError(500, "it broke", "broken"))
    await first.compute("c", ApiError(429, "too many", "full"))
    async with trio.open_nursery() as nursery:

        async def forever() -> JsonObject:
            await trio.Event().wait()
            return {}

        await nursery.start(first.answers.run, Computation("d", "p", forever))
        assert first.standing("d") is Standing.RUNNING
        assert first.standing("d", "another") is Standing.LOST
        cut = Values(dict(journal.kept))
        nursery.cancel_scope.cancel("its frontend ends")
    for life in (first, Frontend(cut, 2), Frontend(journal, 2)):
        assert life.answers.execution_of("a", "q") is None
        found = life.answers.execution_of("a", "p")
        assert found is not None
        assert found.response == {"text": "x"}
        assert [life.standing(each) for each in "abcd"] == [
            Standing.ENDED,
            Standing.ENDED,
            Standing.UNKNOWN,
            Standing.LOST,
        ]


async def test_the_oldest_make_room() -> None:
    life = Frontend(Values(), bytes_max=400)
    for answer_id in "abc":
        await life.compute(answer_id, {"text": "x" * 80})
    standings = [life.standing(each) for each in "abc"]
    assert standings == [Standing.GONE, Standing.ENDED, Standing.ENDED]
    await life.compute("d", {"text": "x" * 800})
    assert [life.standing(each) for each in "abcd"] == [Standing.GONE] * 4, "none fits beside it"
    standings = [life.standing(each) for each in "abc"]
    after = Frontend(life.answers.journal, 2)  # type: ignore[arg-type]
    assert [after.standing(each) for each in "abc"] == standings
