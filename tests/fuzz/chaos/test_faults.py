"""A fault is proven by what the kernel shows, or it did not happen."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from triolet.fuzz.chaos import faults
from triolet.fuzz.chaos.clients import EventConnection, Lost, open_events
from triolet.fuzz.chaos.fault_plan import Fault, FaultKind, Transport
from triolet.fuzz.chaos.history import Ending, StreamHistory
from triolet.fuzz.chaos.load import PROBES, start_history
from triolet.fuzz.observers import state_of, tcp_socket

from ...api.fakes import FakeGenerator, Say
from .small_server import DEADLINE_S, open_small_server

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


@pytest.fixture
def pid() -> Iterator[int]:
    """A process that waits for its input to end."""
    popen = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield popen.pid
    finally:
        popen.kill()
        popen.communicate()


async def test_a_kill_is_proven_by_a_dead_process(pid: int) -> None:
    assert "is Z" in await faults.kill(pid)
    with pytest.raises(faults.Void, match="dead before"):
        await faults.kill(pid)


async def test_a_stop_is_proven_and_over(pid: int) -> None:
    assert "was T" in await faults.stop(pid, 0.01)
    assert state_of(pid) not in "TZ"
    assert "it was T" in await faults.kill_stopped(pid)
    with pytest.raises(faults.Void):
        await faults.stop(pid, 0.01)


async def test_a_stop_that_is_cancelled_is_over(pid: int) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(faults.stop, pid, DEADLINE_S)
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


async def test_leaving_says_goodbye() -> None:
    fault = attrs.evolve(FAULT, kind=FaultKind.LEAVE, transport=Transport.SOCKET)
    async with open_victim(Transport.SOCKET) as victim:
        await faults.disconnect(fault, victim.port, victim.connection, victim.history)
        await wait_aborted(victim)


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


def test_a_pid_of_ours_is_alive() -> None:
    assert state_of(os.getpid()) == "R"
