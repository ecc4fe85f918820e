"""`triolet restart --rolling` under streams: every process is another one, every token the same."""

import os
import pathlib
import subprocess
import sys

import pytest
import trio

from .server import DEADLINE_S, Server, open_server, wait_until
from .streams import SeenStream, body, check_serves, read_lane, read_sse

pytestmark = pytest.mark.slow

GO_ON = "requests go on at"
# Long enough for all engines to begin anew meanwhile; then a frontend serves out.
TOKENS, STEP_S, GRACE_S = 1000, 0.01, 60
STREAMS = 3


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Tokens of a server that does not wait between its steps."""

    async def ask() -> list[int]:
        seen = SeenStream()
        folder = tmp_path_factory.mktemp("expected")
        async with open_server(folder, executor="null") as server, server.client() as client:
            await read_sse(client, body(TOKENS), seen)
        return seen.token_ids

    tokens = trio.run(ask)
    assert len(tokens) == TOKENS
    return tokens


async def roll(server: Server) -> list[str]:
    """What the command says."""
    done = await trio.run_process(
        [sys.executable, "-m", "triolet", "restart", server.run_id, "--rolling"],
        env={**os.environ, "XDG_RUNTIME_DIR": str(server.folder)},
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.decode().splitlines()


async def roll_under_streams(server: Server) -> tuple[list[str], list[SeenStream]]:
    streams = [SeenStream() for _ in range(2 * STREAMS)]
    async with server.client() as client, trio.open_nursery() as nursery:
        for seen in streams[:STREAMS]:
            nursery.start_soon(read_sse, client, body(TOKENS), seen)
        for seen in streams[STREAMS:]:
            nursery.start_soon(read_lane, server, body(TOKENS), seen)
        await wait_until(lambda: all(each.token_ids for each in streams), "all begin")
        return await roll(server), streams


async def test_streams_go_on_with_the_same_tokens(
    tmp_path: pathlib.Path, expected: list[int]
) -> None:
    places = ["engine 0", "engine 1", "frontend 0"]
    with trio.fail_after(3 * DEADLINE_S):
        options = ("1", "2", str(GRACE_S))
        async with open_server(tmp_path, *options, executor="null", null_step_s=STEP_S) as server:
            await server.wait_linked(1, 2)
            before = await server.pids()
            lines, streams = await roll_under_streams(server)
            assert [line.split(" after ")[0] for line in lines] == [
                f"{place} {what}" for place in places for what in ("is restarted", "is ready")
            ]
            assert server.log().count(GO_ON) >= 2, "streams were under way"
            for seen in streams:
                assert (seen.error, seen.broken) == ({}, None)
                assert seen.token_ids == expected
            await check_serves(server)
            after = await server.pids()
            assert not {before[place] for place in places} & set(after.values())
