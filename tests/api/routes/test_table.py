"""Every route with no, a wrong and a right key; methods that there are not; CORS."""

from typing import Any

import pytest

from triolet.api.http.request import HttpRequest
from triolet.api.routes.openapi import Route
from triolet.api.routes.table import ABSENT, ROUTES, match_route
from triolet.engine.messages import FinishReason

from ..fakes import FakeGenerator, make_application, open_client

OPEN = {"/live", "/ready", "/health", "/version", "/", "/page/{id}", "/docs"}


def target(route: Route) -> str:
    return route.path.replace("{id}", "x").replace("{id...}", "x")


def test_the_open_routes_are_those_that_the_documents_name() -> None:
    assert {route.path for route in ROUTES if route.is_open} == OPEN


NO, WRONG, USER, ADMIN = None, "wrong", "user", "admin"
# By kind of route: what no, a wrong, a user's and an admin's key get; None is "past the door".
DOOR: dict[str, dict[str | None, int | None]] = {
    "open": {NO: None, WRONG: None, USER: None, ADMIN: None},
    "user": {NO: 401, WRONG: 401, USER: None, ADMIN: None},
    "admin": {NO: 401, WRONG: 401, USER: 403, ADMIN: None},
}


def kind(route: Route) -> str:
    return "open" if route.is_open else "admin" if route.is_admin else "user"


def headers_of(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
@pytest.mark.parametrize("key", [NO, WRONG, USER, ADMIN])
async def test_every_route_with_every_kind_of_key(route: Route, key: str | None) -> None:
    application = make_application(api_keys=("other", "user"), admin_keys=("admin",))
    async with open_client(application) as client:
        answer = await client.request(route.method, target(route), headers=headers_of(key))
    expected = DOOR[kind(route)][key]
    if expected is None:
        assert answer.status not in (401, 403)
        return
    assert answer.status == expected
    code, error_type = answer.error["code"], answer.error["type"]
    assert (code, error_type) == {
        401: ("invalid_api_key", "authentication_error"),
        403: ("admin_key_required", "invalid_request_error"),
    }[expected]


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.is_admin], ids=lambda route: route.path
)
async def test_without_an_admin_key_there_are_no_admin_routes(route: Route) -> None:
    async with open_client(make_application(api_keys=("user",))) as client:
        answer = await client.request(route.method, target(route), headers=headers_of("user"))
        assert (answer.status, answer.error["code"]) == (404, "route_not_found")
        assert (await client.request(route.method, target(route))).status == 401
        document = await client.request("GET", "/openapi.json", headers=headers_of("user"))
        assert route.path not in document.json["paths"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_a_foreign_page_gets_nowhere(route: Route) -> None:
    async with open_client(make_application(admin_keys=("a",))) as client:
        for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
            answer = await client.request(route.method, target(route), headers=headers)
            assert answer.status == 403


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_other_methods_are_405_with_allow(route: Route) -> None:
    async with open_client(make_application(admin_keys=("a",))) as client:
        answer = await client.request("PATCH", target(route))
        assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
        assert route.method in answer.headers["allow"].split(", ")
        options = await client.request("OPTIONS", target(route))
        assert (options.status, options.body) == (204, b"")
        unknown = await client.request("OPTIONS", "/nosuch")
        assert options.headers["allow"] == unknown.headers["allow"]


async def test_unknown_paths_are_hidden_without_a_key() -> None:
    async with open_client(make_application(api_keys=("k",))) as client:
        refused = await client.request("GET", "/nowhere")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        key = {"authorization": "Bearer k"}
        assert (await client.request("GET", "/nowhere", headers=key)).status == 404


@pytest.mark.parametrize("path", ABSENT)
async def test_a_route_that_clients_look_for_says_what_to_do_without(path: str) -> None:
    async with open_client(make_application()) as client:
        answer = await client.request("POST", path, {})
    assert (answer.status, answer.error["code"]) == (404, "route_not_found")
    assert answer.error["message"] == f"There is no route {path!r}: {ABSENT[path]}"


async def test_cors_is_open_for_listed_origins_only() -> None:
    application = make_application(allowed_origins=("https://app.example",), api_keys=("k",))
    origin = {"origin": "https://app.example"}
    async with open_client(application) as client:
        answer = await client.request("OPTIONS", "/v1/responses", headers=origin)
        assert answer.status == 204
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "authorization" in answer.headers["access-control-allow-headers"]
        # As OpenAI's SDK does in a browser.
        asked = {**origin, "access-control-request-headers": "authorization,x-stainless-os"}
        answer = await client.request("OPTIONS", "/v1/responses", headers=asked)
        assert answer.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        plain = await client.request("OPTIONS", "/v1/responses")
        assert not [name for name in plain.headers if name.startswith("access-control")]
        refused = await client.request("GET", "/v1/models", headers=origin)
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.parametrize(
    ("path", "expected", "parameter"),
    [
        ("/v1/responses", "/v1/responses", None),
        ("/v1/responses/", None, None),
        ("/v1/responses/r", "/v1/responses/{id}", "r"),
        ("/v1/responses/a/b", None, None),
        ("/v1/models/org/name", "/v1/models/{id...}", "org/name"),
        ("/V1/MODELS", None, None),
    ],
)
def test_paths(path: str, expected: str | None, parameter: str | None) -> None:
    method = "POST" if expected == "/v1/responses" else "GET"
    match = match_route(HttpRequest(method, path, "", ()))
    assert (match.route.path if match.route else None) == expected
    assert match.resource_id == (parameter or "")


MESSAGES = {"messages": [{"role": "user", "content": "a"}]}
# The body of each protocol, its name of the field, and where the end says that it was by length.
PROTOCOLS: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/chat/completions", MESSAGES, "max_tokens", '"finish_reason":"length"'),
    ("/v1/chat/completions", MESSAGES, "max_completion_tokens", '"finish_reason":"length"'),
    ("/v1/completions", {"prompt": "a"}, "max_tokens", '"finish_reason":"length"'),
    ("/v1/responses", {"input": "a"}, "max_output_tokens", '"reason":"max_output_tokens"'),
    ("/v1/messages", MESSAGES, "max_tokens", '"stop_reason":"model_context_window_exceeded"'),
]


@pytest.mark.parametrize(("path", "body", "field", "said"), PROTOCOLS)
async def test_more_tokens_than_the_model_has_are_as_many_as_fit(
    path: str, body: dict[str, Any], field: str, said: str
) -> None:
    generator = FakeGenerator(finish_reason=FinishReason.LENGTH, max_model_len=128)
    async with open_client(make_application(generator)) as client:
        answer = await client.request("POST", path, {**body, field: 32_000})
    assert answer.status == 200, answer.json
    assert said in answer.body.decode()
    assert generator.calls[0].params.max_tokens == 32_000  # `InputProcessor.prepare` bounds it
