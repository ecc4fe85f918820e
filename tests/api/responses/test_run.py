"""One response from admission to its end, without anybody who reads it."""

from typing import Any

import pytest
import trio
import trio.testing

from triolet.api.errors import ApiError
from triolet.api.limits import ServerLimits
from triolet.api.openai.response_events import Status
from triolet.api.responses.record_reader import RecordReader
from triolet.api.responses.response import LiveResponse
from triolet.api.responses.run import run_response
from triolet.api.responses.store import ResponseRegistry
from triolet.engine.errors import EngineDied
from triolet.engine.messages import FinishReason, RequestEvent, RequestEventKind
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.errors import NoEngine

from ..fakes import Fail, FakeGenerator, Say
from ..records import make_live, taken

SLOW = [Say("a"), Say("b", after_s=1000)]


async def run(generator: FakeGenerator, **values: Any) -> LiveResponse:
    response = make_live(**values)
    await run_response(response, generator, ResponseRegistry(ServerLimits()))
    return response


def status_of(response: LiveResponse) -> tuple[Status, str | None]:
    ending = response.record.ending
    assert ending is not None
    return ending.status, ending.reason


async def test_what_the_generator_is_asked() -> None:
    generator = FakeGenerator()
    runtime = {"cache_salt": "s", "priority": 3, "events": True, "credit": 5}
    response = await run(generator, runtime=runtime)
    (call,) = generator.calls
    assert (call.request_id, call.principal, call.streaming) == ("resp_1", "p", True)
    assert (call.cache_salt, call.priority, call.events, call.credit) == ("s", 3, True, 5)
    assert status_of(response) == (Status.COMPLETED, None)
    assert response.record.text == "Hello world"


async def test_a_response_that_is_kept_keeps_nothing_of_its_request() -> None:
    response = await run(FakeGenerator(), runtime={"credit": 5})
    assert (response.pull_from, response.on_grant) == (None, None)
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


async def test_refused_before_it_is_known() -> None:
    registry, response = ResponseRegistry(ServerLimits()), make_live()
    with pytest.raises(ApiError) as caught:
        await run_response(response, FakeGenerator(refuse=NoEngine()), registry)
    assert caught.value.status == 503
    assert (registry.active, registry.kept, response.is_admitted) == (0, 0, False)


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
    ("reason", "status", "told"),
    [
        (FinishReason.STOP, Status.COMPLETED, None),
        (FinishReason.LENGTH, Status.INCOMPLETE, "max_output_tokens"),
        (FinishReason.ABORT, Status.CANCELLED, None),
        (FinishReason.ERROR, Status.FAILED, None),
    ],
)
async def test_how_the_engine_ends_it(
    reason: FinishReason, status: Status, told: str | None
) -> None:
    response = await run(FakeGenerator([Say("a")], finish_reason=reason))
    assert status_of(response) == (status, told)
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
    generator, response = FakeGenerator(SLOW), make_live()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_response, response, generator, ResponseRegistry(ServerLimits()))
        await trio.sleep(1)
        response.cancel("test")
    assert status_of(response) == (Status.CANCELLED, None)
    assert generator.aborted == ["resp_1"]


async def test_cancellation_from_outside_leaves_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    generator, registry, response = (
        FakeGenerator(SLOW),
        ResponseRegistry(ServerLimits()),
        make_live(),
    )
    with trio.move_on_after(1):
        await run_response(response, generator, registry)
    assert status_of(response) == (Status.CANCELLED, None)
    assert (registry.active, registry.kept) == (0, 1)
    assert generator.aborted == ["resp_1"]


async def test_a_reader_that_is_behind_pauses_it(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator([Say("x" * 6, after_s=1) for _ in range(10)])
    response = make_live()
    async with trio.open_nursery() as nursery:
        with response.reading() as reader:
            nursery.start_soon(run_response, response, generator, ResponseRegistry(ServerLimits()))
            await trio.sleep(5)
            assert generator.consumed == []  # the engine's credit is not renewed
            while not reader.done.is_set():
                await reader.wait_ready()
                taken(reader)
    assert response.record.text == "x" * 60


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
