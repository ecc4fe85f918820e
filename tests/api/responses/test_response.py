"""Life of one response: what its generator is asked, and how it ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triolet.api.openai.response_events import Status
from triolet.api.responses.record_reader import RecordReader
from triolet.api.responses.response import Response
from triolet.engine.errors import EngineDied
from triolet.engine.messages import FinishReason, RequestEvent, RequestEventKind
from triolet.engine.request_options import RequestOptions
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.frontend.generation import GenerationStream
from triolet.runtime.frontend.output_collector import OutputCollector

from ..fakes import Fail, FakeFlow, FakeGenerator, Say, make_collector
from ..records import make_live, make_store, taken


async def test_a_deadline_comes_before_the_end_of_keeping(
    autojump_clock: trio.testing.MockClock,
) -> None:
    response = make_live(runtime={"keep_s": 30, "deadline_ms": 10_000})
    with response.reading():
        assert response.scope.deadline == 10
    assert response.scope.deadline == 10
    await trio.sleep(10)
    assert response._ending_when_cut().reason == "deadline"
    response.cancel("by the client")
    assert response._ending_when_cut().status is Status.CANCELLED


@attrs.define(eq=False)
class Feed(FakeGenerator):
    """A generator whose one stream is fed by the test."""

    collector: OutputCollector = attrs.field(factory=make_collector)

    @asynccontextmanager
    async def generate(self, *_: Any, **__: Any) -> AsyncIterator[GenerationStream]:
        await trio.lowlevel.checkpoint()
        yield GenerationStream("r", [1], [FakeFlow(self.collector, self)])


@asynccontextmanager
async def running(response: Response) -> AsyncIterator[Feed]:
    feed = response.order.generator = Feed()
    async with trio.open_nursery() as nursery:
        with response.held():
            await nursery.start(response.run, make_store())
            await trio.testing.wait_all_tasks_blocked()
            yield feed
            response.cancel("the test is over")


async def test_credit_granted_before_the_request_is_not_lost() -> None:
    response = make_live()
    response.grant(3)
    response.grant(4)
    async with running(response) as feed:
        response.grant(5)
        assert feed.granted == [7, 5]


# ---- from admission to the end

SLOW = [Say("a"), Say("b", after_s=1000)]


async def run(generator: FakeGenerator, **values: Any) -> Response:
    response = make_live(generator=generator, **values)
    await response.run(make_store())
    return response


def status_of(response: Response) -> tuple[Status, str | None]:
    ending = response.record.ending
    assert ending is not None
    return ending.status, ending.reason


async def test_what_the_generator_is_asked() -> None:
    generator = FakeGenerator()
    runtime: dict[str, Any] = {
        "cache_salt": "s",
        "priority": 3,
        "events": True,
        "credit": 5,
        "inexact_ok": True,
    }
    response = await run(generator, runtime=runtime)
    (call,) = generator.calls
    assert (call.request_id, call.principal, call.streaming) == ("resp_1", "p", True)
    assert call.options == RequestOptions(**runtime)
    assert status_of(response) == (Status.COMPLETED, None)
    assert response.record.text == "Hello world"


async def test_a_response_that_is_kept_keeps_nothing_of_its_request() -> None:
    response = await run(FakeGenerator(), runtime={"credit": 5})
    assert response._stream is None
    response.grant(3)  # it may still be read: harmless


async def test_without_output_the_prompt_alone_is_computed() -> None:
    generator = FakeGenerator()
    runtime = {"truncate_prompt_tokens": 7, "seed": 3}
    response = await run(generator, generate=False, max_output_tokens=50, runtime=runtime)
    (call,) = generator.calls
    expected = SamplingParams(max_tokens=1, truncate_prompt_tokens=7)
    assert (call.params, call.streaming) == (expected, False)
    assert status_of(response) == (Status.COMPLETED, None)
    assert (response.record.text, response.record.token_count) == ("", 0)


@pytest.mark.parametrize(
    ("failure", "code"),
    [(EngineDied("engine 0", "x"), "engine_died"), (ZeroDivisionError("0x7f"), "internal_error")],
)
async def test_a_failure_is_the_end(
    failure: Exception, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("CRITICAL"):
        response = await run(FakeGenerator([Say("a"), Fail(failure)]))
    ending = response.record.ending
    assert ending is not None
    assert ending.error is not None
    assert (ending.status, ending.error.code) == (Status.FAILED, code)
    assert "0x7f" not in ending.error.message


@pytest.mark.parametrize(
    ("reason", "status", "found"),
    [
        (FinishReason.STOP, Status.COMPLETED, None),
        (FinishReason.LENGTH, Status.INCOMPLETE, "max_output_tokens"),
        (FinishReason.ABORT, Status.CANCELLED, None),
        (FinishReason.ERROR, Status.FAILED, None),
    ],
)
async def test_how_the_engine_ends_it(
    reason: FinishReason, status: Status, found: str | None
) -> None:
    response = await run(FakeGenerator([Say("a")], finish_reason=reason))
    assert status_of(response) == (status, found)
    assert response.record.text == "a"


async def test_a_deadline_is_an_incomplete_end(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator(SLOW)
    response = await run(generator, runtime={"deadline_ms": 1500})
    assert trio.current_time() == 1.5
    assert status_of(response) == (Status.INCOMPLETE, "deadline")
    assert response.record.text == "a"
    assert len(generator.aborted) == 1


async def test_a_deadline_that_passes_before_the_admission_is_an_end_as_well(
    autojump_clock: trio.testing.MockClock,
) -> None:
    generator = FakeGenerator()
    await trio.sleep(10)
    response = await run(generator, runtime={"deadline_ms": 1})
    assert status_of(response) == (Status.INCOMPLETE, "deadline")
    assert generator.calls == []


async def test_a_cancel_comes_at_any_time(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator(SLOW)
    response = make_live(generator=generator)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(response.run, make_store())
        await trio.sleep(1)
        response.cancel("test")
    assert status_of(response) == (Status.CANCELLED, None)
    assert generator.aborted == ["resp_1"]


async def test_cancellation_from_outside_leaves_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    generator, store = FakeGenerator(SLOW), make_store()
    response = make_live(generator=generator)
    with trio.move_on_after(1):
        await response.run(store)
    assert status_of(response) == (Status.CANCELLED, None)
    assert (store.active, store.kept) == (0, 1)
    assert generator.aborted == ["resp_1"]


async def test_a_reader_that_is_behind_pauses_it(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator([Say("x" * 6, after_s=1) for _ in range(10)])
    response = make_live(generator=generator)
    async with trio.open_nursery() as nursery:
        with response.reading() as reader:
            nursery.start_soon(response.run, make_store())
            await trio.sleep(5)
            assert generator.consumed == []  # the engine's credit is not renewed
            while not reader.done.is_set():
                await reader.wait_ready()
                taken(reader)
    assert response.record.text == "x" * 60


async def test_a_migration_is_told_and_from_where_it_was_inexact() -> None:
    exact = RequestEvent(RequestEventKind.MIGRATED)
    inexact = RequestEvent(RequestEventKind.MIGRATED, exact=False)
    script = [Say("a", events=(exact,)), Say("b"), Say("c", events=(inexact,))]
    for count, whole in ((2, None), (3, {"inexact_from": 2})):
        response = await run(FakeGenerator(script[:count]), runtime={"inexact_ok": True})
        events = taken(RecordReader.behind(response.record, 3))
        told = [(e["token_index"], e["exact"]) for e in events if e["type"] == "runtime.migrated"]
        assert told == [(0, True), (2, False)][: count - 1]
        assert response.record.snapshot().get("runtime") == whole


async def test_events_of_the_request_stand_in_the_record() -> None:
    queued = RequestEvent(RequestEventKind.QUEUED, 2)
    resumed = RequestEvent(RequestEventKind.RESUMED)
    generator = FakeGenerator([Say("a", events=(queued,)), Say("b", events=(resumed,))])
    response = await run(generator, runtime={"events": True})
    events = taken(RecordReader.behind(response.record, 3))
    assert [event["type"] for event in events[:4]] == [
        "runtime.queued",
        "response.output_text.delta",
        "runtime.resumed",
        "response.output_text.delta",
    ]
    assert (events[0]["position"], events[0]["token_index"]) == (2, 0)
    assert (events[2]["token_index"], events[2]["response_id"]) == (1, "resp_1")
