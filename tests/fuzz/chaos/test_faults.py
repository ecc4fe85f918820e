"""A fault is proven by what the kernel shows, or void; what it leaves behind is as it was."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from triolet.api.serving.server import serve_connections
from triolet.fuzz.chaos import faults
from triolet.fuzz.chaos.clients import ask
from triolet.fuzz.chaos.keepsakes import Keepsakes
from triolet.fuzz.chaos.own_faults import want
from triolet.fuzz.chaos.surroundings.limits import (
    LIMITS,
    half_of_memory,
    limit_of,
    open_descriptors,
)
from triolet.fuzz.doubles.served import open_listener, where
from triolet.fuzz.observers import state_of

from ...api.fakes import FakeGenerator, Say, make_application

# Nothing here takes as long, even on a busy machine.
DEADLINE_S = 60.0
GONE_PID = 2**22 + 1


@pytest.fixture
def pid() -> Iterator[int]:
    """A process that has booted, and may be killed and stopped."""
    words = [sys.executable, "-c", "print(flush=True); input()"]
    popen = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert popen.stdout is not None
        popen.stdout.readline()
        yield popen.pid
    finally:
        popen.kill()
        popen.communicate()


async def test_a_kill_is_proven_by_a_dead_process(pid: int) -> None:
    assert "is Z" in await faults.kill(pid)
    for fault in (faults.kill(pid), faults.stop(0.01, pid), want(0.01, {pid: {}}, tuple)):
        with pytest.raises(faults.Void):
            await fault


async def test_a_stop_is_proven_and_over(pid: int) -> None:
    assert ": T for" in await faults.stop(0.01, pid)
    assert state_of(pid) not in "TZ"
    with trio.move_on_after(0.1):
        await faults.stop(DEADLINE_S, pid)
    with trio.fail_after(DEADLINE_S):
        while state_of(pid) == "T":
            await trio.lowlevel.checkpoint()


async def test_what_hangs_and_is_ended_by_none_is_told(pid: int) -> None:
    _, ended_s = await faults.hang(pid, 0.01)
    assert ended_s is None
    assert state_of(pid) == "Z", "it is not left stopped"


async def test_what_is_not_there_is_void() -> None:
    for fault in (faults.cut_links(os.getpid(), 1), faults.stall_links(os.getppid(), 0.01)):
        with pytest.raises(faults.Void, match=r"no connection|no thread"):
            await fault
    for most in (half_of_memory, open_descriptors):
        with pytest.raises(faults.Void):
            most(GONE_PID)


async def test_a_limit_is_over_with_its_time(pid: int) -> None:
    before = {which: limit_of(pid, which) for which in LIMITS}
    limits = {**half_of_memory(pid), **open_descriptors(pid)}
    seen: list[dict[int, int]] = []

    async def look() -> None:
        seen.append({which: limit_of(pid, which) for which in limits})

    proof, ended = await want(0.01, {pid: limits}, tuple, look)
    assert (seen, ended) == ([limits], False)
    assert "max open files 3, for 0.01 s" in proof
    assert {which: limit_of(pid, which) for which in LIMITS} == before


@asynccontextmanager
async def open_small_server(generator: FakeGenerator) -> AsyncIterator[int]:
    """Its port."""
    async with await open_listener() as listener, trio.open_nursery() as nursery:
        await nursery.start(serve_connections, listener, make_application(generator))
        yield where(listener)[1]
        nursery.cancel_scope.cancel("the test is over")


async def test_a_response_that_is_not_as_it_was_is_a_violation() -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_small_server(FakeGenerator([Say("Once"), Say(" upon")])) as port:
            keepsakes = Keepsakes(port, "")
            await keepsakes.make()
            assert await keepsakes.check() == []
            await ask(port, "DELETE", f"/v1/responses/{list(keepsakes._objects)[1]}")
            (violation,) = await keepsakes.check()
            assert "is 404" in violation.evidence
            keepsakes._next_text = "another"
            assert len(await keepsakes.check()) == 2
