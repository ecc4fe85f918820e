"""Which tokens may wait for each other: what a request says, else the server, else its kind."""

from typing import Any

import pytest

from triolet.api.limits import ServerLimits

from ..fakes import FakeGenerator, HttpClient, make_application, open_connection

CHAT = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES, COMPLETIONS = "/v1/responses", "/v1/completions"


@pytest.mark.parametrize(
    ("path", "body", "merge_s"),
    [
        (RESPONSES, {"input": "hi", "stream": True}, 0.25),
        (RESPONSES, {"input": "hi", "stream": True, "runtime": {"merge_ms": 40}}, 0.04),
        (RESPONSES, {"input": "hi", "stream": True, "runtime": {"merge_ms": 0}}, 0.0),
        (RESPONSES, {"input": "hi"}, 1.0),
        (RESPONSES, {"input": "hi", "runtime": {"merge_ms": 40}}, 1.0),
        # What waits when the deadline comes would be lost.
        (RESPONSES, {"input": "hi", "runtime": {"deadline_ms": 9000}}, 0.0),
        ("/v1/chat/completions", {**CHAT, "stream": True}, 0.25),
        ("/v1/chat/completions", CHAT, 1.0),
        (COMPLETIONS, {"prompt": "hi", "stream": True}, 0.25),
        (COMPLETIONS, {"prompt": "hi"}, 1.0),
    ],
)
async def test_how_long_tokens_wait(path: str, body: dict[str, Any], merge_s: float) -> None:
    generator = FakeGenerator()
    application = make_application(generator, limits=ServerLimits(merge_ms=250))
    async with open_connection(application) as stream:
        client = HttpClient(stream)
        await client.send("POST", path, body)
        assert (await client.read_answer()).status == 200
    assert [call.merge_s for call in generator.calls] == [merge_s]
