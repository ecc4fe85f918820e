"""`triolet serve` and the unmodified `openai` SDKs of PyPI and npm, as programs of a user."""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from .server import CLIENTS, DEADLINE_S, Server, module_server

LANES = 16
# After so many the socket is lost.
TOKENS_BEFORE = 30
TOKENS = 24
# Steps so long that no response ends before it is cancelled.
STEP_S = 0.1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With the bundled model."""
    with module_server(tmp_path_factory.mktemp("torch")) as server:
        yield server


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Whose steps take a while."""
    with module_server(
        tmp_path_factory.mktemp("slow"), executor="null", null_step_s=STEP_S
    ) as server:
        yield server


async def run_client(name: str, server: Server, *arguments: object) -> Any:
    """What the client program printed."""
    program = "node" if name.endswith(".cjs") else sys.executable
    with trio.fail_after(2 * DEADLINE_S):
        done = await trio.run_process(
            [program, str(CLIENTS / name), server.url, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "NODE_PATH": str(MODULES)},
        )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.slow
async def test_sixteen_lanes_at_once_are_each_as_if_alone(server: Server) -> None:
    seen = await run_client("lanes.py", server, LANES, TOKENS)
    assert seen["together"] == seen["alone"]
    assert set(seen["ends"].values()) == {"response.incomplete"}  # at max_output_tokens
    sampled = seen["together"][1::2]
    assert len(set(sampled)) == len(sampled), "different seeds, different texts"
    # All were streaming at once: each had begun before the first had ended.
    order = [kind for _, kind in seen["order"]]
    first_end = order.index("response.incomplete")
    began = {lane for lane, kind in seen["order"][:first_end] if kind.endswith("text.delta")}
    assert began == set(range(LANES))


@pytest.mark.slow
async def test_chat_completions_streamed_and_not(server: Server) -> None:
    seen = await run_client("chat.py", server)
    assert seen["models"] == ["triolet-bundled"]
    assert "".join(seen["pieces"]) == seen["whole"] != ""
    assert "Tokyo" in seen["whole"]
    assert seen["reasons"] == [seen["whole_reason"]] == ["stop"]
    assert seen["usage"]["completion_tokens"] == seen["whole_usage"]["completion_tokens"] > 1
    assert seen["usage"]["prompt_tokens"] == seen["whole_usage"]["prompt_tokens"] > 1


@pytest.mark.slow
async def test_logprobs_are_the_same_whole_and_streamed(server: Server) -> None:
    seen = await run_client("logprobs.py", server)
    chat = seen["chat"]
    assert bytes(chat["bytes"]).decode().startswith(chat["text"])
    assert chat["streamed"] == chat["logprobs"]
    assert all(
        0 >= own == max(top) for own, top in zip(chat["logprobs"], chat["tops"], strict=True)
    )
    assert seen["responses"]["part"] == seen["responses"]["deltas"] == chat["logprobs"]
    assert seen["refused"] == "n"


@pytest.mark.slow
async def test_three_ways_to_cancel_free_all_blocks_within_two_steps(slow_server: Server) -> None:
    records = await run_client("cancel.py", slow_server)
    assert [record["way"] for record in records] == ["http", "event", "leave"]
    for record in records:
        assert record["free"] == record["all"] > 0, record
        # One step for each token of the response, and those that it took until it was told.
        assert record["tokens"] <= record["steps"] < 1000, record
        (steps,) = record["freed_after"]
        assert steps <= 2, record
    assert [record["last"] for record in records[:2]] == ["response.incomplete cancelled"] * 2


@pytest.mark.slow
async def test_a_lost_socket_is_resumed_by_retrieve_to_the_token(server: Server) -> None:
    seen = await run_client("resume.py", server, TOKENS_BEFORE)
    assert len(seen["seen"]) >= TOKENS_BEFORE
    assert seen["seen"] + seen["rest"] == seen["uncut"]
    assert len(seen["uncut"]) == 100
    assert seen["text"] == seen["whole"]
    assert seen["last"] == "response.incomplete"  # at max_output_tokens
    assert seen["numbers_grow"]


@pytest.mark.slow
async def test_functions_that_must_be_called_are(server: Server) -> None:
    seen = await run_client("tools.py", server)
    calls = [*seen["chat"], *seen["streamed chat"], *seen["response"], *seen["streamed response"]]
    assert [call["name"] for call in calls] == ["get_weather"] * 4
    for call in calls:
        arguments = json.loads(call["arguments"])
        assert arguments in ({"city": "Oslo"}, {"city": "Rome"})
    assert seen["reason"] == "tool_calls"
    assert {"function_call_arguments.delta", "function_call_arguments.done"} <= set(seen["kinds"])
    assert seen["after"] in ("completed", "incomplete")


# Where `make test` has npm put the SDK.
MODULES = pathlib.Path(__file__).parents[2] / ".cache" / "npm" / "node_modules"
NPM_LANES = 4
NPM_TOKENS = 400


@pytest.fixture(scope="module")
def fast_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Steps that take no time."""
    with module_server(tmp_path_factory.mktemp("null"), executor="null") as fast_server:
        yield fast_server


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not MODULES.exists(), reason="npm has not installed the SDK")
async def test_four_lanes_with_growing_jumping_numbers(fast_server: Server) -> None:
    seen = await run_client("lanes.cjs", fast_server, NPM_LANES, NPM_TOKENS)
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
