"""Toxic proxy and want of descriptors: what they do is seen, and over afterwards."""

import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from triolet.fuzz.chaos.fault_plan import FaultKind, make_plan
from triolet.fuzz.chaos.faults import Void
from triolet.fuzz.chaos.surroundings.descriptors import limit_of, no_descriptors
from triolet.fuzz.chaos.surroundings.network import spoil
from triolet.fuzz.doubles.toxic_proxy import HOST, ToxicProxy

from ..test_faults import DEADLINE_S


@asynccontextmanager
async def open_echo() -> AsyncIterator[tuple[ToxicProxy, trio.SocketStream]]:
    """A proxy to a server that answers what it gets, and a client of it."""

    async def echo(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host=HOST)
            port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, echo, listeners)
            proxy = ToxicProxy(port, random.Random(1))
            async with await trio.open_tcp_stream(HOST, await nursery.start(proxy.run)) as client:
                await client.send_all(b"hello")
                assert await client.receive_some() == b"hello"
                assert proxy.late_bytes == 0
                yield proxy, client
            nursery.cancel_scope.cancel("the test is over")


async def answer(client: trio.SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await client.receive_some()
    return data


@pytest.mark.parametrize(("delay_s", "loss"), [(0.01, 0.0), (0.0, 0.5)])
async def test_what_is_late_arrives_all_the_same(delay_s: float, loss: float) -> None:
    async with open_echo() as (proxy, client):
        proxy.delay_s, proxy.loss = delay_s, loss
        for number in range(3):
            await client.send_all(b"%07d" % number)
            assert await answer(client, 7) == b"%07d" % number
        assert proxy.late_bytes > 0
        proxy.pass_on()
        before = proxy.late_bytes
        await client.send_all(b"at once")
        await answer(client, 7)
        assert proxy.late_bytes == before


async def test_a_silent_network_passes_nothing_until_it_does() -> None:
    async with open_echo() as (proxy, client):
        proxy.silence()
        await client.send_all(b"kept back")
        while not proxy.late_bytes:
            await trio.lowlevel.checkpoint()
        proxy.pass_on()
        assert await answer(client, 9) == b"kept back"


async def test_a_cut_resets_the_client() -> None:
    async with open_echo() as (proxy, client):
        proxy.cut()
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some()
        assert proxy.cuts == 1


@pytest.mark.parametrize(
    "kind", [FaultKind.DELAY, FaultKind.LOSS, FaultKind.SILENCE, FaultKind.CUT]
)
async def test_a_network_is_good_again_after_its_fault(kind: FaultKind) -> None:
    (fault,) = make_plan(1, 1, engines=1, frontends=1, scripts=1, kinds=[kind])
    assert fault.token >= 1, "only what has an id can be read on"
    async with open_echo() as (proxy, _):
        await spoil(proxy, kind, 0.01)
        assert (proxy.delay_s, proxy.loss) == (0.0, 0.0)
        assert proxy.cuts == (kind in (FaultKind.SILENCE, FaultKind.CUT))


OPENS = """
print("begun", flush=True)
input()
try:
    open("/dev/null")
except OSError as error:
    print(error.errno, flush=True)
input()
open("/dev/null")
"""


@pytest.fixture
def opening() -> Iterator[subprocess.Popen[bytes]]:
    """A process that opens a file when it gets a line, and another one."""
    with subprocess.Popen(
        [sys.executable, "-c", OPENS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as popen:
        assert popen.stdout is not None
        assert popen.stdout.readline() == b"begun\n"
        yield popen
        popen.kill()


def test_a_process_without_descriptors_opens_none_until_it_is_over(
    opening: subprocess.Popen[bytes],
) -> None:
    assert opening.stdin is not None
    assert opening.stdout is not None
    before = limit_of(opening.pid)
    with no_descriptors(opening.pid) as proof:
        assert "beside its 3" in proof
        assert limit_of(opening.pid) == 3
        opening.stdin.write(b"\n")
        opening.stdin.flush()
        assert opening.stdout.readline() == b"24\n", "EMFILE"
    assert limit_of(opening.pid) == before
    opening.stdin.write(b"\n")
    opening.stdin.flush()
    assert opening.wait() == 0


def test_a_process_that_is_gone_cannot_be_limited() -> None:
    with pytest.raises(Void), no_descriptors(2**22 + 1):
        pass
