"""Hosts that the server begins on its own machine: one is killed, its streams go on, it is back."""

import json
import os
import pathlib
import signal

import pytest
import trio

from .server import DEADLINE_S, Server, open_server, wait_until

pytestmark = pytest.mark.slow

HOSTS = ("--launcher", "local", "--hosts", "2", "--engines", "0")
SLOWLY = ("--executor", "null", "--null-step", "0.01", "--spare-engines", "0")
TOKENS = 80


async def read(server: Server, seed: int, begun: trio.Event) -> str:
    """Text of one streamed completion."""
    body = {
        "prompt": f"Tell me of {seed}", "max_tokens": TOKENS, "seed": seed, "temperature": 1.0,
        "stream": True, "ignore_eos": True,
    }  # fmt: skip
    text = ""
    async with (
        server.client() as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                text += chunk["choices"][0]["text"]
                begun.set()
    return text


async def read_all(server: Server, begun: list[trio.Event]) -> dict[int, str]:
    texts: dict[int, str] = {}

    async def read_one(seed: int) -> None:
        texts[seed] = await read(server, seed, begun[seed])

    async with trio.open_nursery() as nursery:
        for seed in range(len(begun)):
            nursery.start_soon(read_one, seed)
    return texts


async def test_streams_of_a_local_host_go_on_when_it_is_killed_and_it_comes_back(
    tmp_path: pathlib.Path,
) -> None:
    with trio.fail_after(3 * DEADLINE_S):
        async with open_server(tmp_path, *HOSTS, *SLOWLY) as server:
            await server.wait_linked(1, 2)
            undisturbed = await read_all(server, [trio.Event() for _ in range(4)])
            pids = await server.pids()
            begun, texts = [trio.Event() for _ in range(4)], dict[int, str]()

            async def read_disturbed() -> None:
                texts.update(await read_all(server, begun))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_disturbed)
                for each in begun:
                    await each.wait()
                os.kill(pids["host local-0"], signal.SIGKILL)
            assert texts == undisturbed
            await server.wait_replaced("host local-0", pids["host local-0"])
            await wait_until(lambda: "was killed by SIGKILL" in server.log(), "its end is said")
            await server.wait_linked(1, 2)
