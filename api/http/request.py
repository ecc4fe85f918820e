"""HTTP/1.1 request parser: heads and bodies, strictly, by llhttp (httptools); WebSocket handshakes.

Sans-IO: takes whole heads and pieces of bodies from a buffer of bytes, and leaves there what comes
behind them, be it a next request or WebSocket frames.

llhttp refuses by itself what request smuggling is made of: two lengths, folded lines, bare CR or
LF, blanks before a colon, signs or spaces in a length or in a chunk's size. What it lets through
and is refused here: more than one space in the request line, no `Host` or several, transfer codings
besides `chunked`, HTTP/1.0 in chunks. Each head has a parser of its own (0.3 µs), which never sees
a byte behind it; a counted body needs none.
"""

import base64
import binascii
import re
from collections.abc import KeysView
from typing import overload
from urllib.parse import unquote, urlsplit

import attrs
from httptools import (
    HttpParserError,
    HttpParserInvalidMethodError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from ..errors import ApiError, head_too_large

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
# A path that needs no decoding.
_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+", re.ASCII)
WEBSOCKET_VERSION = "13"
JSON_TYPE = "application/json"
Headers = tuple[tuple[str, str], ...]
# RFC 6455, 4.2.1: the key is 16 bytes, base64.
WEBSOCKET_KEY_BYTES = 16


def is_json_type(content_type: str) -> bool:
    """Whether a `Content-Type` header says JSON; its parameters do not matter."""
    name = content_type.partition(";")[0].strip().lower()
    return name == JSON_TYPE or (name.startswith("application/") and name.endswith("+json"))


def _with_host(headers: Headers, host: str, http_version: str) -> Headers:
    """The headers with the host of an absolute target. HTTP/1.1 needs one of its own all the same,
    which is checked with the head."""
    if not host:
        return headers
    found = tuple([(name, host if name == "host" else value) for name, value in headers])
    is_absent = http_version == "1.0" and all(name != "host" for name, _ in headers)
    return (*found, ("host", host)) if is_absent else found


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
        headers: Headers,
        http_version: str = "1.1",
    ) -> "HttpRequest":
        """Read the parts of a head. An absolute target (`http://host/path`) counts as its path,
        and its host goes before the `Host` header (RFC 9112, 3.2.2)."""
        if _PLAIN_PATH.fullmatch(target):
            return cls(method, target, "", headers, http_version)
        path, _, query = target.partition("?")
        if not target.startswith("/"):
            try:
                parts = urlsplit(target)
                path, query = parts.path, parts.query
                headers = _with_host(headers, parts.netloc, http_version)
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

    def values(self, name: str) -> list[str]:
        """The comma-separated values of all headers of that name, as sent."""
        if name not in self._first:
            return []
        values = ",".join([value for given, value in self.headers if given == name])
        return [value.strip() for value in values.split(",") if value.strip()]

    def tokens(self, name: str) -> set[str]:
        """The same, lower case."""
        return {value.lower() for value in self.values(name)}

    def check_json(self) -> None:
        """Raise `ApiError` 415 for a body that is declared as something else, or compressed."""
        declared = self.header("content-type", JSON_TYPE)
        if declared != JSON_TYPE and not is_json_type(declared):
            message = "The body must have the header content-type: application/json"
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


# A line of any method; RFC 9110 wants 501 for one that is not known, and 400 for noise.
_REQUEST_LINE = re.compile(rb"[!#-'*+.^-z|~0-9A-Z-]+ [!-~]+ HTTP/1\.[01]\r\n")
# A request line of HTTP/1.2 or a later minor version: what is before its digit, and the digit.
_LATER_MINOR = re.compile(rb"([^\r\n]* HTTP/1\.)([2-9])\r\n")
_EMPTY_LINES = re.compile(rb"\A(?:\r\n)+")
EMPTY_LINE = b"\r\n\r\n"
VERSIONS = frozenset({"1.0", "1.1"})
# Errors of llhttp for sound requests that are not served: status and message.
_UNSERVED = {
    "Invalid HTTP version": (505, "Only HTTP/1.1 is spoken"),
    "Request has invalid `Transfer-Encoding`": (501, "Of transfer codings only chunked is known"),
}
# Largest piece of a chunked body that is parsed at once.
CHUNKS_BYTES = 16 * 2**10
# More digits are no length; leading zeros would be allowed without end.
_LENGTH_DIGITS_MAX = 20


def invalid_http(message: str = "The request is not valid HTTP/1.1", status: int = 400) -> ApiError:
    """Why nothing more is read from a connection: its sender's bytes cannot be understood."""
    code = "http_version_not_supported" if status == 505 else "invalid_http"
    return ApiError(status, message, code)


class _Callbacks:
    """Parts of a request that llhttp has found."""

    def __init__(self) -> None:
        self.target = b""
        # Headers of the head; trailers come here, too, when it was read already.
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []
        self.is_complete = False

    def on_url(self, target: bytes) -> None:
        self.target = target

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.is_complete = True


@attrs.define(eq=False)
class CountedBody:
    """A body whose length was declared; 0 without one."""

    bytes_left: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is to come."""
        return not self.bytes_left

    def take(self, buffer: bytearray) -> bytes:
        """Take the bytes of the body that are there."""
        data = bytes(buffer[: self.bytes_left])
        del buffer[: self.bytes_left]
        self.bytes_left -= len(data)
        return data


@attrs.define(eq=False)
class ChunkedBody:
    """A body in chunks. Sizes, extensions and trailers are bounded between two pieces of data.

    It is parsed in pieces whose ends do not depend on how the bytes came, so that what a process
    dies of is the same when it comes again (`runtime.hands`).
    """

    framing_bytes_max: int
    _parser: HttpRequestParser
    _found: _Callbacks
    # Bytes since the last one of data.
    _framing_bytes: int = attrs.field(default=0, init=False)

    @property
    def is_whole(self) -> bool:
        """Whether its end was taken."""
        return self._found.is_complete

    def take(self, buffer: bytearray) -> bytes:
        """The next piece, framing included; empty while it is not here.

        llhttp does not say where a body ended, but each ends with an empty line: no piece goes
        beyond the next one, and three bytes, which may be the start of one, stay behind.
        """
        if self.is_whole:
            return b""
        end = buffer.find(EMPTY_LINE, 0, CHUNKS_BYTES + 3)
        if end < 0 and len(buffer) < CHUNKS_BYTES + 3:
            return b""
        size = CHUNKS_BYTES if end < 0 else end + len(EMPTY_LINE)
        piece = bytes(buffer[:size])
        del buffer[:size]
        return piece

    def read(self, piece: bytes) -> bytes:
        """Strip the framing of a piece. Raises `ApiError` 400 or 431."""
        try:
            self._parser.feed_data(piece)
        except HttpParserError:
            raise invalid_http("The chunks of the body are not valid HTTP/1.1") from None
        data = b"".join(self._found.body)
        self._found.body.clear()
        self._framing_bytes = 0 if data else self._framing_bytes + len(piece)
        if self._framing_bytes > self.framing_bytes_max:
            raise head_too_large()
        return data


@attrs.define(eq=False)
class Head:
    """Head with its facts about body and connection. Not frozen: one is made for each request."""

    request: HttpRequest
    body: CountedBody | ChunkedBody
    keeps_alive: bool
    # The client waits for `100 Continue` before it sends its body.
    expects_continue: bool


def skip_empty_lines(buffer: bytearray) -> None:
    """Drop those in front of a request: old clients send one behind a body (RFC 9112, 2.2)."""
    if buffer.startswith(b"\r\n"):
        del buffer[: len(buffer) - len(_EMPTY_LINES.sub(b"", buffer, 1))]


def take_head(buffer: bytearray, bytes_max: int) -> Head | None:
    """Take the head at the start of `buffer`, which is no empty line; None while it is not whole.

    Raises `ApiError` 400, 431, 501 or 505; nothing more can be read from the connection then.
    """
    end = buffer.find(EMPTY_LINE, 0, bytes_max)
    if end < 0:
        if len(buffer) >= bytes_max:
            raise head_too_large()
        if buffer and buffer != b"\r" and not buffer[:1].isalpha():
            raise invalid_http()  # such as the start of TLS, whose sender waits for us
        return None
    data = buffer[: end + len(EMPTY_LINE)]
    del buffer[: len(data)]
    return _parsed(data, bytes_max)


def _parsed(data: bytearray, bytes_max: int) -> Head:
    found = _Callbacks()
    parser = HttpRequestParser(found)
    try:
        parser.feed_data(data)
    except HttpParserUpgrade:
        pass  # the head is whole; whether the protocol changes is decided elsewhere
    except HttpParserInvalidMethodError:
        if _REQUEST_LINE.match(data) is None:
            raise invalid_http() from None
        raise invalid_http("This method is not known here", 501) from None
    except HttpParserError as error:
        if later := _LATER_MINOR.match(data):  # to be answered as 1.1 (RFC 9110, 2.5)
            data[later.end(1) : later.end(2)] = b"1"
            return _parsed(data, bytes_max)
        status, message = _UNSERVED.get(str(error), (400, "The request is not valid HTTP/1.1"))
        raise invalid_http(message, status) from None
    return _checked(data, parser, found, bytes_max)


def _checked(data: bytearray, parser: HttpRequestParser, found: _Callbacks, bytes_max: int) -> Head:
    """The head that was parsed. Raises `ApiError` for what llhttp lets through."""
    method, version = parser.get_method(), parser.get_http_version()
    if version not in VERSIONS:
        raise invalid_http("Only HTTP/1.1 is spoken", 505)
    if not data.startswith(b"%b %b HTTP/" % (method, found.target)):
        raise invalid_http()
    headers = tuple(
        [(n.lower().decode(), v.decode("latin-1").rstrip(" \t")) for n, v in found.headers]
    )
    request = HttpRequest.of_target(
        method.decode("ascii"), found.target.decode("ascii"), headers, version
    )
    names = request.names
    if "host" not in names and version == "1.1":
        raise invalid_http("The request has no Host header")
    if len(names) < len(headers) and sum(name == "host" for name, _ in headers) > 1:
        raise invalid_http("The request has several Host headers")
    body = _body_of(request, parser, found, bytes_max)
    return Head(
        request,
        body,
        keeps_alive=version == "1.1"
        and ("connection" not in names or "close" not in request.tokens("connection")),
        expects_continue="expect" in names
        and version == "1.1"
        and not body.is_whole
        and "100-continue" in request.tokens("expect"),
    )


def _body_of(
    request: HttpRequest, parser: HttpRequestParser, found: _Callbacks, bytes_max: int
) -> CountedBody | ChunkedBody:
    coding = request.header("transfer-encoding")
    if coding is None:
        length = request.header("content-length", "0")
        if len(length) > _LENGTH_DIGITS_MAX:
            raise invalid_http()
        return CountedBody(int(length))
    if request.http_version == "1.0":
        raise invalid_http("HTTP/1.0 has no transfer codings")
    # Before another protocol llhttp skips a body, so that it could not read this one.
    if coding.lower() != "chunked" or parser.should_upgrade():
        raise invalid_http("Of transfer codings only chunked is known", 501)
    return ChunkedBody(bytes_max, parser, found)
