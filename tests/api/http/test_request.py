"""Heads as routes read them, and handshakes."""

import pytest

from triolet.api.errors import ApiError
from triolet.api.http.request import HttpRequest

KEY = "AAAAAAAAAAAAAAAAAAAAAA=="


def request(target: str = "/", method: str = "GET", **headers: str) -> HttpRequest:
    pairs = (("host", "h"), *((n.replace("_", "-"), v) for n, v in headers.items()))
    return HttpRequest.of_target(method, target, pairs)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/a/b?x=1", "/a/b", "x=1"),
        ("/a%20b", "/a b", ""),
        ("http://h:1/a?x", "/a", "x"),
        ("//v1/models?x=/%41", "//v1/models", "x=/%41"),
        ("/%61//b", "/a//b", ""),
        ("*", "*", ""),
        ("http://[::1/a", "http://[::1/a", ""),
    ],
)
def test_targets(target: str, path: str, query: str) -> None:
    found = request(target)
    assert (found.path, found.query) == (path, query)


def test_query_values() -> None:
    found = request("/?a=1&a=2&b=%20")
    assert found.query_value("a") == "2"
    assert found.query_value("b") == " "
    assert found.query_value("c") is None


def test_headers_and_tokens() -> None:
    found = request(connection="keep-alive, Upgrade", upgrade="WebSocket")
    assert found.host == "h"
    assert found.tokens("connection") == {"keep-alive", "upgrade"}
    assert found.asks_for_websocket
    assert not request(upgrade="websocket").asks_for_websocket


@pytest.mark.parametrize(("given", "taken"), [("a-1", True), ("a b", False), ("x" * 129, False)])
def test_request_ids(given: str, taken: bool) -> None:
    assert (request(x_request_id=given).request_id == given) is taken


def test_a_sound_handshake_gives_its_key() -> None:
    found = request(sec_websocket_version="13", sec_websocket_key=KEY)
    assert found.websocket_key() == KEY


@pytest.mark.parametrize(
    ("method", "version", "key", "status"),
    [
        ("POST", "13", KEY, 405),
        ("GET", "8", KEY, 426),
        ("GET", "13", "short", 400),
        ("GET", "13", "", 400),
        ("GET", "13", "!" * 24, 400),
    ],
)
def test_unsound_handshakes(method: str, version: str, key: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        request("/", method, sec_websocket_version=version, sec_websocket_key=key).websocket_key()
    assert caught.value.status == status
