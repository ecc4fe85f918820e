"""Both transports give the same events, and say what became of their connection."""

import pytest
import trio

from triolet.fuzz.chaos.clients import (
    Event,
    EventConnection,
    Lost,
    SocketConnection,
    ask,
    open_events,
    reset,
)
from triolet.fuzz.chaos.fault_plan import Transport
from triolet.runtime.errors import NoEngine

from ...api.fakes import FakeGenerator, Say
from .small_server import DEADLINE_S, open_small_server

BODY = {"input": "hi", "runtime": {"token_ids": True}}
BOTH = pytest.mark.parametrize("transport", list(Transport))


async def read_all(connection: EventConnection) -> list[Event]:
    events = [await connection.receive()]
    while events[-1]["type"] not in ("response.completed", "error"):
        events.append(await connection.receive())
    return events


@BOTH
async def test_a_whole_stream(transport: Transport) -> None:
    generator = FakeGenerator([Say("Hé"), Say("llo")])
    with trio.fail_after(DEADLINE_S):
        async with open_small_server(generator) as port, open_events(transport, port) as events:
            await events.create(BODY)
            seen = await read_all(events)
    assert seen[0]["type"] == "response.created"
    deltas = [event for event in seen if "token_ids" in event]
    assert "".join(event["delta"] for event in deltas) == "Héllo"
    assert seen[-1]["response"]["status"] == "completed"


@BOTH
async def test_a_refusal_is_an_error_event(transport: Transport) -> None:
    generator = FakeGenerator(refuse=NoEngine())
    with trio.fail_after(DEADLINE_S):
        async with open_small_server(generator) as port, open_events(transport, port) as events:
            await events.create(BODY)
            (refusal,) = await read_all(events)
    assert refusal["error"]["code"] == "no_engine"


@BOTH
async def test_leaving_aborts(transport: Transport) -> None:
    generator = FakeGenerator([Say("a"), Say("b", after_s=DEADLINE_S)])
    with trio.fail_after(DEADLINE_S):
        async with open_small_server(generator) as port:
            async with open_events(transport, port) as events:
                await events.create(BODY)
                await events.receive()
                await events.leave()
            while not generator.aborted:
                await trio.lowlevel.checkpoint()


@BOTH
async def test_a_server_that_goes_away_in_the_midst(transport: Transport) -> None:
    generator = FakeGenerator([Say("a"), Say("b", after_s=DEADLINE_S)])
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            opened = trio.Event()
            cut = trio.Event()

            async def serve(task_status: trio.TaskStatus[int]) -> None:
                async with open_small_server(generator) as port:
                    task_status.started(port)
                    await opened.wait()
                cut.set()

            port = await nursery.start(serve)
            async with open_events(transport, port) as events:
                await events.create(BODY)
                await events.receive()
                opened.set()
                await cut.wait()
                with pytest.raises(Lost):
                    await read_all(events)


async def test_what_is_closed_is_lost() -> None:
    with trio.fail_after(DEADLINE_S):
        async with (
            open_small_server(FakeGenerator()) as port,
            open_events(Transport.SOCKET, port) as events,
        ):
            assert isinstance(events, SocketConnection)
            reset(events.stream)
            with pytest.raises(Lost):
                await events.send({"type": "response.create"})


async def test_nobody_listens() -> None:
    with pytest.raises(Lost, match="refused"):
        await ask(1, "GET", "/health")


async def test_asking() -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_small_server(FakeGenerator()) as port:
            status, health = await ask(port, "GET", "/health")
            assert (status, health["ready"]) == (200, True)
            status, text = await ask(port, "GET", "/metrics")
            assert status == 200
            assert text.startswith("# HELP")
            status, answer = await ask(port, "POST", "/v1/responses/none/cancel")
            assert status == 404
            assert answer["error"]["code"] == "response_not_found"
