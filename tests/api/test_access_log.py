"""Lines of the access log: which requests have one, and what it says."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio.testing

from triolet.api.access_log import CLIENT_LEFT, AccessEntry, AccessLog, Generated
from triolet.api.serving.connection import run_connection
from triolet.engine.errors import EngineDied
from triolet.runtime.frontend.generation import GenerationFacts
from triolet.runtime.text.outputs import Usage

from .fakes import (
    Fail,
    FakeGenerator,
    HttpClient,
    Say,
    make_application,
    open_client,
    open_connection,
    open_responses,
)

LOGGER = "triolet.api.access_log"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """The lines so far, at info: the fields of each."""
    caplog.set_level(logging.INFO, LOGGER)
    plain = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "facts"}

    def look() -> list[dict[str, Any]]:
        records = [vars(each) for each in caplog.records if each.name == LOGGER]
        own = [{key: each[key] for key in each if key not in plain} for each in records]
        return [each["facts"] | more for each, more in zip(records, own, strict=True)]

    return look


async def test_a_generation_says_what_came_of_it(
    lines: Lines, autojump_clock: trio.testing.MockClock
) -> None:
    generator = FakeGenerator([Say("a", after_s=2.0), Say("b", after_s=1.0)])
    async with open_client(make_application(generator)) as client:
        streamed = await client.request("POST", "/v1/responses", {"input": "hi", "stream": True})
        whole = await client.request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 2})
    first, second = lines()
    assert (first["method"], first["path"], first["status"]) == ("POST", "/v1/responses", 200)
    assert first["duration_s"] == 3.0
    assert first["id"] == next(iter(streamed.events()))["response"]["id"]
    assert (first["prompt_tokens"], first["output_tokens"]) == (3, 2)
    assert first["end"] == "completed"
    assert second["id"] == whole.json["id"]
    assert (second["prompt_tokens"], second["output_tokens"]) == (3, 2)
    assert second["end"] == "length"


async def test_probes_are_quiet_and_errors_are_not(
    lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    application = make_application(api_keys=("k",))
    async with open_client(application) as client:
        for path in ("/health", "/live", "/docs", "/version"):
            assert (await client.request("GET", path)).status == 200
        assert not lines()
        await client.request("GET", "/metrics")  # without its key
        await client.request("POST", "/v1/responses", b"{", {"authorization": "Bearer k"})
        await client.request("GET", "/no%20where%7F", headers={"authorization": "Bearer k"})
        assert [(each["path"], each["status"], each["end"]) for each in lines()] == [
            ("/metrics", 401, "invalid_api_key"),
            ("/v1/responses", 400, "invalid_json"),
            ("/no%20where%7F", 404, "route_not_found"),
        ]
        caplog.set_level(logging.DEBUG, LOGGER)
        await client.request("GET", "/live")
    assert lines()[-1]["path"] == "/live"


async def test_it_can_be_switched_off(lines: Lines) -> None:
    async with open_client(make_application(access_log=False)) as client:
        await client.request("POST", "/v1/responses", {"input": "hi"})
    assert not lines()


async def test_what_is_no_request_has_a_line(lines: Lines) -> None:
    async with open_connection(make_application()) as stream:
        await stream.send_all(b"what\r\n\r\n")
        await stream.receive_some()
    (line,) = lines()
    assert (line["path"], line["status"]) == ("-", 400)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves(
    lines: Lines, stream: bool, autojump_clock: trio.testing.MockClock
) -> None:
    generator = FakeGenerator([Say("a"), Say("b", after_s=50.0)])
    async with open_client(make_application(generator)) as client:
        await client.send("POST", "/v1/chat/completions", {**CHAT, "stream": stream})
        await trio.sleep(1)
        await client.stream.aclose()
        await trio.sleep(1)
        (line,) = lines()
    assert line["end"] == "client left"
    assert line["status"] == (200 if stream else CLIENT_LEFT)
    assert line["id"].startswith("chatcmpl_")
    assert line.get("output_tokens") == (1 if stream else None)


async def test_a_stream_that_fails_says_why(lines: Lines) -> None:
    generator = FakeGenerator([Say("a"), Fail(EngineDied("engine 0", "was killed"))])
    async with open_client(make_application(generator)) as client:
        await client.request("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        await client.request("POST", "/v1/responses", {"input": "hi"})
    assert [(each["status"], each["end"]) for each in lines()] == [
        (200, "engine_died"),
        (503, "engine_died"),
    ]


@pytest.mark.parametrize("is_handed_over", [False, True])
async def test_a_process_that_hands_over_leaves_the_line_to_the_next_one(
    lines: Lines, is_handed_over: bool, autojump_clock: trio.testing.MockClock
) -> None:
    application = make_application(FakeGenerator([Say("a"), Say("b", after_s=50.0)]))
    ours, theirs = trio.testing.memory_stream_pair()
    async with open_responses(application), trio.open_nursery() as nursery:
        nursery.start_soon(run_connection, theirs, application)
        await HttpClient(ours).send("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        await trio.sleep(1)
        application.hands_over = is_handed_over
        nursery.cancel_scope.cancel("the process ends")
    ends = [each["end"] for each in lines()]  # its reader may be cancelled before it
    assert ends == [] if is_handed_over else ends in (["cut"], ["client left"])


def test_one_that_was_taken_over_began_when_it_was_admitted(lines: Lines) -> None:
    facts = [GenerationFacts(Usage(3, 5, 2), None, 1), GenerationFacts(Usage(4, 6), 0.5)]
    entry = AccessEntry(100.0, is_taken_over=True)
    entry.generation = lambda: Generated.of("cmpl_1", "stop", facts, admitted_at=90.0)
    AccessLog().write(entry, ("POST", "/v1/completions"), 200, 101.0, client="", lane=None)
    assert lines() == [
        {
            "method": "POST", "path": "/v1/completions", "status": 200, "duration_s": 11.0,
            "id": "cmpl_1", "prompt_tokens": 7, "cached_tokens": 2, "output_tokens": 11,
            "first_token_s": 0.5, "end": "stop", "replays": 1, "taken_over": True,
        }
    ]  # fmt: skip
