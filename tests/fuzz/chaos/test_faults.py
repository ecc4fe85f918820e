"""Faults are proven by what the kernel shows, and put down to the streams that they end.

Over the server's edge on a real port; both transports of the clients give the same events.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from triolet.api.serving.server import serve_connections
from triolet.fuzz.chaos import faults
from triolet.fuzz.chaos.checkers import Disturbance, judge_lives
from triolet.fuzz.chaos.clients import Event, EventConnection, Lost, ask, open_events
from triolet.fuzz.chaos.fault_plan import Fault, FaultKind, Transport
from triolet.fuzz.chaos.fault_run import ATTEMPTS_MAX, FaultRunner
from triolet.fuzz.chaos.history import Ending, StreamHistory
from triolet.fuzz.chaos.load import PROBES, start_history
from triolet.fuzz.chaos.report.report import FaultOutcome
from triolet.fuzz.chaos.served_run import ServedRun
from triolet.fuzz.doubles.served import open_listener, where
from triolet.fuzz.observers import start_ticks, state_of, tcp_socket
from triolet.runtime.errors import NoEngine

from ...api.fakes import Fail, FakeGenerator, Say, make_application
from .test_checkers import created, failed, finished, history_of

# Nothing here takes as long, even on a busy machine.
DEADLINE_S = 60.0


@asynccontextmanager
async def open_small_server(generator: FakeGenerator) -> AsyncIterator[int]:
    """Its port."""
    async with await open_listener() as listener, trio.open_nursery() as nursery:
        await nursery.start(serve_connections, listener, make_application(generator))
        yield where(listener)[1]
        nursery.cancel_scope.cancel("the test is over")


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


async def test_no_listener() -> None:
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


FAULT = Fault(
    number=0,
    kind=FaultKind.RST,
    rank=0,
    transport=Transport.SSE,
    script=0,
    token=1,
    seconds=0.01,
)
ENDLESS = [Say("a"), Say("b", after_s=2 * DEADLINE_S)]


@contextlib.contextmanager
def waiting_process() -> Iterator[int]:
    """A process that waits for its input to end."""
    popen = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield popen.pid
    finally:
        popen.kill()
        popen.communicate()


@pytest.fixture
def pid() -> Iterator[int]:
    """One that may be killed and stopped."""
    with waiting_process() as pid:
        yield pid


@pytest.fixture
def other_pid() -> Iterator[int]:
    """And another one."""
    with waiting_process() as pid:
        yield pid


async def test_a_kill_is_proven_by_a_dead_process(pid: int) -> None:
    assert "is Z" in await faults.kill(pid)
    with pytest.raises(faults.Void, match="dead before"):
        await faults.kill(pid)


async def test_of_several_the_youngest_dies_first(
    pid: int, other_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has ended with its engine by then is no error either."""
    killed: list[int] = []
    real, by_age = os.kill, sorted((pid, other_pid), key=lambda each: (start_ticks(each), each))

    def kill(each: int, by: int) -> None:
        killed.append(each)
        real(each, by)
        if len(killed) == 2:
            raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    await faults.kill(*by_age)
    monkeypatch.undo()
    assert killed == by_age[::-1]


async def test_a_stop_is_proven_and_over(pid: int) -> None:
    assert ": T for" in await faults.stop(0.01, pid)
    assert state_of(pid) not in "TZ"
    assert "it was T" in await faults.kill_stopped(pid)
    with pytest.raises(faults.Void):
        await faults.stop(0.01, pid)


async def test_a_crash_is_proven_as_a_kill_is(pid: int) -> None:
    assert "is Z" in await faults.kill(pid, by=signal.SIGSEGV)


async def test_what_stands_still_for_ever_is_ended_by_others_or_told(
    pid: int, other_pid: int
) -> None:
    async def end_it() -> None:
        while state_of(pid) != "T":
            await trio.lowlevel.checkpoint()
        await faults.kill(pid)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_it)
            proof, ended_s = await faults.hang(pid, DEADLINE_S)
        assert "was T" in proof
        assert ended_s is not None
        proof, ended_s = await faults.hang(other_pid, 0.01)
    assert ended_s is None
    assert state_of(other_pid) == "Z", "it is not left stopped"


async def test_all_stand_still_at_once_and_go_on(pid: int, other_pid: int) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(faults.stop, 0.01, pid, other_pid)
        with trio.fail_after(DEADLINE_S):
            while (state_of(pid), state_of(other_pid)) != ("T", "T"):
                await trio.lowlevel.checkpoint()
    assert "T" not in (state_of(pid), state_of(other_pid))


async def test_a_stop_that_is_cancelled_is_over(pid: int) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(faults.stop, DEADLINE_S, pid)
        while state_of(pid) != "T":
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel("enough")
    with trio.fail_after(DEADLINE_S):
        while state_of(pid) == "T":
            await trio.lowlevel.checkpoint()


@attrs.frozen
class Victim:
    """A stream that has begun and will not end by itself."""

    port: int
    connection: EventConnection
    history: StreamHistory
    generator: FakeGenerator

    @property
    def my_port(self) -> int:
        port = self.connection.stream.socket.getsockname()[1]
        assert isinstance(port, int)
        return port


@asynccontextmanager
async def open_victim(
    transport: Transport, words: list[Say] = ENDLESS, *, tiny: bool = False
) -> AsyncIterator[Victim]:
    generator = FakeGenerator(words)
    with trio.fail_after(DEADLINE_S):
        async with (
            open_small_server(generator) as port,
            open_events(transport, port, tiny=tiny) as connection,
        ):
            history = start_history("victim", PROBES[0], transport)
            await connection.create(PROBES[0].body())
            while not history.token_ids:
                history.see(await connection.receive(), trio.current_time())
            yield Victim(port, connection, history, generator)


async def wait_aborted(victim: Victim) -> None:
    while not victim.generator.aborted:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("transport", list(Transport))
@pytest.mark.parametrize("kind", [FaultKind.FIN, FaultKind.RST, FaultKind.HALF_CLOSE])
async def test_a_disconnect_is_proven_and_noticed(transport: Transport, kind: FaultKind) -> None:
    fault = attrs.evolve(FAULT, kind=kind, transport=transport)
    async with open_victim(transport) as victim:
        mine = victim.my_port
        proof = await faults.disconnect(fault, victim.port, victim.connection, victim.history)
        assert proof
        await wait_aborted(victim)
        if kind is FaultKind.HALF_CLOSE:
            while victim.history.ending is None:
                try:
                    await victim.connection.receive()
                except Lost as lost:
                    victim.history.lose(str(lost), trio.current_time())
        else:
            assert victim.history.ending is Ending.LEFT
            end = tcp_socket(victim.port, mine)
            assert end is None or end.state != "01"


@pytest.mark.parametrize("kind", [FaultKind.CANCEL_HTTP, FaultKind.CANCEL_SOCKET])
async def test_a_cancel_ends_the_stream(kind: FaultKind) -> None:
    fault = attrs.evolve(FAULT, kind=kind, transport=Transport.SOCKET)
    async with open_victim(Transport.SOCKET) as victim:
        await faults.cancel(fault, victim.port, victim.connection, victim.history)
        while victim.history.ending is None:
            victim.history.see(await victim.connection.receive(), trio.current_time())
        assert victim.history.ending is Ending.CANCELLED


async def test_what_has_ended_cannot_be_aborted() -> None:
    async with open_victim(Transport.SSE) as victim:
        victim.history.leave(trio.current_time())
        for act in (faults.cancel, faults.disconnect):
            with pytest.raises(faults.Void, match="had ended"):
                await act(FAULT, victim.port, victim.connection, victim.history)


async def test_a_cancel_of_what_is_not_there_is_void() -> None:
    fault = attrs.evolve(FAULT, kind=FaultKind.CANCEL_HTTP)
    async with open_victim(Transport.SSE) as victim:
        victim.history.response_id = "resp_00" + 32 * "0"
        with pytest.raises(faults.Void, match="answered 404"):
            await faults.cancel(fault, victim.port, victim.connection, victim.history)


@pytest.mark.parametrize("kind", [FaultKind.NEVER_READS, FaultKind.SLOW_READER])
async def test_a_slow_reader_is_proven_by_what_waits_for_it(kind: FaultKind) -> None:
    flood = [Say("a"), *(Say(2000 * "b") for _ in range(20))]
    async with open_victim(Transport.SSE, flood, tiny=True) as victim:
        fault = attrs.evolve(FAULT, kind=kind, seconds=2.5)
        proof = await faults.hold(fault, victim.port, victim.connection)
        assert "bytes waited in the server's end" in proof
        read = proof.removesuffix(" were read").rpartition(" ")[2]
        assert int(read) == (2 if kind is FaultKind.SLOW_READER else 0), "a byte a second"


KILL = Fault(
    number=0,
    kind=FaultKind.KILL_ENGINE,
    rank=0,
    transport=Transport.SSE,
    script=0,
    token=0,
    seconds=0.0,
)


EPOCHS = {"frontend 0": 1, "engine 0": 2, "engine 1": 3}
IN_PLACE, WITH_ITS_ENGINE = EPOCHS, {**EPOCHS, "engine 0": 4}


@pytest.mark.parametrize(
    ("kind", "now", "invariants"),
    [
        (FaultKind.CRASH_WORKER, WITH_ITS_ENGINE, []),
        (FaultKind.CRASH_WORKER, IN_PLACE, ["I11", "I10"]),  # the root suspects nobody
        (FaultKind.CRASH_WORKER, {**EPOCHS, "engine 0": 5}, ["I10"]),
        (FaultKind.CRASH_WORKER, {**EPOCHS, "engine 1": 4}, ["I7", "I11"]),
        (FaultKind.KILL_WORKER, IN_PLACE, []),
        (FaultKind.KILL_WORKER, WITH_ITS_ENGINE, ["I7", "I10"]),
        (FaultKind.STOP_WORKER, WITH_ITS_ENGINE, ["I7", "I10"]),
        (FaultKind.HANG_WORKER, IN_PLACE, []),
        (FaultKind.HANG_WORKER, WITH_ITS_ENGINE, []),
        (FaultKind.HANG_WORKER, {**EPOCHS, "engine 0": 5}, ["I10"]),
    ],
)
def test_whom_the_death_of_a_worker_takes_along(
    kind: FaultKind, now: dict[str, int], invariants: list[str]
) -> None:
    found = judge_lives(attrs.evolve(KILL, kind=kind), EPOCHS, now)
    assert [violation.invariant for violation in found] == invariants


@pytest.mark.parametrize(
    ("epoch", "invariants"), [(4, []), (5, []), (6, ["I10"]), (1, ["I11", "I10"])]
)
def test_a_spare_may_have_been_a_successor_when_it_was_killed(
    epoch: int, invariants: list[str]
) -> None:
    fault = attrs.evolve(KILL, kind=FaultKind.KILL_SPARE, also=("spare engine 0",))
    found = judge_lives(fault, EPOCHS, {**EPOCHS, "engine 0": epoch})
    assert [violation.invariant for violation in found] == invariants


@pytest.fixture
def runner() -> Iterator[FaultRunner]:
    popen = subprocess.Popen([sys.executable, "-c", ""])
    yield FaultRunner(ServedRun(popen, pathlib.Path(), "mark"), [])
    popen.wait()


def test_a_stream_that_a_death_ended(runner: FaultRunner) -> None:
    disturbance = Disturbance(place="engine 0", is_death=True, since_s=10.0, until_s=12.0)
    runner.remember(disturbance, FaultKind.KILL_ENGINE)
    died = history_of(created(), failed("engine 0 died"))
    assert runner.blame(died) is FaultKind.KILL_ENGINE
    assert runner.blame(history_of(created(), finished())) is None
    assert runner.disturbances == [disturbance]


def test_a_stop_ends_no_stream(runner: FaultRunner) -> None:
    stop = Disturbance(place="engine 0", is_death=False, since_s=10.0, until_s=12.0)
    runner.remember(stop, FaultKind.STOP_ENGINE)
    assert runner.blame(history_of(created(), failed("engine 0 died"))) is None


async def test_a_victim_is_found_by_its_name(runner: FaultRunner) -> None:
    history = runner.begin(attrs.evolve(KILL, kind=FaultKind.RST), is_victim=True)
    assert runner.blame(history) is FaultKind.RST
    assert runner.histories == [history]


@pytest.mark.parametrize("successes", [1, 0])
async def test_what_another_fault_got_in_the_way_of_is_made_again(
    runner: FaultRunner, successes: int, autojump_clock: trio.testing.MockClock
) -> None:
    outcome, tries = FaultOutcome(0, FaultKind.RST, ""), list[float]()

    async def make() -> None:
        tries.append(trio.current_time())
        if len(tries) == 1:
            raise Lost("its frontend died")
        if not successes or len(tries) == 2:
            raise faults.Void("it had ended before")

    await runner.make(outcome, make)
    assert outcome.attempts == len(tries) == (3 if successes else ATTEMPTS_MAX)
    assert outcome.void == ("" if successes else "it had ended before")


@pytest.mark.parametrize("transport", list(Transport))
async def test_a_reader_that_stops_holds_up_the_server_though_its_stream_is_cut_short(
    runner: FaultRunner, transport: Transport
) -> None:
    fault = attrs.evolve(KILL, kind=FaultKind.NEVER_READS, transport=transport)
    outcome = FaultOutcome(0, FaultKind.NEVER_READS, "")
    with trio.fail_after(DEADLINE_S):
        async with open_small_server(FakeGenerator([Fail(RuntimeError("cut short"))])) as port:
            runner.served.port = port
            async with trio.open_nursery() as nursery:
                await runner.run(fault, outcome, nursery)
    assert "bytes waited" in outcome.proof
    assert outcome.attempts == 1
