"""Hosts in one machine talk over links that are cut, slow and healed; nothing of them is left."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from triolet.fuzz.chaos.network.virtual_network import (
    SwitchEnded,
    VirtualNetwork,
    open_virtual_network,
)
from triolet.fuzz.observers import start_ticks, wait_until

from ....leaks import check_no_leaks
from .conftest import DEADLINE_S, HOSTS

pytestmark = pytest.mark.slow

# Whoever runs this without the right to make hosts learns why, and nothing else.
UNPRIVILEGED = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
ROUND_TRIP = f"""
import trio
from triolet.fuzz.chaos.network.virtual_network import open_virtual_network

async def main():
    async with open_virtual_network({HOSTS}) as network:
        print(network.is_in_user_namespace, len(network.pids(1)))

trio.run(main)
"""


def spawn(network: VirtualNetwork, host: int, *words: str) -> subprocess.Popen[bytes]:
    """A process on a host, which may say something and be asked to end."""
    command = [*network.words(host), *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@asynccontextmanager
async def connected(
    network: VirtualNetwork, family: int = socket.AF_INET
) -> AsyncIterator[tuple[trio.socket.SocketType, trio.socket.SocketType]]:
    """A connection from host 1 to host 2."""
    with await network.socket(2, family) as listener, await network.socket(1, family) as client:
        await listener.bind((network.address(2, family), 0))
        listener.listen()
        await client.connect((network.address(2, family), listener.getsockname()[1]))
        server, _ = await listener.accept()
        with server:
            yield client, server


async def round_trip_s(client: trio.socket.SocketType, server: trio.socket.SocketType) -> float:
    began_s = trio.current_time()
    await client.send(b"ping")
    assert await server.recv(4) == b"ping"
    await server.send(b"pong")
    assert await client.recv(4) == b"pong"
    return trio.current_time() - began_s


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_hosts_reach_each_other(network: VirtualNetwork, family: int) -> None:
    async with connected(network, family) as (client, server):
        await round_trip_s(client, server)
        assert server.getpeername()[0] == network.address(1, family)
    counts = await network.counts()
    assert counts[1, 2].passed > 2 < counts[2, 1].passed
    assert not any(each.dropped for each in counts.values())


async def test_a_cut_of_one_way_stops_what_it_carries_until_it_heals(
    network: VirtualNetwork,
) -> None:
    async with connected(network) as (client, server):
        await network.cut([(1, 2)])
        before = await network.counts()
        await client.send(b"ping")
        await server.send(b"pong")
        assert await client.recv(4) == b"pong"

        async def is_lost() -> bool:
            return (await network.counts())[1, 2].dropped > 2

        await wait_until(is_lost, "frames are lost", seconds=DEADLINE_S)
        after = await network.counts()
        assert after[1, 2].passed == before[1, 2].passed
        assert after[2, 1].passed > before[2, 1].passed
        await network.heal([(1, 2)])
        assert await server.recv(4) == b"ping"


async def test_a_delay_is_felt_until_it_is_changed_back(network: VirtualNetwork) -> None:
    async with connected(network) as (client, server):
        await network.change([(1, 2), (2, 1)], delay_s=0.05, jitter_s=0.01)
        assert await round_trip_s(client, server) >= 0.1
        await network.change(network.ways(1), delay_s=0.0, jitter_s=0.0)
        assert min([await round_trip_s(client, server) for _ in range(20)]) < 0.05


async def test_a_host_that_is_off_has_no_process(network: VirtualNetwork) -> None:
    with spawn(network, 3, sys.executable, "-c", "print(flush=True); input()") as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert network.pids(3) == [process.pid]
        await network.cut(network.ways(3))
        assert network.kill(3) == [process.pid]
        assert process.wait() == -signal.SIGKILL
    assert network.pids(3) == []


async def _fail() -> None:
    raise LookupError


@pytest.mark.parametrize("end", [trio.lowlevel.checkpoint, trio.sleep_forever, _fail])
async def test_nothing_is_left_after_a_block_a_cancellation_or_an_error(
    end: Callable[[], Awaitable[None]],
) -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        with trio.CancelScope() as scope, contextlib.suppress(LookupError):
            async with open_virtual_network(1) as network:
                process = spawn(network, 1, "sleep", "60")
                pids = [(pid, start_ticks(pid)) for pid in (network.popen.pid, process.pid)]
                if end is trio.sleep_forever:
                    scope.cancel()
                await end()
        process.communicate()
    assert all(start_ticks(pid) != ticks for pid, ticks in pids)


async def test_the_end_of_the_switch_ends_the_block_and_all_hosts() -> None:
    async def kill_the_switch() -> None:
        async with open_virtual_network(1) as network:
            processes.append(spawn(network, 1, "sleep", "60"))
            await wait_until(lambda: bool(network.pids(1)), "it runs", seconds=DEADLINE_S)
            os.kill(network.popen.pid, signal.SIGKILL)
            await trio.sleep_forever()

    processes: list[subprocess.Popen[bytes]] = []
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        with pytest.raises(SwitchEnded):
            await kill_the_switch()
        processes[0].communicate()
    assert processes[0].returncode == -signal.SIGKILL


def test_without_rights_there_is_a_user_namespace_or_a_reason() -> None:
    done = subprocess.run(
        [*UNPRIVILEGED, sys.executable, "-c", ROUND_TRIP], capture_output=True, text=True
    )
    assert done.stdout == "True 0\n" or "NoNamespaces: " in done.stderr or "unshare" in done.stderr
