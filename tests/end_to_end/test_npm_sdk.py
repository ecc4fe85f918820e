"""`triolet serve` and the unmodified npm `openai` SDK: four lanes of one WebSocket.

The server makes tokens faster than it writes them, so that deltas are merged and event numbers
jump: the SDK must take them as they are.
"""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from .server import CLIENTS, DEADLINE_S, Server, module_server

# Where `make test` has npm put the SDK.
MODULES = pathlib.Path(__file__).parents[2] / ".cache" / "npm" / "node_modules"
LANES = 4
TOKENS = 400

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(not MODULES.exists(), reason="npm has not installed the SDK"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Steps that take no time."""
    with module_server(tmp_path_factory.mktemp("null"), executor="null") as server:
        yield server


async def run_lanes(server: Server) -> Any:
    """What the client program printed."""
    command = ["node", str(CLIENTS / "lanes.cjs"), server.url, str(LANES), str(TOKENS)]
    environment = {**os.environ, "NODE_PATH": str(MODULES)}
    with trio.fail_after(DEADLINE_S):
        done = await trio.run_process(
            command,
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=environment,
        )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


async def test_four_lanes_with_growing_jumping_numbers(server: Server) -> None:
    seen = await run_lanes(server)
    assert [lane["text"] for lane in seen["lanes"]] == seen["alone"]
    for lane in seen["lanes"]:
        assert lane["end"] == "response.incomplete"  # at max_output_tokens
        numbers = lane["numbers"]
        assert numbers[0] == 0
        assert all(one < two for one, two in itertools.pairwise(numbers)), "they grow"
    steps = [
        two - one for lane in seen["lanes"] for one, two in itertools.pairwise(lane["numbers"])
    ]
    assert max(steps) > 1, "they jump: some deltas were merged"
