"""Processes that are stopped for ever are found by the root, named, and replaced."""

import os
import pathlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from .server import DEADLINE_S, Server, open_server, wait_until
from .streams import SeenStream, body, read_lane

pytestmark = pytest.mark.slow

SOCKETS = 4
# Twice what a process may be stopped.
FROZEN_S = 1.0


def go_on(streams: list[SeenStream], counts: list[int]) -> bool:
    """Whether each has more tokens than so many."""
    return all(len(s.token_ids) > count for s, count in zip(streams, counts, strict=True))


@asynccontextmanager
async def open_load(folder: pathlib.Path) -> AsyncIterator[tuple[Server, list[SeenStream]]]:
    """Two engines with three workers each, and streams that outlast the test on both."""
    streams = [SeenStream() for _ in range(SOCKETS)]

    with trio.fail_after(3 * DEADLINE_S):
        opened = open_server(folder, "1", "2", executor="null", workers=3, null_step_s=0.02)
        async with opened as server, trio.open_nursery() as nursery:
            await server.wait_linked(1, 2)
            for stream in streams:
                nursery.start_soon(read_lane, server, body(1500), stream)
            await wait_until(lambda: all(s.token_ids for s in streams), "all streams have begun")
            yield server, streams
            nursery.cancel_scope.cancel("the test is over")


@pytest.mark.parametrize(
    ("place", "who"), [("engine 0", "hung"), ("engine 0/worker 1", "worker 1 hung")]
)
async def test_one_that_is_stopped_for_ever_is_replaced_and_named(
    tmp_path: pathlib.Path, place: str, who: str
) -> None:
    async with open_load(tmp_path) as (server, streams):
        os.kill((await server.pids())[place], signal.SIGSTOP)

        async def is_replaced() -> bool:
            engine = (await server.health())[0]
            return engine["state"] == "ready" and str(engine["last_death"]).startswith(who)

        await wait_until(is_replaced, f"{place} is replaced")
        assert f"engine 0: {who} in step " in server.log()
        others = [stream for stream in streams if not stream.ended.is_set()]
        assert others, "the other engine serves on"
        counts = [len(stream.token_ids) for stream in others]
        await wait_until(
            partial(go_on, others, counts),
            "its streams go on",
        )


async def test_a_tree_that_is_frozen_goes_on_as_it_was(tmp_path: pathlib.Path) -> None:
    async with open_load(tmp_path) as (server, streams):
        pids = await server.pids()
        for _ in range(2):
            for pid in pids.values():
                os.kill(pid, signal.SIGSTOP)
            frozen = trio.current_time() + FROZEN_S
            with trio.move_on_at(frozen):
                await trio.sleep_forever()
            for pid in reversed(pids.values()):
                os.kill(pid, signal.SIGCONT)
            counts = [len(stream.token_ids) for stream in streams]
            await wait_until(
                partial(go_on, streams, counts),
                "all streams go on",
            )
        assert pids.items() <= (await server.pids()).items()  # a copy that checks forms may be new
        assert "hung" not in server.log()
