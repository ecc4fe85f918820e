"""KV events of a real server: a router's index equals the names of the blocks that are cached."""

import os
import pathlib
import signal

import pytest
import trio
import zmq

from triolet.engine.core.kv_events import external_hash
from triolet.engine.kernels.library import native_fault

from ..engine.core.test_kv_events import Index
from ..engine.kernels.test_shared_memory import needs_huge_pages
from ..engine.process.test_kv_publisher import replay
from ..transports.test_publication import open_reader
from .server import DEADLINE_S, Server, open_server, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(native_fault()), reason="no compiler, no kernels"),
    needs_huge_pages,
]
REQUESTS = 60
NAME_BYTES = 32


def cached(engine: int) -> set[int]:
    """Of the engine with this pid, out of the memory that outlives it."""
    for fd in pathlib.Path(f"/proc/{engine}/fd").iterdir():
        if "memfd:triolet-names" in str(fd.readlink()):
            whole = fd.read_bytes()[NAME_BYTES:]
            names = (whole[at : at + NAME_BYTES] for at in range(0, len(whole), NAME_BYTES))
            return {external_hash(name) for name in names if any(name)}
    raise AssertionError("the engine keeps no names")


async def ask(server: Server, first: int) -> None:
    """Prompts that begin alike, more of them than there are blocks for."""
    async with server.client() as client:
        for number in range(first, first + REQUESTS):
            alike = "The fox lit a lantern. " * (8 + number % 25)
            body = {"prompt": f"Story {number % 9}. {alike}Then {number}", "max_tokens": 2}
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text


async def read_past(endpoint: str, start: int) -> tuple[Index, int]:
    """An index of all that is replayed from this number on, and the last number."""
    index, last = Index(), start - 1
    async with open_reader(zmq.DEALER, endpoint) as asker:
        for number, payload in await replay(asker, start):
            assert number > last
            index.read(payload)
            last = number
    return index, last


async def test_an_index_equals_the_cache_of_an_engine_that_was_killed(
    tmp_path: pathlib.Path,
) -> None:
    past = f"ipc://{tmp_path}/past"
    events = ("--kv-events-endpoint", f"ipc://{tmp_path}/kv", "--kv-events-replay-endpoint", past,
              "--kv-events-topic", "kv-events")  # fmt: skip
    last = -1
    with trio.fail_after(2 * DEADLINE_S):
        async with open_server(tmp_path, "--kv-blocks", "96", *events) as server:
            for life in range(2):
                await ask(server, life * REQUESTS)
                engine = (await server.pids())["engine 0"]
                index, last = await read_past(past, last + 1)
                assert index.held == cached(engine)
                assert len(index.held) > 30
                os.kill(engine, signal.SIGKILL)
                await wait_until(server.is_ready, "it serves again")
            found, _ = await read_past(past, last + 1)
            assert found.held == index.held == cached((await server.pids())["engine 0"])
