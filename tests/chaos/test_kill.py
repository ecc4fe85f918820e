"""kill -9 at every tier, idle and in mid-stream: streams go on or break, the tree heals or is gone.

Engines that keep dying are given up while another serves on; without any the run ends.
"""

import json
import os
import pathlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

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
from ..leaks import children_of, process_exists

STEP_S = 0.02
# Half a minute of stream: nothing ends by itself before it is killed.
ENDLESS_TOKENS = 1500
LANES = ("a", "b", "c")
# Two seconds of stream: it is killed in the midst of them, and ends by itself.
TOKENS = 90


async def pids_of(server: Server) -> dict[str, int]:
    """The processes of a server, without those that come a moment later: spares, form processes."""
    pids = await server.pids()
    late = [place for place in pids if is_apart(place) or place.startswith("forms ")]
    return {place: pid for place, pid in pids.items() if place not in late}


async def kill(server: Server, place: str) -> dict[str, int]:
    """kill -9 the process at this place; the pids as they were."""
    pids = await pids_of(server)
    os.kill(pids[place], signal.SIGKILL)
    return pids


async def wait_healed(server: Server, before: dict[str, int], *, replaced: set[str]) -> None:
    """The same tree, other processes at the places that are `replaced`; no zombies of the old."""

    async def healed() -> bool:
        pids = await pids_of(server)
        return set(pids) == set(before) and all(pids[place] != before[place] for place in replaced)

    await wait_until(healed, f"{', '.join(sorted(replaced))} come back")
    pids = await pids_of(server)
    assert {place for place in pids if pids[place] != before[place]} == replaced
    assert not any(process_exists(before[place]) for place in replaced)
    children = {pid for place, pid in pids.items() if place in ("frontend 0", "engine 0")}
    forms = {pid for place, pid in (await server.pids()).items() if place.startswith("forms ")}
    assert set(children_of(server.popen.pid)) - forms == children


async def start_streams(
    nursery: trio.Nursery, server: Server, tokens: int = ENDLESS_TOKENS
) -> list[SeenStream]:
    """One stream over HTTP and three lanes of a WebSocket, all begun."""
    over_http = SeenStream()
    lanes: dict[str | None, SeenStream] = {lane: SeenStream() for lane in LANES}

    async def read_http() -> None:
        async with server.client() as client:
            await read_sse(client, body(tokens), over_http)

    async def read_lanes() -> None:
        async with open_socket(server.url) as socket:
            for lane in LANES:
                create = {"type": "response.create", "stream_id": lane, **body(tokens)}
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
async def test_a_death_of_the_engine(tmp_path: pathlib.Path) -> None:
    replaced, victim = {"engine 0", "engine 0/worker 0"}, "engine 0"
    opened = open_server(tmp_path, executor="null", null_step_s=STEP_S)
    with trio.fail_after(2 * DEADLINE_S):
        async with opened as server:
            before = await kill(server, victim)  # idle
            await wait_healed(server, before, replaced=replaced)
            await check_serves(server)
            epoch = (await server.health())[0]["epoch"]
            undisturbed = SeenStream()
            async with server.client() as client:
                await read_sse(client, body(TOKENS), undisturbed)
            async with trio.open_nursery() as nursery:
                streams = await start_streams(nursery, server, TOKENS)
                before = await kill(server, victim)  # in mid-stream
                await wait_ended(streams)
                for stream in streams:
                    assert stream.broken is None, "the connection lives on"
                    assert stream.error == {}
                    assert stream.token_ids == undisturbed.token_ids
                    usage, expected = (s.last["response"]["usage"] for s in (stream, undisturbed))
                    assert usage["output_tokens"] == expected["output_tokens"] == TOKENS
                await wait_healed(server, before, replaced=replaced)
                await check_serves(server)
                nursery.cancel_scope.cancel("the sockets were open all the time")
            (engine,) = await server.health()
            assert isinstance(epoch, int)
            assert isinstance(engine["epoch"], int)
            assert engine["epoch"] > epoch
            assert (await server.metrics())['kv_blocks_free{engine="0"}'] > 0


WORKER_KILLS = 5


@pytest.mark.slow
async def test_deaths_of_the_worker_are_a_pause(tmp_path: pathlib.Path) -> None:
    """The same tokens as without, from the same engine, which is ready all the time."""
    opened = open_server(tmp_path, executor="null", null_step_s=STEP_S)
    with trio.fail_after(2 * DEADLINE_S):
        async with opened as server:
            before = await kill(server, "engine 0/worker 0")  # idle
            await wait_healed(server, before, replaced={"engine 0/worker 0"})
            (engine,) = await server.health()
            async with trio.open_nursery() as nursery:
                streams = await start_streams(nursery, server)
                for _ in range(WORKER_KILLS):
                    seen = [len(stream.token_ids) for stream in streams]
                    before = await kill(server, "engine 0/worker 0")
                    await wait_healed(server, before, replaced={"engine 0/worker 0"})
                    (now,) = await server.health()
                    assert (now["state"], now["epoch"]) == ("ready", engine["epoch"])
                    await wait_until(partial(_all_beyond, streams, seen), "all streams go on")
                nursery.cancel_scope.cancel("the clients leave")
            counts = await server.metrics()
            assert counts['worker_restarts_total{engine="0"}'] == 1 + WORKER_KILLS
            shortest = min(len(stream.token_ids) for stream in streams)
            undisturbed = SeenStream()
            async with server.client() as client:
                await read_sse(client, body(shortest), undisturbed)
            for stream in streams:
                assert stream.token_ids[:shortest] == undisturbed.token_ids
                indices = [
                    event["token_index"] for event in stream.events if event.get("token_ids")
                ]
                assert indices == sorted(set(indices))
            deaths = server.log().count("was killed by SIGKILL; others take the place")
            assert deaths == 1 + WORKER_KILLS


def _all_beyond(streams: list[SeenStream], seen: list[int]) -> bool:
    assert not any(stream.ended.is_set() for stream in streams)
    return all(len(s.token_ids) > count + 3 for s, count in zip(streams, seen, strict=True))


@pytest.mark.slow
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
                await wait_healed(server, before, replaced={"frontend 0"})
                counts = [len(stream.token_ids) for stream in streams]

                def all_go_on() -> bool:
                    now = [len(stream.token_ids) for stream in streams]
                    return all(new > old for new, old in zip(now, counts, strict=True))

                await wait_until(all_go_on, "all streams go on")
                assert not any(stream.ended.is_set() for stream in streams), "as do connections"
                nursery.cancel_scope.cancel("their clients leave")
            await check_serves(server)

            async def all_free() -> bool:
                counts = await server.metrics()
                return counts['kv_blocks_free{engine="0"}'] == counts['kv_blocks{engine="0"}']

            await wait_until(all_free, "what they had asked for is aborted")


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
