"""Fork servers: what they fork is a child of ours like any other, and outlives them."""

import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import attrs
import pytest
import trio
import trio.testing

from triolet.nurseries.processes.fork_server import ForkServer
from triolet.nurseries.processes.orphans import child_pids
from triolet.nurseries.processes.process import Process, ProcessSpec, open_process
from triolet.nurseries.processes.spawned import Spawned

from ..child_programs import (
    PATIENT,
    open_child,
    receive_ready,
    receive_word,
    see_stopped,
    spec_of,
    tell,
    wait_pid_gone,
)

pytestmark = pytest.mark.slow

# What a fork takes here: last words, two pairs of sockets of which we keep one end each, a pidfd.
DESCRIPTORS = 6


@asynccontextmanager
async def open_server(
    module: str = "obedient", preparation: bytes = b""
) -> AsyncIterator[ForkServer]:
    spec = attrs.evolve(spec_of(module, name="forks"), forks=True)
    async with open_child(spec, until_ready=False) as process:
        server = ForkServer(process)
        try:
            await server.wait_warm(preparation)
            yield server
        finally:
            await server.close()


@asynccontextmanager
async def open_fork(spawned: Spawned) -> AsyncIterator[Process]:
    spec = ProcessSpec("forked", "", spawned=spawned)
    async with open_process(spec, ladder=PATIENT) as process:
        yield process


async def test_what_was_forked_is_a_child_of_ours_in_a_group_of_its_own() -> None:
    async with open_server() as server:
        async with open_fork(await server.fork()) as one, open_fork(await server.fork()) as other:
            for process in (one, other):
                assert await receive_ready(process) == "ready"
                assert os.getpgid(process.pid) == process.pid
            assert {one.pid, other.pid, server.process.pid} <= set(child_pids(os.getpid()))
            tell(one, "any word fails it")
            how = await one.wait_exited()
            assert (how.code, how.cause) == (
                1,
                "exited with code 1: ValueError: ordered to fail",
            )
            other.ask_to_stop()
            assert (await other.wait_exited()).code == 0
        assert server.process.exit is None


async def test_the_end_of_the_server_is_not_that_of_what_it_forked() -> None:
    async with open_server() as server, open_fork(await server.fork()) as process:
        server.process.kill_group()
        await server.process.wait_exited()
        assert await receive_ready(process) == "ready"
        with pytest.raises(ConnectionError):
            await server.fork()


async def test_what_was_forked_by_a_server_that_dies_before_it_answers_has_an_owner() -> None:
    async with open_server("dies_forking") as server, open_fork(await server.fork()) as process:
        assert (await server.process.wait_exited()).was_killed
        assert await receive_ready(process) == "ready"
        assert child_pids(os.getpid()) == [process.pid]


async def test_what_the_server_has_prepared_is_there_in_what_it_forks() -> None:
    large = b"x" * 100_000  # more than a message may have
    async with open_server("prepares", large) as server:
        for _ in range(2):
            async with open_fork(await server.fork()) as process:
                await trio.lowlevel.wait_readable(process.control)
                text, place = process.control.recv(200_000).split(b" in ")
                assert (text, int(place)) == (large, server.process.pid)


async def test_what_starts_ahead_is_a_child_of_what_was_forked() -> None:
    async with open_server("waits_with_ahead") as server:
        async with open_fork(await server.fork(["obedient"])) as process:
            child = int(await receive_word(process))
            assert child_pids(process.pid) == [child]
        await wait_pid_gone(child)


async def test_the_death_of_the_parent_ends_what_was_forked() -> None:
    """The parent is a process of ours that has a fork server itself."""
    async with open_child("forks_one", until_ready=False) as parent:
        forked = int(await receive_word(parent))
        parent.send_signal(signal.SIGKILL)
        await parent.wait_exited()
        await wait_pid_gone(forked)


async def test_a_stopped_server_is_given_up_and_ended() -> None:
    async with open_server() as server:
        server.process.send_signal(signal.SIGSTOP)
        see_stopped(server.process.pidfd)
        server.fork_s = 0.0
        with pytest.raises(TimeoutError, match="forks does not answer"):
            await server.fork()
        assert (await server.process.wait_exited()).was_killed


async def test_a_fork_that_is_cancelled_while_it_is_made_has_an_owner() -> None:
    forked: list[Process] = []

    async def own(server: ForkServer) -> None:
        async with open_fork(await server.fork()) as process:
            forked.append(process)
            await trio.lowlevel.checkpoint()
            raise AssertionError("it was cancelled")

    async with open_server() as server:
        server.process.send_signal(signal.SIGSTOP)
        see_stopped(server.process.pidfd)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(own, server)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel("in the midst")
            server.process.send_signal(signal.SIGCONT)
        assert forked[0].exit is not None


async def test_without_descriptors_it_says_so() -> None:
    async with open_server() as server:
        pid, number = server.process.pid, resource.RLIMIT_NOFILE
        enough = resource.prlimit(pid, number)
        used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
        third_free = [fd for fd in range(len(used) + 3) if fd not in used][2]
        resource.prlimit(pid, number, (third_free, enough[1]))  # of three that are sent
        with pytest.raises(OSError, match="Too many open files"):
            await server.fork()
        resource.prlimit(pid, number, enough)
        async with open_fork(await server.fork()) as process:
            assert await receive_ready(process) == "ready"


async def test_with_too_few_descriptors_of_our_own_nothing_is_forked() -> None:
    async with open_server() as server:
        for free in range(DESCRIPTORS):
            with few_descriptors(free), pytest.raises(OSError, match="Too many open files"):
                await server.fork()
            assert child_pids(os.getpid()) == [server.process.pid]
        with few_descriptors(DESCRIPTORS):
            spawned = await server.fork()
        async with open_fork(spawned) as process:
            assert await receive_ready(process) == "ready"


@contextmanager
def few_descriptors(free: int) -> Iterator[None]:
    """This process may open no more than so many."""
    enough = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Tried, not listed: a thread that waits in accept() has taken one that /proc does not show.
    tried = [os.open(os.devnull, os.O_RDONLY) for _ in range(free + 1)]
    for fd in tried:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (tried[-1], enough[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, enough)


async def test_a_module_with_threads_is_not_forked() -> None:
    spec = attrs.evolve(spec_of("has_a_thread"), forks=True)
    async with open_child(spec, until_ready=False) as process:
        server = ForkServer(process)
        with pytest.raises(OSError, match="gone"):
            await server.wait_warm()
        await server.close()
        how = await process.wait_exited()
        assert "a process with several threads cannot be forked" in how.cause
