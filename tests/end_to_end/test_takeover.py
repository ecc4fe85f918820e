"""kill -9 of a frontend under clients that do nothing about it: their connections go on.

One server for all, with the bundled model; compared with an undisturbed run.
"""

import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from triolet.runtime.control.calls import ControlCall, Place, Role
from triolet.runtime.control.client import ask_run

from .server import DEADLINE_S, Server, module_server, recovered, wait_until
from .streams import TERMINAL

pytestmark = pytest.mark.slow

# Long enough to be seen running, twice: engines go on while a frontend is away.
TOKENS = 900
BEGUN = 10
# More than may die of a connection, within seconds.
KILLS = 6
# Of a restart that waits for nothing; a tenth of its grace.
RESTARTED_S = 6.0
LANES = [None, "a", "b", "c"]
STORY = "Tell me a story about a fox."
BODY: dict[str, Any] = {"input": STORY, "max_output_tokens": TOKENS, "temperature": 0.8}
MESSAGE: dict[str, Any] = {
    "messages": [{"role": "user", "content": STORY}],
    "max_tokens": TOKENS,
    "temperature": 0.8,
    "runtime": {"seed": 5, "ignore_eos": True},
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A sole frontend, which has a minute for streams to end when it is restarted."""
    options = ("--frontends", "1", "--grace", "60")
    with module_server(tmp_path_factory.mktemp("sole"), *options) as server:
        yield server


@pytest.fixture
async def server(started: Server) -> Server:
    return await recovered(started, 1, 1)


def create(lane: str | None, seed: int) -> str:
    """Asks for a response."""
    runtime = {"seed": seed, "ignore_eos": True, "token_ids": True}
    event = {**BODY, "type": "response.create", "runtime": runtime, "store": False}
    return json.dumps({**event, "stream_id": lane} if lane else event)


class Lanes:
    """Everything that one socket has received, by lane, and each lane's responses."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket
        self.events: dict[str | None, list[dict[str, Any]]] = {lane: [] for lane in LANES}
        self.ended = 0

    async def read(self, count: int) -> None:
        """Until so many responses have ended."""
        while self.ended < count:
            event = json.loads(await self.socket.get_message())
            assert event["type"] != "error", event
            self.events[event.get("stream_id")].append(event)
            self.ended += event["type"] in TERMINAL

    def are_under_way(self) -> bool:
        return all(len(events) > BEGUN for events in self.events.values())

    def said(self) -> list[Any]:
        """Of each lane and response: its text and tokens by its deltas, and by its end."""
        said = []
        for events in self.events.values():
            numbers, text, tokens = [-1], "", list[int]()
            for event in events:
                if event["type"] == "response.created":
                    numbers, text, tokens = [-1], "", []
                numbers.append(event["sequence_number"])
                assert numbers[-1] > numbers[-2], event
                if event["type"] == "response.output_text.delta":
                    text += event["delta"]
                    tokens += event["token_ids"]
                if event["type"] in TERMINAL:
                    content = event["response"]["output"][0]["content"][0]
                    assert content["text"] == text
                    said.append((text, tokens, event["response"]["usage"], numbers[-1]))
        return said


async def kill_frontend(server: Server) -> None:
    """Kill the one that is there, or the next: a client reads on what one that is dead has sent."""
    pids: dict[str, int] = {}

    async def is_there() -> bool:
        pids.update(await server.pids())
        return "frontend 0" in pids

    await wait_until(is_there, "a frontend is there")
    os.kill(pids["frontend 0"], signal.SIGKILL)


async def taken_over(server: Server) -> float:
    """Connections with which its frontends have gone on, in all."""
    return (await server.metrics())["connections_taken_over_total"]


async def has_taken_over(server: Server, count: float) -> bool:
    """Whether they have gone on with so many connections."""
    return await taken_over(server) >= count


async def restart_frontend(server: Server) -> None:
    """As an operator does; it ends while its streams are under way."""
    before = (await server.pids())["frontend 0"]
    await ask_run(server.run_folder(), ControlCall.RESTART, Place(Role.FRONTEND, 0))
    with trio.fail_after(RESTARTED_S):
        await server.wait_replaced("frontend 0", before)


Disturb = Callable[[Server], Awaitable[None]]


async def talk(server: Server, *disturbed: Disturb) -> list[Any]:
    """Two responses in each lane, of which the second waits for the first."""
    async with open_websocket_url(server.url.replace("http", "ws") + "/v1/responses") as socket:
        lanes = Lanes(socket)
        for turn in range(2):
            for place, lane in enumerate(LANES):
                await socket.send_message(create(lane, 10 * turn + place))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.read, 2 * len(LANES))
            for disturb in disturbed:
                await wait_until(lanes.are_under_way, "all lanes are under way")
                before = sum(map(len, lanes.events.values()))
                await disturb(server)

                def goes_on(before: int = before) -> bool:
                    more = sum(map(len, lanes.events.values())) - before
                    return more > BEGUN or lanes.ended == 2 * len(LANES)

                await wait_until(goes_on, "the lanes go on")
        await socket.send_message(json.dumps({"type": "response.steer"}))  # it is alive still
        assert json.loads(await socket.get_message())["type"] == "response.steer.failed"
        return lanes.said()


async def test_a_socket_goes_on_with_all_its_lanes(server: Server) -> None:
    """Also when its frontend is restarted: it refuses nothing, and waits for no stream to end."""
    with trio.fail_after(3 * DEADLINE_S):
        wanted = await talk(server)
        assert await talk(server, kill_frontend, kill_frontend) == wanted
        assert await talk(server, restart_frontend) == wanted


async def test_whole_answers_come_and_connections_are_kept(server: Server) -> None:
    body = {**BODY, "runtime": {"seed": 5, "ignore_eos": True}}
    chat = {
        "messages": [{"role": "user", "content": STORY}],
        "max_tokens": TOKENS,
        "seed": 5,
        "ignore_eos": True,
    }
    asked = [("/v1/responses", body), ("/v1/chat/completions", chat), ("/v1/messages", MESSAGE)]
    limits = httpx.Limits(max_connections=len(asked))

    async def ask(client: httpx.AsyncClient, found: dict[str, Any]) -> None:
        async def post(path: str, values: dict[str, Any]) -> None:
            answer = await client.post(path, json=values)
            assert answer.status_code == 200, answer.text
            whole = answer.json()
            # But for ids, and how much of a prompt was known.
            outputs = (whole[name] for name in ("choices", "output", "content") if name in whole)
            found[path] = [
                {name: value for name, value in each.items() if name != "id"}
                for each in next(outputs)
            ]

        async with trio.open_nursery() as nursery:
            for path, values in asked:
                nursery.start_soon(post, path, values)

    with trio.fail_after(3 * DEADLINE_S):
        before = await taken_over(server)
        async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:
            wanted, found, again = dict[str, Any](), dict[str, Any](), dict[str, Any]()

            async def all_run() -> bool:
                return (await server.metrics())["requests_active"] == len(asked)

            await ask(client, wanted)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, client, found)
                await wait_until(all_run, "both run")
                await kill_frontend(server)
            await kill_frontend(server)  # under idle connections
            await ask(client, again)
        assert found == wanted
        assert again == wanted
        counts = await server.metrics()  # but for what a dead life counted last
        assert counts["connections_taken_over_total"] >= before + len(asked)
        assert counts["connections_lost_total"] == 0


async def test_kills_from_outside_are_not_laid_to_a_connection(server: Server) -> None:
    """Bytes of which two lives may have died are given up, but who is killed dies of none."""
    with trio.fail_after(3 * DEADLINE_S):
        before, address = await taken_over(server), httpx.URL(server.url)
        assert address.port is not None
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(b"GET /v1/models HTTP/1.1\r\nconnection: clo")
            for count in range(KILLS):
                goes_on = partial(has_taken_over, server, before + count)
                await wait_until(goes_on, "it goes on")
                await kill_frontend(server)
            await stream.send_all(b"se\r\nhost: localhost\r\n\r\n")
            answer = b"".join([piece async for piece in stream])
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert (await server.metrics())["connections_lost_total"] == 0
