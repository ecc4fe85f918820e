"""Engines of another numerics id: a stream never goes on there without a word.

The first engine computes with the best instruction set, the second with `plain`. The first one is
killed while streams of both run; those that had it may not go on at the second as if nothing were.
"""

import os
import pathlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from triolet.engine.kernels.library import machine_isas

from .server import DEADLINE_S, Server, open_command, wait_until
from .streams import SeenStream, body, read_sse

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(machine_isas()) < 2, reason="one instruction set alone"),
]

PROGRAM = pathlib.Path(__file__).parent / "programs" / "serve_unlike.py"
# So many that no engine has those of one kind alone.
STREAMS, TOKENS = 16, 800
INEXACT = "inexact"


@asynccontextmanager
async def open_unlike(folder: pathlib.Path, *options: str) -> AsyncIterator[Server]:
    """Two engines that differ, both linked."""
    words = ["serve", "--port", "0", "--engines", "2", "--threads", "1", *options]
    async with open_command(folder, [sys.executable, str(PROGRAM), *words]) as server:
        await server.wait_linked(1, 2)
        yield server


async def disturbed(server: Server) -> dict[str, SeenStream]:
    """Streams of which every second allows it to go on inexactly; engine 0 is killed under them."""
    streams = {f"{n} {INEXACT if n % 2 else ''}": SeenStream() for n in range(STREAMS)}
    victim = (await server.pids())["engine 0"]
    async with server.client() as client, trio.open_nursery() as nursery:
        for name, seen in streams.items():
            request = body(TOKENS)
            request["runtime"] |= {"inexact_ok": INEXACT in name}
            nursery.start_soon(read_sse, client, request, seen)
        # Not all of them: a client that is behind would see the last one's first token at its end.
        await wait_until(
            lambda: sum(bool(seen.token_ids) for seen in streams.values()) >= STREAMS // 2,
            "one half of the streams is under way",
        )
        os.kill(victim, signal.SIGKILL)
    return streams


def moved(seen: SeenStream) -> list[object]:
    """Whether each of its migrations was exact."""
    return [event["exact"] for event in seen.events if event["type"] == "runtime.migrated"]


async def test_without_time_to_wait_it_is_an_error_or_an_event_says_it(
    tmp_path: pathlib.Path,
) -> None:
    with trio.fail_after(3 * DEADLINE_S):
        async with open_unlike(tmp_path, "--replay-wait", "0.001") as server:
            streams = await disturbed(server)
    failed = [name for name, seen in streams.items() if seen.error]
    told = [name for name, seen in streams.items() if moved(seen)]
    assert failed, "some that had the first engine do not allow it"
    assert told, "some that had it do"
    assert not any(INEXACT in name for name in failed)
    assert all(INEXACT in name for name in told)
    for name in failed:
        assert streams[name].error["code"] == "engine_died"
        assert "exactly" in streams[name].error["message"]
    for name in told:
        assert moved(streams[name]) == [False]
        assert len(streams[name].token_ids) == TOKENS
    rest = [seen for name, seen in streams.items() if name not in (*failed, *told)]
    assert {tuple(seen.token_ids) for seen in rest} == {tuple(rest[0].token_ids)}, "the second's"
