"""Two frontends count as one: each shows the sum, and a kill takes nothing back that was shown."""

import os
import pathlib
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

import attrs
import httpx
import pytest
import trio

from triolet.api.openai.response_id import frontend_of

from .server import DEADLINE_S, Server, open_server, scrape, wait_until
from .streams import body

pytestmark = pytest.mark.slow

TOKENS = 5
# What may differ between two looks when nothing runs: the looks themselves.
OF_LOOKS = ("connections_", "http_answers")
Page = dict[str, float]
Clients = dict[int, httpx.AsyncClient]


@attrs.define(eq=False)
class Bed:
    """A server, and how many responses it was asked for."""

    server: Server
    asked: int = 0

    @asynccontextmanager
    async def open_clients(self) -> AsyncIterator[Clients]:
        """{frontend: a client whose one connection it has}.

        They come together: one alone always goes to the frontend that has less to do.
        """
        async with AsyncExitStack() as stack:
            clients: Clients = {}

            async def open_client() -> None:
                one = httpx.Limits(max_connections=1)
                client = httpx.AsyncClient(base_url=self.server.url, timeout=None, limits=one)
                await stack.enter_async_context(client)
                clients.setdefault(await self.respond(client), client)

            while len(clients) < 2:
                async with trio.open_nursery() as nursery:
                    for _ in range(3):
                        nursery.start_soon(open_client)
            yield clients

    async def respond(self, client: httpx.AsyncClient) -> int:
        """Get one whole response; the rank of its frontend."""
        self.asked += 1
        answer = await client.post("/v1/responses", json=body(TOKENS))
        assert answer.status_code == 200, answer.text
        rank = frontend_of(answer.json()["id"])
        assert rank is not None
        return rank

    async def pages(self, clients: Clients) -> list[Page]:
        """Both frontends' pages, once both show all responses; a copy is made now and then."""

        async def has_all() -> bool:
            finished = [(await scrape(clients[r]))["requests_finished_total"] for r in (0, 1)]
            return finished == [self.asked, self.asked]

        await wait_until(has_all, "both frontends show all responses")
        return [await look(clients[rank]) for rank in (0, 1, 0)]


async def look(client: httpx.AsyncClient) -> Page:
    """All that frontends count; of an engine each shows the latest that it has heard itself."""
    return {n: v for n, v in (await scrape(client)).items() if "engine=" not in n}


def beside_looks(page: Page) -> Page:
    return {name: value for name, value in page.items() if not name.startswith(OF_LOOKS)}


def shrunk(before: Page, after: Page) -> dict[str, tuple[float, float]]:
    """The counters, and parts of histograms, that are less than before."""
    ends = ("_total", "_bucket", "_count", "_sum")
    counters = [name for name in before if name.partition("{")[0].endswith(ends)]
    assert counters
    return {
        name: (before[name], after.get(name, 0))
        for name in counters
        if after.get(name, 0) < before[name]
    }


async def test_each_frontend_shows_all_and_a_kill_takes_nothing_back(
    tmp_path: pathlib.Path,
) -> None:
    with trio.fail_after(3 * DEADLINE_S):
        options = ("2", "1", "1", "no")  # its connections end with a frontend
        async with open_server(tmp_path, *options, executor="null") as server:
            await server.wait_linked(2, 1)
            bed = Bed(server)
            async with bed.open_clients() as clients:
                for rank in (0, 1, 1, 0, 1):
                    assert await bed.respond(clients[rank]) == rank
                pages = await bed.pages(clients)
                assert beside_looks(pages[0]) == beside_looks(pages[1]) == beside_looks(pages[2])
                assert pages[0]["requests_total"] == bed.asked
                assert pages[0]["generation_tokens_total"] == bed.asked * TOKENS
                assert pages[0]["e2e_request_latency_seconds_count"] == bed.asked
                assert pages[0]["connections_active"] >= 2

                dead = (await server.pids())["frontend 0"]
                os.kill(dead, signal.SIGKILL)
                await server.wait_replaced("frontend 0", dead)
                pages.append(await look(clients[1]))
            await server.wait_linked(2, 1)
            async with bed.open_clients() as clients:
                pages += await bed.pages(clients)
            assert [shrunk(before, after) for before, after in pairwise(pages)] == [{}] * 6
            assert pages[-1]["requests_total"] == bed.asked
