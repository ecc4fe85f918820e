"""A content that ends the frontend which reads it: two deaths, a typed refusal, and nobody else."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio
from trio_websocket import open_websocket_url

from triolet.fuzz.chaos.poisoned_frontend import FrontendPoison

from ..poisons.sending import REFUSED, REFUSED_STATUS, PoisonAnswer, send_poison
from .server import (
    DEADLINE_S,
    Server,
    chaos_command,
    module_command,
    open_chaos_server,
    recovered,
)

pytestmark = pytest.mark.slow

PATH = "/v1/completions"
INNOCENTS = 6
STORY: dict[str, Any] = {
    "prompt": "Tell me a story about a fox.",
    "max_tokens": 300,
    "runtime": {"ignore_eos": True},
}
ABORTED = "frontend 0: was killed by SIGABRT"


async def read_innocent(server: Server, seed: int, texts: dict[int, str]) -> None:
    body = {**STORY, "stream": True, "seed": seed}
    async with server.client() as client, client.stream("POST", PATH, json=body) as answer:
        async for line in answer.aiter_lines():
            data = line.removeprefix("data: ")
            if line and data != "[DONE]":
                texts[seed] = texts.get(seed, "") + json.loads(data)["choices"][0]["text"]
        assert data == "" or data == "[DONE]"


async def read_innocents(server: Server, *others: Any) -> dict[int, str]:
    """Their texts; `others` begin when all of them are under way."""
    texts: dict[int, str] = {}
    async with trio.open_nursery() as nursery:
        for seed in range(INNOCENTS):
            nursery.start_soon(read_innocent, server, seed, texts)
        while len(texts) < INNOCENTS:
            await trio.lowlevel.checkpoint()
        for other in others:
            nursery.start_soon(other)
    return texts


@attrs.frozen
class Started:
    """A server whose frontends have no restart to spend, and its innocents' undisturbed texts."""

    server: Server
    undisturbed: dict[int, str]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    command = chaos_command("--restart-limit", "0")
    with module_command(tmp_path_factory.mktemp("poisoned"), command) as server:
        yield Started(server, trio.run(read_innocents, server))


# Of chunks and frames in `api/http` and `api/websocket`, of a text in `poisons/`.
PLACES = (FrontendPoison.HEAD, FrontendPoison.PARSE, FrontendPoison.RENDER)


@pytest.mark.parametrize("poison", PLACES)
async def test_a_content_that_ends_its_frontend_is_refused_after_two_deaths(
    started: Started, poison: FrontendPoison
) -> None:
    server = await recovered(started.server, 1, 1)
    with trio.fail_after(3 * DEADLINE_S):
        before, answers = server.log().count(ABORTED), list[PoisonAnswer]()

        async def send() -> None:
            async with server.client() as client:
                answers.append(await send_poison(client, poison, f"{poison}"))

        assert await read_innocents(server, send) == started.undisturbed
        assert server.log().count(ABORTED) == before + 2
        await send()
        assert server.log().count(ABORTED) == before + 2, "it is refused at once"
        assert answers == [PoisonAnswer(REFUSED_STATUS, REFUSED)] * 2
        async with server.client() as client:
            body = {"prompt": "a fox", "max_tokens": 2}
            assert (await client.post(PATH, json=body)).status_code == 200


async def test_a_message_of_a_socket_that_ends_frontends_is_an_error_event(
    tmp_path: pathlib.Path,
) -> None:
    with trio.fail_after(3 * DEADLINE_S):
        async with open_chaos_server(tmp_path, "--frontends", "2") as server:
            await server.wait_linked(2, 1)
            url = server.url.replace("http", "ws") + "/v1/responses"
            for _ in range(4):  # on whichever frontend
                async with open_websocket_url(url) as socket:
                    await socket.send_message(json.dumps({"type": FrontendPoison.PARSE}))
                    event = json.loads(await socket.get_message())
                    assert event["error"]["code"] == REFUSED, event
                    await socket.send_message(json.dumps({"type": "response.steer"}))
                    event = json.loads(await socket.get_message())
                    assert event["type"] == "response.steer.failed"
            assert server.log().count("was killed by SIGABRT") == 2
