"""One response from admission to its end, without any protocol around it."""

import pytest
import trio
import trio.testing

from triolet.api.application import Application
from triolet.api.errors import ApiError
from triolet.api.response_registry import ActiveResponse
from triolet.api.response_run import draw_id, run_response
from triolet.api.responses import Event
from triolet.api.responses_request import ResponseRequest, read_response_request
from triolet.engine.errors import EngineDied
from triolet.runtime.errors import NoEngine

from .fakes import Fail, FakeGenerator, Say, make_application


def request(**more: object) -> ResponseRequest:
    return read_response_request({"input": "hi", **more}, model="toy")


class Collector:
    """An `emit` that keeps events; `hold_s` makes it slow."""

    def __init__(self, hold_s: float = 0.0) -> None:
        self.events: list[Event] = []
        self.hold_s = hold_s

    async def __call__(self, events: list[Event]) -> None:
        self.events += events
        await trio.sleep(self.hold_s)

    @property
    def types(self) -> list[str]:
        return [str(event["type"]).removeprefix("response.") for event in self.events]


async def run(application: Application, collector: Collector, **more: object) -> str:
    result = await run_response(application, request(**more), "me", emit=collector)
    status = result.response["status"]
    assert isinstance(status, str)
    return status


async def test_what_the_generator_is_asked() -> None:
    generator = FakeGenerator()
    collector = Collector()
    runtime = {"cache_salt": "s", "priority": 3}
    assert await run(make_application(generator), collector, runtime=runtime) == "completed"
    (call,) = generator.calls
    assert (call.principal, call.cache_salt, call.priority, call.streaming) == ("me", "s", 3, True)
    assert call.request_id.startswith("resp_")
    assert collector.types[0] == "created"
    assert collector.types[-1] == "completed"


async def test_a_slow_writer_merges_without_changing_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = [Say(str(n), after_s=1) for n in range(10)]
    quick, slow = Collector(), Collector(hold_s=7)
    for collector in (quick, slow):
        await run(make_application(FakeGenerator(script)), collector)
    deltas = [collector.types.count("output_text.delta") for collector in (quick, slow)]
    assert deltas[0] == 10
    assert deltas[1] < 5
    numbers = [[e["sequence_number"] for e in c.events[-4:]] for c in (quick, slow)]
    assert numbers[0] == numbers[1] == [14, 15, 16, 17]


async def test_refused_before_the_first_event() -> None:
    collector = Collector()
    with pytest.raises(ApiError) as caught:
        await run(make_application(FakeGenerator(refuse=NoEngine())), collector)
    assert caught.value.status == 503
    assert collector.events == []


async def test_an_engine_death_is_an_event_and_a_result() -> None:
    generator = FakeGenerator([Say("a"), Fail(EngineDied("engine 0", "x"), after_s=0.01)])
    collector = Collector()
    result = await run_response(make_application(generator), request(), "", emit=collector)
    assert result.error is not None
    assert (result.error.status, result.error.code) == (503, "engine_died")
    assert collector.types[-1] == "failed"


async def test_a_writer_that_fails_ends_the_request() -> None:
    generator = FakeGenerator([Say("a"), Say("b", after_s=1000)])
    application = make_application(generator)
    started: list[ActiveResponse] = []

    async def broken(events: list[Event]) -> None:
        await trio.lowlevel.checkpoint()
        if len(events) == 1:
            raise trio.BrokenResourceError

    with pytest.raises(trio.BrokenResourceError):
        await run_response(application, request(), "", emit=broken, on_started=started.append)
    assert len(generator.aborted) == 1
    assert application.registry.active == 0
    assert (await started[0].wait_ended())["status"] == "cancelled"


async def test_cancellation_leaves_nothing(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator([Say("a", after_s=1000)])
    application = make_application(generator)
    with trio.move_on_after(1):
        await run(application, Collector())
    assert len(generator.aborted) == 1
    assert application.registry.active == 0


def test_ids_are_random() -> None:
    assert len({draw_id("resp") for _ in range(100)}) == 100
    assert len(draw_id("resp")) == len("resp_") + 32
