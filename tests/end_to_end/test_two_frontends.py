"""A response can be read and cancelled on whatever connection, whichever frontend has it."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import httpx
import pytest
import trio

from triolet.api.openai.response_id import frontend_of

from .server import DEADLINE_S, Server, module_server, wait_until
from .streams import SeenStream, body, read_lane

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
async def open_responses(server: Server) -> AsyncIterator[dict[str, SeenStream]]:
    """{id: its stream}: a long response on each of some sockets."""
    seen = [SeenStream() for _ in range(CONNECTIONS)]
    async with trio.open_nursery() as nursery:
        for stream in seen:
            nursery.start_soon(read_lane, server, body(1500), stream)
        await wait_until(lambda: all(len(stream.token_ids) > 1 for stream in seen), "all begin")
        yield {stream.events[0]["response"]["id"]: stream for stream in seen}


async def on_every_frontend(server: Server, method: str, path: str) -> list[httpx.Response]:
    """The same request on as many connections, all open at once, so that they spread."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(server.client()) for _ in range(CONNECTIONS)]
        return [await client.request(method, path) for client in clients]


async def test_every_connection_reaches_every_response(server: Server) -> None:
    with trio.fail_after(2 * DEADLINE_S):
        async with open_responses(server) as responses:
            assert {frontend_of(response_id) for response_id in responses} == {0, 1}
            for response_id, stream in responses.items():
                path = f"/v1/responses/{response_id}"
                for answer in await on_every_frontend(server, "GET", path):
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["status"] == "in_progress"
                finals = await on_every_frontend(server, "POST", f"{path}/cancel")
                await stream.ended.wait()
                assert stream.last["response"]["status"] == "cancelled"
                assert [final.json() for final in finals] == [stream.last["response"]] * CONNECTIONS


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
