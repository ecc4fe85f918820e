"""Which fault a stream's end is put down to. The rest of it needs a real tree: `tests/chaos`."""

import pathlib
import subprocess
import sys
from collections.abc import Iterator

import attrs
import pytest
import trio

from triolet.fuzz.chaos.checkers import Disturbance
from triolet.fuzz.chaos.clients import open_events
from triolet.fuzz.chaos.fault_plan import Fault, FaultKind, Transport
from triolet.fuzz.chaos.fault_run import FaultRunner, reads_to_its_end
from triolet.fuzz.chaos.served_run import ServedRun

from ...api.fakes import FakeGenerator
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


async def test_a_stream_that_goes_on_to_its_end_is_told() -> None:
    body = {"input": "hi", "runtime": {"token_ids": True}}
    with trio.fail_after(DEADLINE_S):
        async with (
            open_small_server(FakeGenerator()) as port,
            open_events(Transport.SSE, port) as connection,
        ):
            await connection.create(body)
            assert await reads_to_its_end(connection)
