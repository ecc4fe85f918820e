"""Which fault a stream's end is put down to. The rest of it needs a real tree: `tests/chaos`."""

import pathlib
import subprocess
import sys
from collections.abc import Iterator

import attrs
import pytest
import trio
import trio.testing

from triolet.fuzz.chaos import faults
from triolet.fuzz.chaos.checkers import Disturbance
from triolet.fuzz.chaos.clients import Lost, open_events
from triolet.fuzz.chaos.fault_plan import Fault, FaultKind, Transport
from triolet.fuzz.chaos.fault_run import ATTEMPTS_MAX, FaultRunner, reads_to_its_end
from triolet.fuzz.chaos.report import FaultOutcome
from triolet.fuzz.chaos.served_run import ServedRun

from ...api.fakes import Fail, FakeGenerator
from .histories import created, failed, finished, history_of
from .small_server import DEADLINE_S, open_small_server

FAULT = Fault(
    number=0,
    kind=FaultKind.KILL_ENGINE,
    rank=0,
    transport=Transport.SSE,
    script=0,
    token=0,
    seconds=0.0,
)


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


async def test_a_victim_is_told_by_its_name(runner: FaultRunner) -> None:
    history = runner.begin(attrs.evolve(FAULT, kind=FaultKind.RST), is_victim=True)
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
    fault = attrs.evolve(FAULT, kind=FaultKind.NEVER_READS, transport=transport)
    outcome = FaultOutcome(0, FaultKind.NEVER_READS, "")
    with trio.fail_after(DEADLINE_S):
        async with open_small_server(FakeGenerator([Fail(RuntimeError("cut short"))])) as port:
            runner.served.port = port
            async with trio.open_nursery() as nursery:
                await runner.run(fault, outcome, nursery)
    assert "bytes waited" in outcome.proof
    assert outcome.attempts == 1


async def test_a_stream_that_goes_on_to_its_end_is_told() -> None:
    body = {"input": "hi", "runtime": {"token_ids": True}}
    with trio.fail_after(DEADLINE_S):
        async with (
            open_small_server(FakeGenerator()) as port,
            open_events(Transport.SSE, port) as connection,
        ):
            await connection.create(body)
            assert await reads_to_its_end(connection)
