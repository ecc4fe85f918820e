"""A live server that is watched: the feed beyond deaths, signals, `triolet top`."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import pytest
import trio

from .server import DEADLINE_S, Server, module_server

pytestmark = pytest.mark.slow
ADMIN = {"authorization": "Bearer admin"}
STORY = {
    "input": "Tell me a story about a fox.",
    "max_output_tokens": 400,
    "stream": True,
    "runtime": {"seed": 1, "ignore_eos": True},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("watching")
    steps = "--executor", "null", "--null-step", "0.01"
    with module_server(folder, "--admin-key", "admin", *steps) as server:
        trio.run(server.wait_linked, 1, 1)
        yield server


@attrs.define(eq=False)
class Feed:
    """The events of one feed, as they come, and the rows that they make."""

    stream: trio.SocketStream
    kinds: list[str] = attrs.field(factory=list)
    rows: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    streams: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    tokens: int = 0
    marks: set[tuple[str, str]] = attrs.field(factory=set)
    _received: bytes = attrs.field(default=b"", init=False)

    async def line(self) -> str:
        while b"\n" not in self._received:
            data = await self.stream.receive_some()
            assert data, "the feed has ended"
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    async def read_until(self, is_seen: Any) -> None:
        while not is_seen():
            line = await self.line()
            if line.startswith("event: "):
                self.kinds.append(line.removeprefix("event: "))
            elif line.startswith("data: "):
                self.merge(json.loads(line.removeprefix("data: ")))

    def merge(self, change: dict[str, Any]) -> None:
        for row in change.get("processes", ()):
            self.rows.setdefault(row["place"], {}).update(row)
        for stream in change.get("streams", ()):
            self.streams.setdefault(stream["id"], {}).update(stream)
            self.tokens += sum(stream.get("counts", ()))
        for mark in change.get("marks", ()):
            self.marks.add((mark["place"], mark["kind"]))

    def is_whole(self) -> bool:
        """Whether each process that can speak has said what it does."""
        places = ("root", "frontend 0", "engine 0", "engine 0 worker 0")
        return all(self.rows.get(place, {}).get("tasks") for place in places)


@asynccontextmanager
async def open_feed(server: Server) -> AsyncIterator[Feed]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    request = f"GET /admin/feed HTTP/1.0\r\nHost: {host}\r\nAuthorization: Bearer admin\r\n\r\n"
    with trio.fail_after(DEADLINE_S):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(request.encode())
            feed = Feed(stream)
            assert " 200 " in await feed.line()
            yield feed


async def kill(server: Server, place: str, pid: int) -> httpx.Response:
    async with server.client() as client:
        body = {"place": place, "signal": "kill", "pid": pid}
        return await client.post("/admin/signal", json=body, headers=ADMIN)


async def kill_and_hear(server: Server, place: str, pid: int) -> None:
    """A frontend that kills itself has no time to answer: its next life does."""
    assert (await kill(server, place, pid)).status_code == 202


async def test_a_stream_goes_on_while_its_engine_is_killed_and_all_is_seen(server: Server) -> None:
    async with open_feed(server) as feed, server.client() as client:
        await feed.read_until(feed.is_whole)
        assert feed.kinds[0] == "snapshot"
        engine = dict(feed.rows["engine 0"])
        assert engine["facts"]["kv_blocks"] > 0
        async with client.stream("POST", "/v1/responses", json=STORY) as story:
            await feed.read_until(lambda: feed.tokens > 10)
            assert (await kill(server, "engine 0", engine["pid"])).status_code == 202
            await feed.read_until(lambda: ("engine 0", "died") in feed.marks)
            events = [line async for line in story.aiter_lines() if line.startswith("event: ")]
        assert events[-1] == "event: response.incomplete"
        await feed.read_until(lambda: any("end" in each for each in feed.streams.values()))
        (stream,) = feed.streams.values()
        assert (stream["state"], stream["tokens"], stream["replayed"]) == ("finished", 400, True)
        await feed.read_until(lambda: feed.rows["engine 0"]["state"] == "ready")
        assert feed.rows["engine 0"]["pid"] != engine["pid"]
        assert (await kill(server, "engine 0", engine["pid"])).status_code == 202  # it is done
        again = await kill(server, "engine 0", 1)
        assert (again.status_code, again.json()["error"]["code"]) == (409, "process_changed")


async def test_a_feed_goes_on_when_its_own_frontend_is_killed(server: Server) -> None:
    async with open_feed(server) as feed:
        await feed.read_until(feed.is_whole)
        pid = feed.rows["frontend 0"]["pid"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_and_hear, server, "frontend 0", pid)
            await feed.read_until(lambda: ("frontend 0", "died") in feed.marks)
        assert feed.kinds.count("snapshot") == 2
        await feed.read_until(lambda: feed.rows["frontend 0"]["pid"] not in (0, pid))
        feed.rows.clear()
        await feed.read_until(feed.is_whole)


def top_of(server: Server) -> tuple[list[str], dict[str, str]]:
    command = [sys.executable, "-m", "triolet", "top", server.run_id]
    return command, {**os.environ, "XDG_RUNTIME_DIR": str(server.folder), "TERM": "xterm"}


def test_top_is_printed_once_where_there_is_no_terminal(server: Server) -> None:
    command, env = top_of(server)
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for words in ("root", "frontend 0", "engine 0", "engine 0 worker 0", "KV blocks"):
        assert words in done.stdout


def test_top_in_a_terminal_ends_by_its_key_and_leaves_the_terminal_as_it_was(
    server: Server,
) -> None:
    command, env = top_of(server)
    ours, its = pty.openpty()
    process = subprocess.Popen(command, env=env, stdin=its, stdout=its, stderr=its)
    try:
        os.close(its)
        shown = b""
        while b"engine 0" not in shown:
            shown += os.read(ours, 65536)
        os.write(ours, b"q")
        while b"\x1b[?1049l" not in shown:  # back from the second screen
            shown += os.read(ours, 65536)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
