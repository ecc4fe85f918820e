"""A load from its schedule to its figures: against the real edge over sockets, and as a command."""

import json
import pathlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from triolet.api.serving.server import serve_connections
from triolet.bench.load.client import Outcome, Target
from triolet.bench.load.command import bench, make_runner
from triolet.bench.load.measures import LoadRun
from triolet.bench.load.runner import ServerGone
from triolet.bench.load.schedule import Load
from triolet.bench.options import BenchOptions, Protocol
from triolet.engine.errors import EngineDied
from triolet.fuzz.doubles.served import open_listener, where
from triolet.runtime.events import RunEvent, Serving

from ...api.fakes import Fail, FakeGenerator, Say, make_application
from ...end_to_end.server import open_server

DEADLINE_S = 60.0


@asynccontextmanager
async def serving(generator: FakeGenerator) -> AsyncIterator[Target]:
    """The edge on a port of its own."""
    application = make_application(generator)
    with trio.fail_after(DEADLINE_S):
        async with await open_listener() as listener, trio.open_nursery() as nursery:
            await nursery.start(serve_connections, listener, application)
            host, port = where(listener)
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
            assert history.numbers[-1] == 8 * 3 + 4  # items end, then the response
    assert outcome.client_cpu_s > 0


@pytest.mark.parametrize("protocol", Protocol)
async def test_refusals_and_failures_are_distinguished(protocol: Protocol) -> None:
    died = EngineDied("engine 0", "was killed by SIGKILL")
    refusing = await run(FakeGenerator(refuse=died), protocol, Load(requests=2))
    assert {history.outcome for history in refusing.histories} == {Outcome.REFUSED}
    assert all("engine_died" in history.error for history in refusing.histories)
    if protocol is not Protocol.HTTP:
        failing = await run(FakeGenerator([Say("a"), Fail(died)]), protocol, Load(requests=2))
        assert {history.outcome for history in failing.histories} == {Outcome.FAILED}
        assert {history.text for history in failing.histories} == {"a"}


async def test_what_never_ends_is_given_up() -> None:
    async with serving(FakeGenerator([Say("a"), Say("b", after_s=10**6)])) as target:
        runner = make_runner(Load(requests=3, in_flight=2), target, Protocol.LANES)
        runner.patience_s = 1.0
        outcome = await runner.run()
    assert [history.outcome for history in outcome.histories] == [Outcome.LATE] * 2
    assert {history.text for history in outcome.histories} == {"a"}


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with await open_listener() as listener:
        host, port = where(listener)
    with pytest.raises(ServerGone, match=str(port)):
        await make_runner(Load(requests=1), Target(host=host, port=port), Protocol.SSE).run()


def figures(path: pathlib.Path) -> Any:
    return json.loads(path.read_text())


# "spare worker", "fork server": a second after all is ready, so on a busy machine before the end,
# else not at all.
SPARES = re.compile(r".* \d+|spare .*|fork server.*")


@pytest.mark.slow
async def test_a_server_is_started_pressed_and_stopped(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[RunEvent] = []
    path = tmp_path / "figures"
    options = BenchOptions(requests=20, in_flight=10, tokens=8, warm_up=2, json=str(path))
    await bench(None, options, engine={"executor": "null"}, on_event=events.append)
    assert any(isinstance(event, Serving) for event in events)
    found = figures(path)
    assert (found["completed"], found["output_tokens"]) == (20, 160)
    names = [row["name"] for row in found["processes"] if not SPARES.fullmatch(row["name"])]
    assert sorted(names) == ["client", "engine", "form", "frontend", "server", "worker"]
    assert "20 of 20 completed" in capsys.readouterr().out


@pytest.mark.slow
async def test_a_running_server_is_pressed(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with open_server(tmp_path, executor="null") as server:
        options = BenchOptions(
            url=server.url, protocol=Protocol.HTTP, requests=4, tokens=1, warm_up=0, json="-"
        )
        capsys.readouterr()
        await bench(None, options, engine={}, on_event=lambda _: None)
        printed = capsys.readouterr().out
    found = json.loads(printed)
    assert (found["completed"], found["output_tokens"]) == (4, 4)
    names = [row["name"] for row in found["processes"]]
    assert names[0] == "root"
    assert names[-2:] == ["server", "client"]


def test_a_key_is_not_printed() -> None:
    assert "secret" not in repr(BenchOptions(api_key="secret"))
