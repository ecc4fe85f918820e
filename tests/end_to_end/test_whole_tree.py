"""Many processes under load: who serves what, and the live tree that shows it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio

from triolet.fuzz.chaos.served_run import is_apart
from triolet.nurseries.tasks.task_tree import ProcessTree, TaskKind, TaskNode
from triolet.tests.house import ROOT
from triolet.tests.live_tasks import find_tasks

from .server import DEADLINE_S, Server, module_server, places, wait_until
from .streams import SeenStream, body, open_socket, read_socket

pytestmark = pytest.mark.slow

SOCKETS = 8
LANES = 8
# Of each stream; it has credit for the first of them only, until all has been looked at.
TOKENS = 200
FIRST_TOKENS = 2


def tasks_of_the_readme() -> Iterator[tuple[str, list[str], list[str]]]:
    """(file, names, kinds of process) of each row of its table of background tasks."""
    table = (ROOT / "README.md").read_text().partition("\n| background task |")[2]
    for row in table.partition("\n\n")[0].splitlines()[2:]:
        _, names, kinds, file = row.strip("| ").split(" | ")
        yield file.strip("`"), re.findall("`([^`]+)`", names), kinds.split(", ")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two frontends, two engines."""
    folder = tmp_path_factory.mktemp("tree")
    with module_server(folder, "2", "2", executor="null", null_step_s=0.01) as server:
        trio.run(server.wait_linked, 2, 2)
        yield server


def request(number: int) -> dict[str, Any]:
    """Every stream has a seed of its own, and so tokens of its own."""
    runtime = {"seed": number, "ignore_eos": True, "token_ids": True, "credit": FIRST_TOKENS}
    return {**body(TOKENS), "type": "response.create", "runtime": runtime}


@attrs.define(eq=False)
class Load:
    """Streams that stand still after their first tokens until `let_go` is called."""

    streams: list[SeenStream] = attrs.field(factory=list)
    let_go: trio.Event = attrs.field(factory=trio.Event)

    def has_begun(self) -> bool:
        """Whether every stream has brought its first tokens."""
        return len(self.streams) == SOCKETS * LANES and all(s.token_ids for s in self.streams)

    async def run_socket(self, server: Server, number: int) -> None:
        """One connection with a stream in each lane, read until it is closed."""
        lanes: dict[str | None, SeenStream] = {str(n): SeenStream() for n in range(LANES)}
        self.streams += lanes.values()
        async with open_socket(server.url) as socket, trio.open_nursery() as nursery:
            for lane in lanes:
                create = {**request(number * LANES + int(lane or 0)), "stream_id": lane}
                await socket.send_message(json.dumps(create))
            nursery.start_soon(read_socket, socket, lanes)
            await self.let_go.wait()
            for lane in lanes:
                grant = {"type": "runtime.credit", "stream_id": lane, "add": TOKENS}
                await socket.send_message(json.dumps(grant))


@asynccontextmanager
async def open_load(server: Server) -> AsyncIterator[Load]:
    """64 streams on eight sockets, all of them begun; cut when the block is left."""
    load = Load()
    async with trio.open_nursery() as nursery:
        for number in range(SOCKETS):
            nursery.start_soon(load.run_socket, server, number)
        await wait_until(load.has_begun, "all begin")
        yield load
        nursery.cancel_scope.cancel("the load is over")


async def tree_command(server: Server, *options: str) -> str:
    """What `triolet tree` prints, once every process has answered it in time."""
    printed = ""

    async def has_answered() -> bool:
        nonlocal printed
        done = await trio.run_process(
            [sys.executable, "-m", "triolet", "tree", server.run_id, *options],
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            check=False,
            env={**os.environ, "XDG_RUNTIME_DIR": str(server.folder)},
        )
        printed = done.stdout.decode()
        return done.returncode == 0 and "does not answer" not in printed

    await wait_until(has_answered, "every process answers the command")
    return printed


def silent_tasks(node: TaskNode) -> list[str]:
    """Those that neither run, nor say what they wait for, nor have children that may say it."""
    if not node.children:
        return [node.name] if node.state == "parked" else []
    return [name for child in node.children for name in silent_tasks(child)]


async def test_an_idle_server_says_of_every_task_what_it_waits_for(server: Server) -> None:
    with trio.fail_after(2 * DEADLINE_S):
        text = await tree_command(server)
        tree = msgspec.json.decode(await tree_command(server, "--json"), type=ProcessTree)
    silent = {
        (place, name)
        for place, process in places(tree)
        if process.tasks is not None
        for name in silent_tasks(process.tasks)
        if "." not in name  # a helper of the task that started it, which says it
    }
    assert silent == set()
    assert "triolet." not in text
    assert "<" not in text
    assert "output-handler  waiting" in text
    assert "for outputs from engines" in text


async def test_64_streams_are_spread_and_served_in_full(server: Server) -> None:
    with trio.fail_after(2 * DEADLINE_S):
        async with open_load(server) as load:
            streams = load.streams
            processes = dict(places(await server.tree()))
            load.let_go.set()
            for stream in streams:
                await stream.ended.wait()
    # Evenly up to what reports of load, some hundredths of a second old, cannot know.
    shares = [int(processes[f"frontend {rank}"].facts["connections"]) for rank in range(2)]
    assert sum(shares) == SOCKETS
    assert min(shares) >= SOCKETS // 4
    running = [int(processes[f"engine {rank}"].facts["running"]) for rank in range(2)]
    assert min(running) >= SOCKETS * LANES // 4
    assert {stream.last["type"] for stream in streams} == {"response.incomplete"}
    assert {len(stream.token_ids) for stream in streams} == {TOKENS}
    assert len({tuple(stream.token_ids) for stream in streams}) == len(streams)

    async def all_free() -> bool:
        free = [
            p.facts["kv blocks"] for _, p in places(await server.tree()) if "kv blocks" in p.facts
        ]
        return all(str(text).split()[0] == str(text).split()[2] for text in free)

    await wait_until(all_free, "all KV blocks of both engines are free")


async def test_the_tree_shows_every_process_and_the_tasks_of_the_card(server: Server) -> None:
    with trio.fail_after(2 * DEADLINE_S):
        async with open_load(server):
            text = await tree_command(server)
            tree = await server.tree()
    processes = dict(places(tree))
    # Spare workers come a moment after all is ready.
    assert sorted(place for place in processes if not is_apart(place)) == [
        "engine 0",
        "engine 0/worker 0",
        "engine 1",
        "engine 1/worker 0",
        "forms 0",
        "forms 1",
        "frontend 0",
        "frontend 1",
        "root",
    ]
    kinds = {"worker": "engine 0/worker 0"}
    rows = list(tasks_of_the_readme())
    assert len(rows) >= 13
    for file, names, processes_of in rows:
        assert (ROOT / file).is_file()
        for kind in processes_of:
            place = kind if kind == "root" else kinds.get(kind, f"{kind} 0")
            tasks = processes[place].tasks
            assert tasks is not None
            found = {name: find_tasks(tasks, name) for name in names}
            assert [name for name, nodes in found.items() if not nodes] == [], place
            assert TaskKind.PART not in [nodes[0].kind for nodes in found.values()], place
            assert [name for name in names if f" {name}" not in text] == []
            assert f"{processes[place].name} (pid {processes[place].pid})" in text
    assert "[until its users end]" in text
    assert re.search(r"throughput-log .*\[deadline in [\d.]+ s\]", text)
    assert processes["root"].pid == server.popen.pid
    assert processes["engine 0"].facts["running"]
    assert processes["engine 0/worker 0"].facts["phase"] == "serve"
    assert "× 8" in text, "lanes of a socket are folded into a line"
