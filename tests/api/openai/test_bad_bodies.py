"""Every field of every body with every kind of wrong value, made of the tables that read them.

A new field is covered when it is in its table: its schema says what is wrong for it.
"""

import re
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.completion_requests import COMPLETIONS
from triolet.api.openai.fields.responses_fields import RESPONSES, RUNTIME
from triolet.api.openai.fields.sampling_fields import (
    sampling_arguments,
    sampling_field,
    sampling_params,
)
from triolet.api.routes.table import ROUTES
from triolet.api.schema.tables import Body
from triolet.engine.sampling_params import SamplingParams

from ..fakes import Answer, HttpClient, make_application, open_client
from ..websocket.socket_client import open_socket

MESSAGES = [{"role": "user", "content": "hi"}]
GOOD: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
}
# Of clients; an admin's orders, and a demo's token, are tested beside their routes.
TABLES = {
    route.path: route.body
    for route in ROUTES
    if route.body is not None and not route.path.startswith("/admin/")
}
# One of each JSON type; which of them are wrong, the schema says.
SAMPLES: dict[str, Any] = {
    "string": "x",
    "boolean": True,
    "integer": 1,
    "number": 1.5,
    "object": {"x": 1},
    "array": [{"x": []}],
}
# What an error must never show: addresses, paths, tracebacks.
LEAK = re.compile(r"0x[0-9a-f]{6}|/[a-z]+/[a-z]+\.py|Traceback|object at")


def types_of(schema: dict[str, Any]) -> set[str]:
    if "anyOf" in schema:
        return set().union(*(types_of(each) for each in schema["anyOf"]))
    found = schema.get("type")
    return {found, "integer"} if found == "number" else {found} if found else set(SAMPLES)


def wrong_values(schema: dict[str, Any]) -> Iterator[Any]:
    """Values that the schema refuses: types, bounds, lengths."""
    yield from (sample for name, sample in SAMPLES.items() if name not in types_of(schema))
    if "anyOf" in schema:
        return
    if "minimum" in schema:
        yield schema["minimum"] - 1
    if "exclusiveMinimum" in schema:
        yield schema["exclusiveMinimum"]
    if "maximum" in schema:
        yield from (schema["maximum"] + 1, 1e300, 10**400)
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
    names = schema.get("propertyNames", {}).get("pattern", "")
    if "a-z" in names:
        yield from ({name: 1} for name in ("1", "", "a-b", "é", "a" * 65, "messages", "a_token"))
    elif names:
        yield from ({name: 1} for name in ("x", "", "-1", "1.0", "\u0661", str(2**31), "9" * 5000))
        yield {"1": 1, "01": 1}
        yield from ({"1": value} for value in wrong_values(schema["additionalProperties"]))
        yield dict.fromkeys(map(str, range(schema["maxProperties"] + 1)), 1)
    if schema.get("type") == "array":
        yield [None]
        if schema["maxItems"] < 10_000:
            yield [1] * (schema["maxItems"] + 1)


def wrong_fields(path: str) -> Iterator[tuple[str, Any]]:
    """Every wrong value of every field of this path's body, with the field's name."""
    for name, field in TABLES[path].fields.items():
        yield from ((name, value) for value in wrong_values(field.schema()))
        properties: Any = field.schema().get("properties", {})
        for inner, nested in properties.items():
            yield from ((name, {inner: value}) for value in wrong_values(nested))


# All values of a field on one connection: a test for each of them takes longer than its answer.
FIELDS = list(dict.fromkeys((path, name) for path in TABLES for name, _ in wrong_fields(path)))


async def check_refused(client: HttpClient, answer: Answer, path: str) -> None:
    assert 400 <= answer.status < 500, answer.body
    assert answer.error["message"]
    assert LEAK.search(answer.body.decode()) is None
    assert (await client.request("POST", path, GOOD[path])).status == 200


def test_every_table_has_a_good_body() -> None:
    assert set(GOOD) == set(TABLES)
    assert sum(1 for path in TABLES for _ in wrong_fields(path)) > 1000


@pytest.mark.parametrize(("path", "name"), FIELDS)
async def test_a_wrong_value_is_refused_by_name(path: str, name: str) -> None:
    values = [value for field, value in wrong_fields(path) if field == name]
    async with open_client(make_application()) as client:
        for value in values:
            body = {**GOOD[path], "stream_options": None, name: value}
            answer = await client.request("POST", path, body)
            await check_refused(client, answer, path)
            param = answer.error["param"] or ""
            assert param.startswith(name) or name in ("prompt", "messages"), str(value)[:100]


async def test_a_wrong_value_on_a_socket_is_refused_by_name_and_its_lane_goes_on() -> None:
    fields = list(wrong_fields("/v1/responses"))
    assert len(fields) > 100
    async with open_socket(make_application()) as client:
        for name, value in fields:
            await client.send({"type": "response.create", "input": "hi", name: value})
            refused = await client.receive()
            assert refused is not None
            assert (refused["type"], refused["status"]) == ("error", 400), (name, value)
            assert str(refused["error"]["param"]).startswith(name), (name, value)
        await client.create("hi")
        events = await client.receive_until("response.completed", "error")
    assert events[-1]["type"] == "response.completed"


DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize(
    ("data", "content_type", "code"),
    [
        (b"[]", "application/json", "invalid_json"),
        (b'{"prompt": NaN}', "application/json", "invalid_json"),
        (DEEP, "application/json", "invalid_json"),
        (b"prompt=a", "application/x-www-form-urlencoded", "unsupported_media_type"),
        (b"{}", "text/plain", "unsupported_media_type"),
    ],
)
async def test_what_is_no_json_object_is_refused(
    path: str, data: bytes, content_type: str, code: str
) -> None:
    async with open_client(make_application()) as client:
        headers = {"content-type": content_type}
        answer = await client.request("POST", path, data, headers)
        await check_refused(client, answer, path)
    assert answer.error["code"] == code


async def test_a_compressed_body_is_refused_as_such() -> None:
    async with open_client(make_application()) as client:
        headers = {"content-encoding": "gzip"}
        answer = await client.request("POST", "/tokenize", b"\x1f\x8b\x08\x00", headers)
        assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
        assert "Content-Encoding" in answer.error["message"]
        headers = {"content-encoding": "identity"}
        answer = await client.request("POST", "/tokenize", {"prompt": "a"}, headers)
        assert answer.status == 200


async def test_of_a_name_sent_twice_the_last_counts() -> None:
    async with open_client(make_application()) as client:
        answer = await client.request("POST", "/tokenize", b'{"prompt": 7, "prompt": "a"}')
    assert answer.json["count"] == 2


# What protocols call otherwise, or have at another place than `runtime`.
OWN_NAMES = {"n", "max_tokens", "temperature", "top_p", "logprobs", "prompt_logprobs"}


def test_every_parameter_is_a_field_of_each_protocol() -> None:
    names = {field.name for field in attrs.fields(SamplingParams)}
    assert names <= COMPLETIONS.fields.keys()
    assert names - OWN_NAMES <= RUNTIME.fields.keys()
    assert {"temperature", "top_p", "max_output_tokens", "top_logprobs"} <= RESPONSES.fields.keys()


def test_top_k_has_two_ways_to_be_off() -> None:
    assert sampling_arguments({"top_k": -1, "stream": True}) == {"top_k": 0}


def test_sampling_errors_carry_the_protocols_name() -> None:
    with pytest.raises(ApiError) as caught:
        sampling_params({"max_tokens": 0}, {"max_tokens": "limit"})
    assert caught.value.param == "limit"


def test_kinds_that_a_bound_does_not_say() -> None:
    table = Body({name: sampling_field(name) for name in ("logit_bias", "truncate_prompt_tokens")})
    assert table.read({"logit_bias": {"5": 1, "007": -2.5}}) == {
        "logit_bias": ((5, 1.0), (7, -2.5))
    }
    assert table.read({"logit_bias": {}}) == {"logit_bias": ()}
    with pytest.raises(ApiError, match="keys must be token ids, not '4891074508'"):
        table.read({"logit_bias": {"4891074508": 1}})
    for length in (-1, 1, 4096):
        assert table.read({"truncate_prompt_tokens": length}) == {"truncate_prompt_tokens": length}
    with pytest.raises(ApiError, match="truncate_prompt_tokens: must be -1, or from 1"):
        table.read({"truncate_prompt_tokens": 0})
