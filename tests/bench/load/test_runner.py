"""Runs against the real edge over real sockets, with a made-up generator behind it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from triolet.api.serving.server import ListenerSource, serve_connections
from triolet.bench.load.client import Target
from triolet.bench.load.command import make_runner
from triolet.bench.load.history import Outcome
from triolet.bench.load.options import Protocol
from triolet.bench.load.runner import LoadRun, ServerGone
from triolet.bench.load.schedule import Load
from triolet.engine.errors import EngineDied

from ...api.fakes import Fail, FakeGenerator, Say, make_application

DEADLINE_S = 60.0


@asynccontextmanager
async def serving(generator: FakeGenerator) -> AsyncIterator[Target]:
    """The edge on a port of its own."""
    application = make_application(generator)
    with trio.fail_after(DEADLINE_S):
        async with await ListenerSource.open() as source, trio.open_nursery() as nursery:
            await nursery.start(serve_connections, source, application)
            host, port = source.address
            yield Target(host=host, port=port)
            nursery.cancel_scope.cancel("the test is over")


async def run(generator: FakeGenerator, protocol: Protocol, load: Load) -> LoadRun:
    async with serving(generator) as target:
        return await make_runner(load, target, protocol).run()


@pytest.mark.parametrize("protocol", Protocol)
async def test_every_request_of_a_load_is_answered(protocol: Protocol) -> None:
    ended = 0
    async with serving(FakeGenerator()) as target:
        runner = make_runner(Load(requests=40, in_flight=20), target, protocol)

        def count(more: int) -> None:
            nonlocal ended
            ended += more

        runner.on_ended = count
        outcome = await runner.run()
    assert ended == 40
    assert [history.number for history in outcome.histories] == list(range(40))
    assert {history.outcome for history in outcome.histories} == {Outcome.COMPLETED}
    assert {history.output_tokens for history in outcome.histories} == {3}
    for history in outcome.histories:
        assert history.due_s <= history.sent_s <= history.ended_s <= outcome.elapsed_s
        if protocol is not Protocol.HTTP:
            assert history.text == "Hello world"
        if protocol in (Protocol.LANES, Protocol.SSE):
            assert list(history.numbers) == sorted(history.numbers)
            assert history.numbers[-1] == 10
    assert outcome.client_cpu_s > 0


async def test_an_open_loop_sends_as_told() -> None:
    load = Load(requests=30, in_flight=30, rate=1000.0)
    outcome = await run(FakeGenerator(), Protocol.SSE, load)
    times = [history.due_s for history in outcome.histories]
    assert times == sorted(times)
    assert len(set(times)) == 30
    assert {history.outcome for history in outcome.histories} == {Outcome.COMPLETED}


@pytest.mark.parametrize("protocol", Protocol)
async def test_refusals_and_failures_are_told_apart(protocol: Protocol) -> None:
    died = EngineDied("engine 0", "was killed by SIGKILL")
    refusing = await run(FakeGenerator(refuse=died), protocol, Load(requests=2))
    assert {history.outcome for history in refusing.histories} == {Outcome.REFUSED}
    assert all("engine_died" in history.error for history in refusing.histories)
    if protocol is not Protocol.HTTP:
        failing = await run(FakeGenerator([Say("a"), Fail(died)]), protocol, Load(requests=2))
        assert {history.outcome for history in failing.histories} == {Outcome.FAILED}
        assert {history.text for history in failing.histories} == {"a"}


async def test_lost_connections_are_opened_anew() -> None:
    """A server that takes every second connection only to cut it."""
    async with serving(FakeGenerator()) as target, await ListenerSource.open() as front:

        async def pass_on() -> None:
            cut = True
            while True:
                stream = trio.SocketStream(await front.accept())
                cut = not cut
                nursery.start_soon(_relay, stream, target, 1 if cut else 10**6)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_on)
            host, port = front.address
            load = Load(requests=8, in_flight=2)
            runner = make_runner(load, Target(host=host, port=port), Protocol.HTTP)
            outcome = await runner.run()
            nursery.cancel_scope.cancel("the test is over")
    outcomes = [history.outcome for history in outcome.histories]
    assert set(outcomes) == {Outcome.COMPLETED, Outcome.BROKEN}
    assert len(outcomes) == 8


async def _relay(stream: trio.SocketStream, target: Target, bytes_max: int) -> None:
    """Pass bytes on both ways; cut both after so many from the server."""
    async with stream, await trio.open_tcp_stream(target.host, target.port) as server:

        async def up() -> None:
            async for data in stream:
                await server.send_all(data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(up)
            while bytes_max > 0 and (data := await server.receive_some()):
                bytes_max -= len(data)
                await stream.send_all(data[: max(bytes_max, 0)])
            nursery.cancel_scope.cancel("cut")


async def test_what_never_ends_is_given_up() -> None:
    async with serving(FakeGenerator([Say("a"), Say("b", after_s=10**6)])) as target:
        runner = make_runner(Load(requests=3, in_flight=2), target, Protocol.LANES)
        runner.patience_s = 1.0
        outcome = await runner.run()
    assert [history.outcome for history in outcome.histories] == [Outcome.LATE] * 2
    assert {history.text for history in outcome.histories} == {"a"}


async def test_a_server_that_is_not_there_is_told() -> None:
    async with await ListenerSource.open() as source:
        host, port = source.address
    with pytest.raises(ServerGone, match=str(port)):
        await make_runner(Load(requests=1), Target(host=host, port=port), Protocol.SSE).run()


async def test_a_server_that_only_cuts_is_told() -> None:
    async with await ListenerSource.open() as source, trio.open_nursery() as nursery:

        async def cut() -> None:
            while True:
                (await source.accept()).close()

        nursery.start_soon(cut)
        host, port = source.address
        with pytest.raises(ServerGone, match="ends every connection"):
            await make_runner(Load(requests=9), Target(host=host, port=port), Protocol.LANES).run()
        nursery.cancel_scope.cancel("the test is over")
