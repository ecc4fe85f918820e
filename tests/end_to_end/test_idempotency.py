"""Requests with an `Idempotency-Key` at a server whose frontends are killed: one execution each."""

import json
import os
import secrets
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import trio

from .server import DEADLINE_S, Server, module_server, places, recovered, wait_until

pytestmark = pytest.mark.slow

PATH, CHAT_PATH = "/v1/responses", "/v1/chat/completions"
QUESTION = "Tell me a story about a fox."
STORY: dict[str, Any] = {
    "input": QUESTION,
    "max_output_tokens": 400,
    "runtime": {"seed": 5, "ignore_eos": True},
}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 400,
    "seed": 5,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two frontends and one engine; two seconds for an answer, so that it is seen to be there."""
    # A successor may take long on a busy machine, and engines must not give its requests up.
    options = ("--frontends", "2", "--orphan", "60", "--no-takeover")
    slowly = ("--executor", "null", "--null-step", "0.005")
    with module_server(tmp_path_factory.mktemp("two"), *options, *slowly) as server:
        yield server


@pytest.fixture
async def server(started: Server) -> Server:
    return await recovered(started, 2, 1)


@pytest.fixture
def key() -> str:
    """A key that no other test has used, nor this one if it runs again."""
    return secrets.token_hex(8)


async def added(server: Server) -> float:
    """Requests that engines took in."""
    counts = (await server.metrics()).items()
    return sum(count for name, count in counts if "engine_requests_added" in name)


async def send(
    server: Server, key: str, *, path: str = PATH, stream: bool = False, **values: Any
) -> httpx.Response:
    """One request by a connection of its own, as often as it takes."""
    while True:
        try:
            async with server.client() as client:
                story = STORY if path == PATH else CHAT
                body, headers = {**story, "stream": stream, **values}, {"idempotency-key": key}
                answer = await client.post(path, json=body, headers=headers)
        except httpx.TransportError:
            await trio.lowlevel.checkpoint()
            continue
        if answer.status_code != 503:
            return answer
        await trio.sleep(0.05)


async def kill_executor(server: Server) -> str:
    """kill -9 of the frontend that has a request; its place."""
    found: list[tuple[str, int]] = []

    async def is_under_way() -> bool:
        tree = places(await server.tree())
        found[:] = [(name, process.pid) for name, process in tree if process.facts.get("requests")]
        return any("frontend" in name for name, _ in found)

    await wait_until(is_under_way, "a frontend has the request")
    ((name, pid),) = [pair for pair in found if "frontend" in pair[0]]
    os.kill(pid, signal.SIGKILL)
    return name


def response_in(answer: httpx.Response) -> Any:
    """The response at its end."""
    assert answer.status_code == 200, answer.text
    if "event-stream" not in answer.headers["content-type"]:
        return answer.json()
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    return json.loads(lines[-1].removeprefix("data: "))["response"]


def said_in(answer: httpx.Response, path: str) -> tuple[str, Any]:
    """The id of the answer, and what it says."""
    if path == PATH:
        response = response_in(answer)
        return response["id"], response["output"][0]["content"]
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return answer.json()["id"], (choice["message"], choice["finish_reason"])


async def check_added(server: Server, count: float) -> None:
    """So many requests were added before this one, whose engine has then said so of all."""
    await send(server, secrets.token_hex(8), input="hi", max_output_tokens=1)

    async def has_next() -> bool:
        return await added(server) > count

    await wait_until(has_next, "the next request is counted")
    assert await added(server) == count + 1


@pytest.mark.parametrize(
    ("path", "stream"), [(PATH, True), (CHAT_PATH, False)], ids=["response", "chat"]
)
async def test_a_request_outlives_its_frontend_and_is_answered_when_it_comes_again(
    server: Server, key: str, stream: bool, path: str
) -> None:
    answers: list[httpx.Response] = []
    with trio.fail_after(3 * DEADLINE_S):
        before = await added(server)
        _, wanted = said_in(await send(server, f"{key}-alone", path=path, stream=stream), path)

        async def ask() -> None:
            answers.append(await send(server, key, path=path, stream=stream))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)  # at the same time
            place = await kill_executor(server)
        answers.append(await send(server, key, path=path, stream=stream))
        first, *others = [said_in(answer, path) for answer in answers]
        assert others == [first, first]
        if path == PATH:
            assert len({json.dumps(response_in(answer)) for answer in answers}) == 1
        else:
            assert len({answer.content for answer in answers}) == 1
        assert place == f"frontend {int(first[0].partition('_')[2][:2], 16)}"
        assert first[1] == wanted
        other = await send(server, key, path=path, stream=stream, temperature=0.5)
        assert (other.status_code, other.json()["error"]["param"]) == (422, "Idempotency-Key")
        await check_added(server, before + 2)


async def test_two_at_the_same_time_are_one(server: Server, key: str) -> None:
    answers: list[httpx.Response] = []
    with trio.fail_after(2 * DEADLINE_S):
        before = await added(server)

        async def ask() -> None:
            answers.append(await send(server, key))

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask)
        assert len({answer.content for answer in answers}) == 1
        assert response_in(answers[0])["usage"]["output_tokens"] == 400
        replayed = ["idempotent-replayed" in answer.headers for answer in answers]
        assert sorted(replayed) == [False] + [True] * 7
        await check_added(server, before + 1)
