"""kill -9 of the root, idle and in mid-stream, and of engines until they are given up.

Another engine serves on meanwhile; without any the run ends. What single deaths cost streams, and
that the tree heals, is judged by the campaigns of `test_campaign`.
"""

import json
import os
import pathlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from triolet.fuzz.chaos.served_run import is_apart

from ..end_to_end.server import (
    DEADLINE_S,
    Server,
    living,
    marked_processes,
    open_server,
    remains,
    wait_until,
)
from ..end_to_end.streams import SeenStream, body, check_serves, open_socket, read_socket, read_sse

STEP_S = 0.02
# Half a minute of stream: nothing ends by itself before it is killed.
ENDLESS_TOKENS = 1500
LANES = ("a", "b", "c")


async def pids_of(server: Server) -> dict[str, int]:
    """The processes of a server, without those that come a moment later: spares, form processes."""
    pids = await server.pids()
    late = [place for place in pids if is_apart(place) or place.startswith("forms ")]
    return {place: pid for place, pid in pids.items() if place not in late}


async def start_streams(nursery: trio.Nursery, server: Server) -> list[SeenStream]:
    """One stream over HTTP and three lanes of a WebSocket, all begun."""
    over_http = SeenStream()
    lanes: dict[str | None, SeenStream] = {lane: SeenStream() for lane in LANES}

    async def read_http() -> None:
        async with server.client() as client:
            await read_sse(client, body(ENDLESS_TOKENS), over_http)

    async def read_lanes() -> None:
        async with open_socket(server.url) as socket:
            for lane in LANES:
                create = {"type": "response.create", "stream_id": lane, **body(ENDLESS_TOKENS)}
                await socket.send_message(json.dumps(create))
            await read_socket(socket, lanes)

    nursery.start_soon(read_http)
    nursery.start_soon(read_lanes)
    streams = [over_http, *lanes.values()]
    await wait_until(lambda: all(len(s.token_ids) > 2 for s in streams), "all streams begin")
    return streams


async def wait_ended(streams: list[SeenStream]) -> None:
    for stream in streams:
        await stream.ended.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streaming", "others"),
    [
        (False, ()),
        (True, ("frontend 0",)),
        (True, ("engine 0",)),  # its successor may be about to start
        # As if the whole group was killed; a worker is killed before it dies of its engine's death.
        (True, ("engine 0/worker 0", "engine 0", "frontend 0")),
    ],
    ids=["idle", "frontend", "engine", "all"],
)
async def test_nothing_outlives_the_root(
    tmp_path: pathlib.Path, streaming: bool, others: tuple[str, ...]
) -> None:
    opened = open_server(tmp_path, executor="null", null_step_s=STEP_S)
    with trio.fail_after(2 * DEADLINE_S):
        async with opened as server, trio.open_nursery() as nursery:
            streams = await start_streams(nursery, server) if streaming else []
            expected = await pids_of(server)
            processes = marked_processes(server.mark)
            assert len(expected) == 4, "root, frontend, engine, worker"
            assert set(expected.values()) <= set(processes), "a spare worker may be there, too"
            for place in others:
                os.kill(expected[place], signal.SIGKILL)
            os.kill(server.popen.pid, signal.SIGKILL)
            await wait_until(
                lambda: not (remains(server.mark, server.run_id) or living(processes)),
                f"all of {processes} and their sockets are gone with their root",
            )
            assert await server.wait_exited() == -signal.SIGKILL
            await wait_ended(streams)
            assert all(stream.broken for stream in streams)
            # A killed process cannot remove its folder; the next start of a server does.
            (folder,) = server.remains()
            assert folder.startswith("run folder")
    if not streaming:
        async with open_server(tmp_path, executor="null") as following:
            assert following.run_id != server.run_id
            await wait_until(lambda: following.run_folder().path.exists(), "one folder is left")


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
        os.kill(pid, signal.SIGSEGV)  # a plain SIGKILL counts toward nothing
        killed.add(pid)
        assert last or await server.is_ready()


@pytest.mark.slow
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
            assert "SIGSEGV" in str(first["reason"])
            assert second["state"] == "ready"
            for _ in range(3):
                await check_serves(server)

            await kill_again_and_again(server, "engine 1", last=True)
            assert await server.wait_exited() == EXIT_ENGINE_LOST
            # The last engine may have died as it began to start a worker, of which none knows yet
            # and which ends when it finds that its parent is gone.
            await wait_until(lambda: not server.remains(), "all processes have ended")
            # Among what dying engines say on their way.
            said = server.log().splitlines()
            (last,) = [line for line in said if line.startswith("triolet: no engine is left: ")]
            assert "SIGSEGV" in last
            assert "Traceback" not in server.log()


@pytest.mark.slow
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
