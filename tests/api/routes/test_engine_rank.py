"""The engine that a client names: in every protocol's body, by a header, on sockets."""

from typing import Any

import pytest

from triolet.api.openai.fields.option_fields import RANK, RANK_HEADER
from triolet.engine.errors import InvalidParameter
from triolet.runtime.errors import NoEngine

from ..fakes import FakeGenerator, make_application, open_client
from ..websocket.socket_client import TERMINALS, open_socket

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": ["a", "b"], "n": 2},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 8},
}
each_protocol = pytest.mark.parametrize("path", BODIES)


async def ranks_of(path: str, fields: dict[str, Any], header: str | None = None) -> set[Any]:
    """Engines that the runtime is asked for."""
    generator, headers = FakeGenerator(), {} if header is None else {RANK_HEADER: header}
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", path, {**BODIES[path], **fields}, headers)
    assert answer.status == 200, answer.body
    return {call.options.engine for call in generator.calls}


@each_protocol
async def test_body_extension_and_header_name_it_and_the_header_goes_first(path: str) -> None:
    assert await ranks_of(path, {}) == {None}
    assert await ranks_of(path, {RANK: 1}) == {1}
    assert await ranks_of(path, {"runtime": {RANK: 2}}) == {2}
    assert await ranks_of(path, {"stream": True}, "3") == {3}
    assert await ranks_of(path, {RANK: 1, "runtime": {RANK: 2, "seed": 1}}, "0") == {0}


@each_protocol
@pytest.mark.parametrize("value", ["", "one", "-1", "+1", "1.0", "1 2", "9" * 10])
async def test_a_header_that_is_no_number_is_refused_by_name(path: str, value: str) -> None:
    async with open_client(make_application()) as client:
        answer = await client.request("POST", path, BODIES[path], {RANK_HEADER: value})
        assert (answer.status, answer.error["param"]) == (400, RANK_HEADER)


@each_protocol
async def test_refusals_of_the_runtime_name_the_field(path: str) -> None:
    refusal = InvalidParameter("engine", "must be the number of an engine, 0 to 1")
    for error, status, param in ((refusal, 400, RANK), (NoEngine("engine 1 is failed"), 503, None)):
        generator = FakeGenerator(refuse=error)
        async with open_client(make_application(generator)) as client:
            answer = await client.request("POST", path, {**BODIES[path], RANK: 1})
            assert (answer.status, answer.error["param"]) == (status, param)


@each_protocol
async def test_a_key_is_executed_once_whichever_engine_its_retry_names(path: str) -> None:
    generator, key = FakeGenerator(), {"idempotency-key": "k"}
    async with open_client(make_application(generator)) as client:
        first = await client.request("POST", path, {**BODIES[path], RANK: 0}, key)
        calls = len(generator.calls)
        for fields, header in (({RANK: 1}, None), ({}, "1"), ({}, None)):
            headers = key if header is None else {**key, RANK_HEADER: header}
            again = await client.request("POST", path, {**BODIES[path], **fields}, headers)
            assert (again.status, again.json) == (200, first.json)
    assert len(generator.calls) == calls


@pytest.mark.parametrize("header", [None, "3"])
async def test_each_lane_names_its_own_unless_the_handshake_did(header: str | None) -> None:
    generator, headers = FakeGenerator(), None if header is None else {RANK_HEADER: header}
    async with open_socket(make_application(generator), headers) as client:
        for rank in (0, 1):
            await client.create("hi", f"lane{rank}", **{RANK: rank})
            await client.receive_until(*TERMINALS)
    assert [call.options.engine for call in generator.calls] == (
        [0, 1] if header is None else [3, 3]
    )


async def test_a_handshake_with_a_wrong_header_is_refused() -> None:
    with pytest.raises(AssertionError):
        async with open_socket(make_application(), {RANK_HEADER: "one"}):
            pass
