"""A load from its schedule to its figures: against the real edge over sockets, and as a command."""

import json
import math
import pathlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.commands.figures import percentile
from triolet.api.serving.server import serve_connections
from triolet.bench.load.client import Outcome, RequestHistory, Target
from triolet.bench.load.command import bench, make_runner, target_of
from triolet.bench.load.measures import Spread, measure
from triolet.bench.load.runner import LoadRun, ServerGone
from triolet.bench.load.schedule import Load, Schedule, make_prompt
from triolet.bench.options import BenchOptions, Protocol
from triolet.engine.errors import EngineDied, InvalidParameter
from triolet.fuzz.doubles.served import open_listener, where
from triolet.fuzz.observers import Cost
from triolet.runtime.events import RunEvent, Serving

from ...api.fakes import Fail, FakeGenerator, Say, make_application
from ...end_to_end.server import open_server


def arrivals(load: Load) -> list[float]:
    """When each request is due if every one ends at once."""
    schedule, found = Schedule(load), []
    while not schedule.is_over:
        ask = schedule.take(schedule.next_due_s())
        assert ask is not None
        found.append(ask.due_s)
        schedule.handle_end()
    return found


def test_an_open_loop_arrives_by_its_seed_at_its_rate() -> None:
    load = Load(requests=2000, in_flight=1, rate=50.0, seed=3)
    times = arrivals(load)
    assert times == arrivals(load) == sorted(times)
    assert times != arrivals(Load(requests=2000, in_flight=1, rate=50.0, seed=4))
    assert 2000 / times[-1] == pytest.approx(50.0, rel=0.1)


def test_an_open_loop_counts_from_when_it_was_due() -> None:
    schedule = Schedule(Load(requests=2, in_flight=1, rate=10.0))
    due_s = schedule.next_due_s()
    assert schedule.take(due_s - 0.001) is None
    first = schedule.take(due_s)
    assert first is not None
    assert first.due_s == due_s
    assert schedule.take(1000.0) is None, "the one place is taken"
    assert schedule.next_due_s() == math.inf
    schedule.handle_end()
    late = schedule.take(1000.0)
    assert late is not None
    assert late.due_s < 1000.0


def test_a_prompt_has_its_length_and_is_of_its_seed_and_number() -> None:
    load = Load(requests=1, prompt_words=20, seed=5)
    assert len(make_prompt(load, 7).split()) == 20
    assert make_prompt(load, 7) == make_prompt(load, 7) != make_prompt(load, 8)
    assert make_prompt(load, 7) != make_prompt(Load(requests=1, prompt_words=20, seed=6), 7)


@pytest.mark.parametrize(
    "fields",
    [{"requests": 0}, {"in_flight": 0}, {"tokens": -1}, {"rate": -1.0}, {"rate": math.nan}],
)
def test_a_load_out_of_bounds_names_the_field(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(fields))):
        Load(**{"requests": 1, **fields})  # type: ignore[arg-type]


@given(st.integers(1, 20), st.integers(1, 5), st.sampled_from([0.0, 2.0]), st.lists(st.booleans()))
def test_invariants_hold_whatever_happens(
    requests: int, in_flight: int, rate: float, steps: list[bool]
) -> None:
    schedule = Schedule(Load(requests=requests, in_flight=in_flight, rate=rate))
    for now, ends in enumerate(steps):
        if ends and schedule.in_flight:
            schedule.handle_end()
        else:
            schedule.take(float(now))
        schedule.check_invariants()


def streamed(number: int, due_s: float, delta_times_s: list[float], tokens: int) -> RequestHistory:
    history = RequestHistory(number, due_s, due_s + 0.5)
    for at_s in delta_times_s:
        history.handle_delta("x", [], at_s)
    history.handle_usage(10, tokens)
    history.handle_end(Outcome.COMPLETED, delta_times_s[-1] + 0.1)
    return history


def test_a_run_is_summed_up() -> None:
    refused = RequestHistory(2, 0.0, 0.0)
    refused.handle_end(Outcome.REFUSED, 1.0, "503 overloaded")
    histories = [streamed(0, 0.0, [1.0, 2.0, 4.0], 6), streamed(1, 1.0, [2.0], 2), refused]
    before = {"frontend": Cost("frontend", 5, 1.0, 50.0), "engine": Cost("engine", 6, 0.0, 30.0)}
    after = {
        "frontend": Cost("frontend", 5, 3.0, 60.0),
        "engine": Cost("engine", 7, 9.0, 30.0),  # restarted: what it spent is not known
    }
    found = measure(histories, elapsed_s=4.0, client_cpu_s=0.8, before=before, after=after)
    assert (found.requests, found.completed) == (3, 2)
    assert found.errors == {"refused: 503 overloaded": 1}
    assert (found.requests_per_s, found.tokens_per_s, found.tokens_per_delta) == (0.5, 2.0, 2.0)
    assert (found.input_tokens, found.output_tokens) == (20, 8)
    assert found.first_token_s == Spread(1.0, 1.0, 1.0, 1.0, 1.0)
    assert (found.gap_s.mean, found.gap_s.largest) == (1.5, 2.0)
    assert found.total_s.largest == pytest.approx(4.1)
    assert found.late_s.largest == 0.5
    assert [row.name for row in found.processes] == ["frontend", "server", "client"]
    assert found.cost("frontend").cpu_us_per_token == pytest.approx(2.0 / 8 * 1e6)
    assert found.cost("client").cpu_us_per_token == pytest.approx(0.8 / 8 * 1e6)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0.1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    values: list[float], percent: float
) -> None:
    ordered = sorted(values)
    found = percentile(ordered, percent)
    assert found in ordered
    not_exceeding = sum(value <= found for value in ordered)
    assert not_exceeding >= percent / 100 * len(ordered) - 1e-9
    smaller = [value for value in ordered if value < found]
    assert not smaller or len(smaller) < percent / 100 * len(ordered)


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


async def test_lost_connections_are_opened_anew() -> None:
    """A server that takes every second connection only to cut it."""
    async with serving(FakeGenerator()) as target, await open_listener() as front:

        async def pass_on() -> None:
            cut = True
            while True:
                stream = await front.accept()
                cut = not cut
                nursery.start_soon(_relay, stream, target, 1 if cut else 10**6)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_on)
            host, port = where(front)
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


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with await open_listener() as listener:
        host, port = where(listener)
    with pytest.raises(ServerGone, match=str(port)):
        await make_runner(Load(requests=1), Target(host=host, port=port), Protocol.SSE).run()


async def test_a_server_that_only_cuts_is_an_error() -> None:
    async with await open_listener() as listener, trio.open_nursery() as nursery:

        async def cut() -> None:
            while True:
                (await listener.accept()).socket.close()

        nursery.start_soon(cut)
        host, port = where(listener)
        with pytest.raises(ServerGone, match="ends every connection"):
            await make_runner(Load(requests=9), Target(host=host, port=port), Protocol.LANES).run()
        nursery.cancel_scope.cancel("the test is over")


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


@pytest.mark.parametrize("url", ["https://h:1", "h:1", "http://h:x", "http://h:1/v1", "http://"])
def test_a_url_that_is_not_one_is_named(url: str) -> None:
    with pytest.raises(InvalidParameter, match="url"):
        target_of(url, "")


def test_a_url_is_host_and_port() -> None:
    assert target_of("http://h:8/", "k") == Target(host="h", port=8, key="k")
    assert target_of("http://[::1]", "") == Target(host="::1", port=80)


def test_a_key_is_not_printed() -> None:
    assert "secret" not in repr(BenchOptions(api_key="secret"))
