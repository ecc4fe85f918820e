"""A frontend that crashes again and again: it comes back each time, and its streams go on."""

import os
import pathlib
import signal
from functools import partial

import pytest
import trio

from .resumed import ask_all, check_same
from .server import DEADLINE_S, open_server, wait_until

pytestmark = pytest.mark.slow

# Of those within a minute, as these are unless the machine is very busy, an engine is forgiven 3.
CRASHES = 4


async def test_one_that_crashes_again_and_again_comes_back(tmp_path: pathlib.Path) -> None:
    with trio.fail_after(4 * DEADLINE_S):
        async with open_server(tmp_path, "--frontends", "2") as server:
            await server.wait_linked(2, 1)
            wanted = await ask_all(server, "undisturbed")

            async def crash() -> None:
                """By a fault of its own, as far as anybody knows."""
                os.kill((await server.pids())["frontend 0"], signal.SIGABRT)

            async def is_back(before: int) -> bool:
                return (await server.pids()).get("frontend 0", before) != before

            for _ in range(CRASHES - 1):
                gone = (await server.pids())["frontend 0"]
                os.kill(gone, signal.SIGABRT)
                await wait_until(partial(is_back, gone), "it is back")
                await server.wait_linked(2, 1)
            found = await ask_all(server, "crash", crash)
            check_same(found, wanted, is_held=True)
            await server.wait_linked(2, 1)
            assert "given up" not in server.log()
