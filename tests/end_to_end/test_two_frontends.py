"""A response can be read and cancelled on whatever connection, whichever frontend has it."""

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
import trio

from triolet.api.openai.response_id import frontend_of

from .server import DEADLINE_S, Server, module_server, wait_until
from .streams import SeenStream, body, open_socket, read_socket

pytestmark = pytest.mark.slow

# Connections spread evenly: so many reach both frontends.
CONNECTIONS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two frontends, one engine, and steps so long that streams outlast all looks at them."""
    folder = tmp_path_factory.mktemp("two")
    with module_server(folder, "2", executor="null", null_step_s=0.05) as server:
        trio.run(server.wait_linked, 2, 1)
        yield server


@asynccontextmanager
async def open_responses(server: Server) -> AsyncIterator[dict[str, tuple[Any, SeenStream]]]:
    """{id: its socket and its stream}: a long response on each of some sockets."""
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        seen = []
        for _ in range(CONNECTIONS):
            socket = await stack.enter_async_context(open_socket(server.url))
            stream = SeenStream()
            await socket.send_message(json.dumps({"type": "response.create", **body(1500)}))
            lanes: dict[str | None, SeenStream] = {None: stream}
            nursery.start_soon(read_socket, socket, lanes)
            seen.append((socket, stream))
        await wait_until(lambda: all(len(s.token_ids) > 1 for _, s in seen), "all begin")
        yield {stream.events[0]["response"]["id"]: (socket, stream) for socket, stream in seen}


async def on_every_frontend(server: Server, method: str, path: str) -> list[httpx.Response]:
    """The same request on as many connections, all open at once, so that they spread."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(server.client()) for _ in range(CONNECTIONS)]
        return [await client.request(method, path) for client in clients]


async def test_every_connection_reaches_every_response(server: Server) -> None:
    with trio.fail_after(2 * DEADLINE_S):
        async with open_responses(server) as responses:
            assert {frontend_of(response_id) for response_id in responses} == {0, 1}
            for response_id, (_, stream) in responses.items():
                path = f"/v1/responses/{response_id}"
                for answer in await on_every_frontend(server, "GET", path):
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["status"] == "in_progress"
                finals = await on_every_frontend(server, "POST", f"{path}/cancel")
                await stream.ended.wait()
                assert stream.last["response"]["status"] == "cancelled"
                assert [final.json() for final in finals] == [stream.last["response"]] * CONNECTIONS


async def test_every_socket_cancels_every_response(server: Server) -> None:
    with trio.fail_after(2 * DEADLINE_S):
        async with open_responses(server) as responses:
            by_frontend: dict[int | None, list[str]] = {0: [], 1: []}
            for response_id in responses:
                by_frontend[frontend_of(response_id)].append(response_id)
            for mine, other in ((0, 1), (1, 0)):
                socket, _ = responses[by_frontend[mine][0]]
                (_, stream) = responses[by_frontend[other][-1]]
                cancel = {"type": "response.cancel", "response_id": by_frontend[other][-1]}
                await socket.send_message(json.dumps(cancel))
                await stream.ended.wait()
                assert stream.last["response"]["status"] == "cancelled"


async def test_who_asks_for_a_response_of_a_dead_frontend_waits_for_its_successor(
    server: Server,
) -> None:
    path = f"/v1/responses/resp_01{'0' * 32}"
    answers = []
    with trio.fail_after(2 * DEADLINE_S):
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(server.client()) for _ in range(CONNECTIONS)]
            for client in clients:
                await client.get("/live")
            os.kill((await server.pids())["frontend 1"], signal.SIGKILL)
            for client in clients:
                with suppress(httpx.TransportError):  # its connection has died as well
                    answers.append(await client.get(path))
        await server.wait_linked(2, 1)
    assert {answer.status_code for answer in answers} == {404}


async def test_an_id_that_was_not_drawn_is_not_found_on_any(server: Server) -> None:
    with trio.fail_after(DEADLINE_S):
        for rank in ("00", "01", "07", "zz"):
            path = f"/v1/responses/resp_{rank}{'0' * 32}"
            for answer in await on_every_frontend(server, "GET", path):
                assert answer.status_code == 404, answer.text
                assert answer.json()["error"]["code"] == "response_not_found"
