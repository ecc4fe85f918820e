"""A frontend that crashes again and again: it comes back each time, and its streams go on."""

import os
import pathlib
import signal

import pytest
import trio

from .resumed import ask_all, check_same
from .server import DEADLINE_S, open_server

pytestmark = pytest.mark.slow

# Of those within a minute, as these are unless the machine is very busy, an engine is forgiven 3.
CRASHES = 5


async def test_one_that_crashes_again_and_again_comes_back(tmp_path: pathlib.Path) -> None:
    with trio.fail_after(4 * DEADLINE_S):
        async with open_server(tmp_path, "--frontends", "2") as server:
            await server.wait_linked(2, 1)
            wanted = await ask_all(server, "undisturbed")

            async def crash() -> None:
                """By a fault of its own, as far as anybody knows."""
                os.kill((await server.pids())["frontend 0"], signal.SIGABRT)

            for number in range(CRASHES):
                found = await ask_all(server, f"crash {number}", crash)
                check_same(found, wanted, is_held=True)
                await server.wait_linked(2, 1)
            assert "given up" not in server.log()
