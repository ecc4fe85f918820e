"""The unmodified `openai` SDK against the server: HTTP, server-sent events, four lanes, cancel."""

import json
import pathlib
import sys

import pytest
import trio

from triolet.engine.errors import EngineDied

from ..fakes import Fail, FakeGenerator, Say, make_application
from ..serving.test_server import open_server

PROGRAM = pathlib.Path(__file__).parent / "openai_client.py"


@pytest.mark.slow
async def test_the_unmodified_sdk() -> None:
    generator = FakeGenerator(
        scripts={
            **{f"lane {n}": [Say(f"{n}{i} ", after_s=0.001) for i in range(20)] for n in "abcd"},
            "slow": [Say("a"), Say("b", after_s=1000)],
            "die": [Say("a"), Fail(EngineDied("engine 0", "was killed by SIGKILL"), after_s=0.01)],
        }
    )
    application = make_application(generator, api_keys=("key",))
    async with open_server(application) as (host, port):
        process = await trio.run_process(
            [sys.executable, str(PROGRAM), f"http://{host}:{port}/v1"],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert process.returncode == 0, process.stderr.decode()
    seen = json.loads(process.stdout)
    assert seen["models"] == ["toy"]
    assert seen["chat"] == {"text": "Hello world", "tokens": 3, "whole": "Hello world"}
    assert seen["completions"] == {
        "texts": ["aHello world", "bHello world"],
        "tokens": 12,
        "whole": ["Hello", "length"],
        "request_id": True,
    }
    assert seen["responses"]["streamed"] == seen["responses"]["whole"] == "Hello world"
    assert seen["responses"]["types"][0] == "response.created"
    assert seen["responses"]["types"][-1] == "response.completed"
    assert seen["lanes"] == {n: "".join(f"{n}{i} " for i in range(20)) for n in "abcd"}
    assert seen["cancel"] == {
        "http": "cancelled",
        "stream": "response.incomplete",
        "socket": "cancelled",
    }
    assert seen["errors"] == {
        "model": ["NotFoundError", "model_not_found", "model"],
        "tools": ["BadRequestError", "unsupported_parameter", "tools[0].type"],
        "died": ["APIError", "engine_died", None],
    }
    assert application.counters.connections_failed == 0
    assert len(generator.aborted) == 2
