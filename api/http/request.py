"""HTTP request head: method, path, query and headers, and what makes it a WebSocket handshake.

Sans-IO: values; the parser has checked the syntax already.
"""

import base64
import binascii
import re
from collections.abc import KeysView
from typing import overload
from urllib.parse import parse_qs, unquote, urlsplit

import attrs

from ..errors import ApiError

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
# One that needs no decoding.
_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+", re.ASCII)
WEBSOCKET_VERSION = "13"
JSON_TYPE = "application/json"
# RFC 6455, 4.2.1: the key is 16 bytes, base64.
WEBSOCKET_KEY_BYTES = 16


def is_json_type(content_type: str) -> bool:
    """Whether a `Content-Type` header says JSON; its parameters do not matter."""
    name = content_type.partition(";")[0].strip().lower()
    return name == JSON_TYPE or (name.startswith("application/") and name.endswith("+json"))


@attrs.define
class HttpRequest:
    """`path` is decoded; header names are lower case, values as sent (Latin-1). Never changed."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    http_version: str = "1.1"
    # The first value of each name.
    _first: dict[str, str] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._first = dict(reversed(self.headers))

    @classmethod
    def of_target(
        cls,
        method: str,
        target: str,
        headers: tuple[tuple[str, str], ...],
        http_version: str = "1.1",
    ) -> "HttpRequest":
        """From the parts of a head. An absolute target (`http://host/path`) counts as its path."""
        if _PLAIN_PATH.fullmatch(target):
            return cls(method, target, "", headers, http_version)
        path, _, query = target.partition("?")
        if not target.startswith("/"):
            try:
                parts = urlsplit(target)
                path, query = parts.path, parts.query
            except ValueError:
                path, query = target, ""
        return cls(method, unquote(path, errors="replace"), query, headers, http_version)

    @property
    def names(self) -> KeysView[str]:
        """The names of its headers, each once."""
        return self._first.keys()

    @overload
    def header(self, name: str) -> str | None: ...
    @overload
    def header(self, name: str, absent: str) -> str: ...
    def header(self, name: str, absent: str | None = None) -> str | None:
        """The first value of a header, by its lower-case name; `absent` when there is none."""
        return self._first.get(name, absent)

    def tokens(self, name: str) -> set[str]:
        """The comma-separated tokens of all headers of that name, lower case."""
        if name not in self._first:
            return set()
        values = ",".join([value for given, value in self.headers if given == name])
        return {token.strip().lower() for token in values.split(",") if token.strip()}

    def query_value(self, name: str) -> str | None:
        """The last value of a query parameter. Raises `ValueError` if there are too many."""
        values = parse_qs(self.query, max_num_fields=64).get(name)
        return values[-1] if values else None

    def check_json(self) -> None:
        """Raise `ApiError` 415 for a body that is declared as something else, or compressed."""
        declared = self.header("content-type", JSON_TYPE)
        if declared != JSON_TYPE and not is_json_type(declared):
            message = "The body must be sent as application/json"
            raise ApiError(415, message, "unsupported_media_type")
        if self.header("content-encoding", "identity").lower() != "identity":
            message = "The body must be sent without Content-Encoding"
            raise ApiError(415, message, "unsupported_media_type")

    @property
    def host(self) -> str:
        """The `Host` header, or "" (HTTP/1.0 clients may send none)."""
        return self.header("host") or ""

    @property
    def request_id(self) -> str | None:
        """The client's `X-Request-Id`, when it is harmless to echo and to log."""
        given = self.header("x-request-id")
        return given if given is not None and REQUEST_ID.fullmatch(given) else None

    @property
    def asks_for_websocket(self) -> bool:
        """Whether it is meant as a WebSocket handshake, sound or not."""
        if "upgrade" not in self._first:
            return False
        return "websocket" in self.tokens("upgrade") and "upgrade" in self.tokens("connection")

    def websocket_key(self) -> str:
        """The key of a sound handshake (RFC 6455, 4.2.1). Raises `ApiError` 400, 405 or 426."""
        if self.method != "GET":
            raise ApiError(405, "A WebSocket handshake is a GET request", "method_not_allowed")
        if self.header("sec-websocket-version") != WEBSOCKET_VERSION:
            raise ApiError(426, "Only WebSocket version 13 is spoken", "invalid_handshake")
        key = (self.header("sec-websocket-key") or "").strip()
        try:
            is_sound = len(base64.b64decode(key, validate=True)) == WEBSOCKET_KEY_BYTES
        except (binascii.Error, ValueError):
            is_sound = False
        if not is_sound:
            raise ApiError(400, "Sec-WebSocket-Key is not 16 bytes in base64", "invalid_handshake")
        return key
