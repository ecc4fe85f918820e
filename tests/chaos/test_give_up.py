"""Engines that keep dying: one is given up while another serves on; without any the run ends."""

import os
import pathlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from ..end_to_end.server import DEADLINE_S, Server, open_server, wait_until
from ..end_to_end.streams import SeenStream, body, read_sse

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

# Three restarts are granted within a time in which they happen on a busy machine too.
DEATHS = 4
RESTARTS = ("--restart-limit", "3", "--restart-period", "3600")
EXIT_ENGINE_LOST = 3


@asynccontextmanager
async def open_two_engines(folder: pathlib.Path) -> AsyncIterator[Server]:
    """A server both of whose engines are there: it serves as soon as one is."""
    options = ("--engines", "2", "--executor", "null", *RESTARTS)
    async with open_server(folder, *options) as server:

        async def both_are_ready() -> bool:
            return [engine["state"] for engine in await server.health()] == ["ready", "ready"]

        await wait_until(both_are_ready, "both engines are ready")
        yield server


async def kill_again_and_again(server: Server, place: str, *, last: bool = False) -> None:
    """As often as it comes up, until its restarts are used up; the others serve unless `last`."""
    killed: set[int] = set()

    async def is_up_again() -> bool:
        return (await server.pids()).get(place, 0) not in {0, *killed}

    for _ in range(DEATHS):
        await wait_until(is_up_again, f"{place} is up after {len(killed)} deaths")
        pid = (await server.pids())[place]
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
        assert last or await server.is_ready()


async def test_an_engine_is_given_up_and_then_the_last_one(tmp_path: pathlib.Path) -> None:
    with trio.fail_after(3 * DEADLINE_S):
        async with open_two_engines(tmp_path) as server:

            async def is_given_up() -> bool:
                return (await server.health())[0]["state"] == "failed"

            await kill_again_and_again(server, "engine 0")
            await wait_until(is_given_up, "engine 0 is declared failed")
            assert await server.is_ready()
            assert "engine 0: given up" in server.log()
            first, second = await server.health()
            assert "SIGKILL" in str(first["reason"])
            assert second["state"] == "ready"
            for _ in range(3):
                seen = SeenStream()
                async with server.client() as client:
                    await read_sse(client, body(5), seen)
                assert len(seen.token_ids) == 5

            await kill_again_and_again(server, "engine 1", last=True)
            assert await server.wait_exited() == EXIT_ENGINE_LOST
            assert server.remains() == []
            last = server.log().splitlines()[-1]
            assert last.startswith("triolet: no engine is left: ")
            assert "SIGKILL" in last
            assert "Traceback" not in server.log()


async def test_a_lost_engine_shows_in_the_exit_code_of_an_orderly_end(
    tmp_path: pathlib.Path,
) -> None:
    with trio.fail_after(3 * DEADLINE_S):
        async with open_two_engines(tmp_path) as server:
            await kill_again_and_again(server, "engine 1")
            await wait_until(lambda: "engine 1: given up" in server.log(), "it is given up")
            server.send_signal(signal.SIGTERM)
            assert await server.wait_exited() == EXIT_ENGINE_LOST
            assert server.remains() == []
