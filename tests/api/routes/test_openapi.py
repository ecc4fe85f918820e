"""The document is the tables: every route and every field is in it, and nothing else."""

import pathlib
from typing import Any

import msgspec
import pytest

from triolet.api.openai.fields.option_fields import RANK_HEADER
from triolet.api.routes import completions as completion_routes
from triolet.api.routes import responses as response_routes
from triolet.api.routes.openapi import Route, openapi_document
from triolet.api.routes.table import ROUTES
from triolet.api.schema.tables import Query
from triolet.api.streams.claims import HEADER

from ..fakes import make_application, open_client

DOCUMENT: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(openapi_document(ROUTES)))


def operation_of(route: Route) -> dict[str, Any]:
    found = DOCUMENT["paths"][route.path.replace("{id...}", "{id}")][route.method.lower()]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_and_field_is_in_it(route: Route) -> None:
    operation = operation_of(route)
    summary = operation["summary"]
    assert summary.endswith("."), "the first line of the docstring is the summary"
    assert not summary[0].islower()
    assert not summary.startswith(("Raises", ";"))
    names = {(each["in"], each["name"]) for each in operation.get("parameters", [])}
    in_path = {("path", "id")} if "{id" in route.path else set()
    both = {("header", HEADER), ("header", RANK_HEADER)}
    in_header = both if route.is_keyed else set()
    in_header |= {("header", name) for name in route.query.headers}
    assert names == in_path | in_header | {("query", name) for name in route.query.fields}
    kinds = [next(iter(security)) for security in operation["security"]]
    assert kinds == ([] if route.is_open else ["adminKey"] if route.is_admin else ["key"])
    if route.body is None:
        assert "requestBody" not in operation
    else:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["properties"]) == set(route.body.fields)


def test_nothing_else_is_in_it() -> None:
    operations = sum(len(methods) for methods in DOCUMENT["paths"].values())
    assert operations == len(ROUTES)
    ids = [found["operationId"] for path in DOCUMENT["paths"].values() for found in path.values()]
    assert len(set(ids)) == len(ids)


def test_every_query_that_a_handler_reads_is_its_routes() -> None:
    routes = vars(response_routes) | vars(completion_routes)
    tables = {name: it for name, it in routes.items() if isinstance(it, Query)}
    for route in ROUTES:
        read = route.handler.__code__.co_names
        used = [tables[name] for name in read if name in tables]
        assert used == ([route.query] if route.query.fields else [])
    room = pathlib.Path(response_routes.__file__).parents[1]
    readers = {path.stem for path in room.rglob("*.py") if "parse_qs(" in path.read_text()}
    assert readers == {"tables"}, "a query is read by its table"


def test_every_post_with_a_body_has_its_table() -> None:
    without = {route.path for route in ROUTES if route.method == "POST" and route.body is None}
    assert without == {"/v1/responses/{id}/cancel"}


async def test_it_is_served_and_needs_a_key() -> None:
    async with open_client(make_application(api_keys=("k",))) as client:
        assert (await client.request("GET", "/openapi.json")).status == 401
        key = {"authorization": "Bearer k"}
        answer = await client.request("GET", "/openapi.json", headers=key)
    assert answer.json["openapi"].startswith("3.1")
    assert "/v1/completions" in answer.json["paths"]


async def test_bounds_of_the_served_model_are_in_it() -> None:
    async with open_client(make_application()) as client:
        document = (await client.request("GET", "/openapi.json")).json
    maxima: dict[str, set[int]] = {}

    def look(value: object) -> None:
        if isinstance(value, dict) and "x-maximum" in value:
            maxima.setdefault(value["x-maximum"], set()).add(value["maximum"])
        if isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                look(each)

    look(document)
    assert maxima["logprobs"] == {20}
    assert maxima.keys() >= {"resume-keep", "logprobs"}


async def test_a_server_without_keys_asks_for_none() -> None:
    async with open_client(make_application()) as client:
        paths = (await client.request("GET", "/openapi.json")).json["paths"]
    assert all(not found["security"] for path in paths.values() for found in path.values())


EXAMPLES = [r for r in ROUTES if r.body and not r.is_admin]


@pytest.mark.parametrize("route", EXAMPLES, ids=lambda route: route.path)
async def test_every_example_can_be_sent(route: Route) -> None:
    async with open_client(make_application()) as client:
        answer = await client.request(route.method, route.path, route.example)
    assert answer.status == 200
    document = operation_of(route)["requestBody"]["content"]["application/json"]
    assert document["example"] == route.example
