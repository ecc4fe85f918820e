"""Spares of a real server: used, replaced when they lose their worker, gone with the root."""

import os
import pathlib
import signal
from collections.abc import Container

import pytest
import trio

from .server import DEADLINE_S, Server, open_server, places, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]
SPARES = {"spare frontend 0", "spare engine 0", "spare engine 0/worker 0"}


async def warm_spares(server: Server, *, but: Container[int] = ()) -> dict[str, int]:
    """{place: pid} once all of them are there, and the engine's is none of these processes."""
    found: dict[str, int] = {}

    async def are_warm() -> bool:
        processes = dict(places(await server.tree()))
        spares = {place: each for place, each in processes.items() if place in SPARES}
        found.clear()
        found.update({place: each.pid for place, each in spares.items()})
        phases = {each.facts["phase"] for place, each in spares.items() if "/" not in place}
        return set(spares) == SPARES and phases == {"warm"} and found["spare engine 0"] not in but

    await wait_until(are_warm, "spares wait")
    return found


async def test_spares_succeed_are_replaced_and_go_with_the_root(tmp_path: pathlib.Path) -> None:
    with trio.fail_after(2 * DEADLINE_S):
        async with open_server(tmp_path, "--executor", "null") as server:
            spares = await warm_spares(server)
            # One whose worker dies is of no use, and is replaced without a word.
            os.kill(spares["spare engine 0/worker 0"], signal.SIGKILL)
            again = await warm_spares(server, but={spares["spare engine 0"]})
            assert again["spare frontend 0"] == spares["spare frontend 0"]
            # The processes that waited are those that serve next.
            pids = await server.pids()
            os.kill(pids["engine 0/worker 0"], signal.SIGKILL)
            os.kill(pids["frontend 0"], signal.SIGKILL)
            await warm_spares(server, but=again.values())
            now = await server.pids()
            for place in ("frontend 0", "engine 0", "engine 0/worker 0"):
                assert now[place] == again[f"spare {place}"]
            assert await server.is_ready()
            server.send_signal(signal.SIGKILL)
            await server.wait_exited()
            await wait_until(
                lambda: not [left for left in server.remains() if "run folder" not in left],
                "nothing is left",
            )
            assert "spare" not in server.log()
