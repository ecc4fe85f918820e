"""kill -9 at every tier, idle and in mid-stream: streams are told, the tree heals or is gone."""

import json
import os
import pathlib
import signal

import pytest
import trio

from ..end_to_end.server import (
    DEADLINE_S,
    Server,
    living,
    marked_processes,
    open_server,
    remains,
    wait_until,
)
from ..end_to_end.streams import SeenStream, body, open_socket, read_socket, read_sse
from ..leaks import children_of, process_exists

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

STEP_S = 0.02
# Half a minute of stream: nothing ends by itself before it is killed.
ENDLESS_TOKENS = 1500
LANES = ("a", "b", "c")


async def check_serves(server: Server) -> None:
    """A good request, whole, as soon as the server says that it is ready."""
    await wait_until(server.is_ready, "/ready after a death")
    seen = SeenStream()
    async with server.client() as client:
        await read_sse(client, body(5), seen)
    assert len(seen.token_ids) == 5, seen.events


async def kill(server: Server, place: str) -> dict[str, int]:
    """kill -9 the process at this place; the pids as they were."""
    pids = await server.pids()
    os.kill(pids[place], signal.SIGKILL)
    return pids


async def wait_healed(server: Server, before: dict[str, int], *, replaced: set[str]) -> None:
    """The same tree, other processes at the places that are `replaced`; no zombies of the old."""

    async def healed() -> bool:
        pids = await server.pids()
        return set(pids) == set(before) and all(pids[place] != before[place] for place in replaced)

    await wait_until(healed, f"{', '.join(sorted(replaced))} come back")
    pids = await server.pids()
    assert {place for place in pids if pids[place] != before[place]} == replaced
    assert not any(process_exists(before[place]) for place in replaced)
    assert set(children_of(server.popen.pid)) == {
        pid for place, pid in pids.items() if place in ("frontend 0", "engine 0")
    }


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


ENGINE_DEATHS = {
    "engine 0": "was killed by SIGKILL",
    # The engine dies of its worker, and says so in its last words.
    "engine 0/worker 0": "worker-0",
}


@pytest.mark.parametrize("victim", ENGINE_DEATHS)
async def test_a_death_below_the_frontend(tmp_path: pathlib.Path, victim: str) -> None:
    replaced = {"engine 0", "engine 0/worker 0"}
    opened = open_server(tmp_path, executor="null", null_step_s=STEP_S)
    with trio.fail_after(2 * DEADLINE_S):
        async with opened as server:
            before = await kill(server, victim)  # idle
            await wait_healed(server, before, replaced=replaced)
            await check_serves(server)
            epoch = (await server.health())[0]["epoch"]
            async with trio.open_nursery() as nursery:
                streams = await start_streams(nursery, server)
                before = await kill(server, victim)  # in mid-stream
                await wait_ended(streams)
                for stream in streams:
                    assert stream.broken is None, "the connection lives on"
                    assert stream.error["code"] == "engine_died", stream.last
                    assert ENGINE_DEATHS[victim] in stream.error["message"]
                    assert "SIGKILL" in stream.error["message"]
                    assert "may be sent again" in stream.error["message"]
                await wait_healed(server, before, replaced=replaced)
                await check_serves(server)
                nursery.cancel_scope.cancel("the sockets were open all the time")
            (engine,) = await server.health()
            assert isinstance(epoch, int)
            assert isinstance(engine["epoch"], int)
            assert engine["epoch"] > epoch
            assert (await server.metrics())['kv_blocks_free{engine="0"}'] > 0


async def test_a_death_of_the_frontend(tmp_path: pathlib.Path) -> None:
    opened = open_server(tmp_path, executor="null", null_step_s=STEP_S)
    with trio.fail_after(2 * DEADLINE_S):
        async with opened as server:
            before = await kill(server, "frontend 0")  # idle
            await wait_healed(server, before, replaced={"frontend 0"})
            await check_serves(server)
            async with trio.open_nursery() as nursery:
                streams = await start_streams(nursery, server)
                before = await kill(server, "frontend 0")  # in mid-stream
                await wait_ended(streams)
                assert all(stream.broken for stream in streams), "their connections died with it"
            await wait_healed(server, before, replaced={"frontend 0"})
            await check_serves(server)

            async def all_free() -> bool:
                counts = await server.metrics()
                return counts['kv_blocks_free{engine="0"}'] == counts['kv_blocks{engine="0"}']

            await wait_until(all_free, "what the dead frontend had asked for is aborted")


@pytest.mark.parametrize("streaming", [False, True], ids=["idle", "mid-stream"])
async def test_nothing_outlives_the_root(tmp_path: pathlib.Path, streaming: bool) -> None:
    opened = open_server(tmp_path, executor="null", null_step_s=STEP_S)
    with trio.fail_after(2 * DEADLINE_S):
        async with opened as server, trio.open_nursery() as nursery:
            streams = await start_streams(nursery, server) if streaming else []
            processes = marked_processes(server.mark)
            assert len(processes) == 4, "root, frontend, engine, worker"
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
    async with open_server(tmp_path, executor="null") as following:
        assert following.run_id != server.run_id
        await wait_until(lambda: following.run_folder().path.exists(), "one run folder is left")
