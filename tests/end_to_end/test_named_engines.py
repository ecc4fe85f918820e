"""Requests that name their engine: none goes elsewhere, and its next life goes on with them."""

import os
import pathlib
import signal
from collections.abc import Iterator

import pytest
import trio

from .server import DEADLINE_S, Server, module_server, wait_until
from .streams import SeenStream, body, read_sse

pytestmark = pytest.mark.slow

REQUESTS = 40
RANK = "data_parallel_rank"
PATH = "/v1/responses"
BODY = {"input": "hi", "max_output_tokens": 2}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two engines."""
    folder: pathlib.Path = tmp_path_factory.mktemp("named")
    with module_server(folder, "1", "2", executor="null", null_step_s=0.01) as server:
        trio.run(server.wait_linked, 1, 2)
        yield server


async def added(server: Server) -> list[float]:
    """Requests that each engine has taken in."""
    counts = {n: v for n, v in (await server.metrics()).items() if "engine_requests_added" in n}
    return [sum(v for n, v in counts.items() if f'engine="{rank}"' in n) for rank in (0, 1)]


async def test_all_go_to_the_engine_that_they_name(server: Server) -> None:
    """By the body; a header goes first. Other protocols: `api/routes/test_engine_rank.py`."""
    before = await added(server)
    with trio.fail_after(DEADLINE_S):
        async with server.client() as client:
            for number in range(REQUESTS):
                by_header = bool(number % 2)
                rank = {RANK: 0 if by_header else 1}
                headers = {"X-data-parallel-rank": "1"} if by_header else {}
                answer = await client.post(PATH, json={**BODY, **rank}, headers=headers)
                assert answer.status_code == 200, answer.text
            refused = await client.post(PATH, json={**BODY, RANK: 2})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, RANK)

        async def are_counted() -> bool:
            return sum(await added(server)) >= sum(before) + REQUESTS

        await wait_until(are_counted, "all are counted")
    found = [now - then for now, then in zip(await added(server), before, strict=True)]
    assert found == [0, REQUESTS]


async def test_one_goes_on_at_the_next_life_of_its_engine_with_the_same_tokens(
    server: Server,
) -> None:
    request = body(150, **{RANK: 1})
    request["runtime"]["events"] = True
    undisturbed, seen = SeenStream(), SeenStream()
    with trio.fail_after(2 * DEADLINE_S):
        async with server.client() as client:
            await read_sse(client, request, undisturbed)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_sse, client, request, seen)
                pid = (await server.pids())["engine 1"]
                await wait_until(lambda: len(seen.token_ids) >= 20, "tokens come")
                os.kill(pid, signal.SIGKILL)
    assert seen.token_ids == undisturbed.token_ids
    assert len(seen.token_ids) == 150
    epochs = {engine["rank"]: engine["restarts"] for engine in await server.health()}
    assert epochs == {0: 0, 1: 1}
    assert len([event for event in seen.events if event["type"] == "runtime.queued"]) >= 1
