"""Fuzzes HTTP requests in memory: lines, targets, headers, lengths and chunks, cut anywhere.

Invariant: however the bytes are cut, the same requests are read and the same refused, by name; a
request that is read says the same when it is written and read again.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from urllib.parse import quote

import attrs

from ....api.errors import ApiError
from ....api.http.access import OriginPolicy, authorization_of, authorization_of_offer
from ....api.http.request import (
    CountedBody,
    Head,
    HttpRequest,
    skip_empty_lines,
    take_head,
)
from ....api.settings import HttpLimits
from ...drawing import mutate
from ...fuzzer import Fuzzer, each
from ..connections import GOOD

HEAD_BYTES_MAX = HttpLimits().head_bytes_max
# Far above what is drawn, so that only a length that was declared is over it.
BODY_BYTES_MAX = 2**20
# Statuses of a request's own fault.
STATUSES = frozenset({400, 413, 431, 501, 505})
CHECK_STATUSES = frozenset({400, 403, 405, 415, 426})
# Count of the good parts, the first below, and the share of draws among all.
GOOD_PARTS, ODD_SHARE = 3, 0.12
METHODS = (b"GET", b"POST", b"HEAD", b"OPTIONS", b"DELETE", b"get", b"PRI", b"CONNECT",
           b"M-SEARCH", b"SOURCE", b"!GET", b"", b"\0", b"GET\t", b"\x16\x03\x01",
           b"A" * 300)  # fmt: skip
TARGETS = (
    b"/", b"/v1/responses", b"/v1/models?x=%41&y=%&z=1;2", b"*", b"http://localhost/a?b",
    b"http://[::1", b"http://a:b@c:99999/x?y#z", b"//a/b", b"/%00%ff%2e%2e/", b"/\xff\xfe", b"/a b",
    b"localhost:80", b"/../../etc/passwd", b"/" + b"a" * 9000, b"ws://x", b"/\x7f", b"?", b"",
)  # fmt: skip
VERSIONS = (b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/1.9",
            b"HTTP/2.0", b"HTTP/0.9",
            b"http/1.1", b"HTTP/1.1 ", b"", b"HTTP/11", b"RTSP/1.0", b"HTTP/1.10")  # fmt: skip
ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\r\n", b"\r\n ", b"\r\n\t", b"\0\r\n")
HOSTS = (b"Host: localhost", b"host:127.0.0.1:80", b"HOST: [::1]", b"Host: [::1", b"Host:",
         b"Host: a\xffb", b"Host: evil.example", b"Host: a, b",
         b"Host: localhost:99999999")  # fmt: skip
HEADERS = (
    b"Accept: */*", b"X-A: b", b"Connection: keep-alive", b"Content-Length: 0",
    b"Content-Length: +2", b"Content-Length: 0x2",
    b"Content-Length: 2, 2", b"Content-Length: -1", b"Content-Length: 18446744073709551616",
    b"Content-Length: " + b"0" * 30 + b"2", b"Content-Length: 99999999999", b"Content-Length:",
    b"Transfer-Encoding: Chunked", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding:",
    b"Connection: close", b"Connection: keep-alive, Upgrade", b"Connection: ,,\xe9,close",
    b"Upgrade: websocket", b"Upgrade: h2c", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    b"Sec-WebSocket-Key: \xff", b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Version: 8",
    b"Sec-WebSocket-Protocol: triolet, openai-insecure-api-key.\xff", b"Expect: 100-continue",
    b"Expect: x", b"Authorization: Bearer k", b"Authorization: Basic \xff", b"Authorization:",
    b"Content-Type: application/json; charset=\xff", b"Content-Type: text/plain",
    b"Content-Encoding: gzip", b"Origin: null", b"Origin: http://[", b"Origin: http://localhost:x",
    b"Origin: http://localhost", b"X-Request-Id: a\tb", b"X-Request-Id: " + b"r" * 200,
    b"Cookie: " + b"c" * 40_000, b"A : b", b": b", b"no colon", b"A: b\x01", b" folded",
    b"\xc3\xa9: x",
    b"a" * 3000 + b": b", b"X-data-parallel-rank: 1e9", b"Trailer: Host", b"TE: trailers",
)  # fmt: skip
BODY_HEADERS = (b"Content-Length: 2", b"Transfer-Encoding: chunked")
CHUNK_LINES = (b"2\r\nhi\r\n", b"02\r\nhi\r\n", b"2;a=b\r\nhi\r\n", b'2;a="\r\n"\r\nhi\r\n',
               b"-1\r\n", b"2 \r\nhi\r\n", b"0x2\r\nhi\r\n", b"2\nhi\n", b"ffffffffffffffff\r\nhi",
               b"fffffffffffffffff\r\n", b"\r\n", b"2\r\nhix", b"G\r\n", b"2;\0\r\nhi\r\n",
               b"3;" + b"e" * 4000 + b"\r\nabc\r\n")  # fmt: skip
CHUNK_ENDS = (b"0\r\n\r\n", b"00000\r\n\r\n", b"0\r\nHost: b\r\n\r\n", b"0\r\n\r", b"0\n\n",
              b"0\r\nContent-Length: 5\r\n\r\n", b"", b"0\r\na b\r\n\r\n")  # fmt: skip


@attrs.frozen
class Bytes:
    """Bytes that a client sends, in pieces; the whole is what counts."""

    pieces: tuple[bytes, ...]


@attrs.frozen
class HeadReader:
    """Takes one head from a buffer, as `take_head` does."""

    take: Callable[[bytearray, int], Head | None]


def _draw_bytes(chance: Random) -> Bytes:
    """Draw one to three requests a time: good or spoiled ones, and lines at random."""
    data = b"".join(_draw_request(chance) for _ in range(chance.choice((1, 1, 2, 3))))
    if chance.random() < 0.25:
        data = mutate(chance, data)
    if chance.random() < 0.1:
        data = chance.choice((b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ")) + data
    cuts = sorted(chance.randint(0, len(data)) for _ in range(chance.choice((1, 2, 6))))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return Bytes(tuple(pieces))


def _draw_request(chance: Random) -> bytes:
    if chance.random() < 0.3:
        return chance.choice(GOOD)
    line = b" ".join(_choose(chance, parts) for parts in (METHODS, TARGETS, VERSIONS))
    headers = [_choose(chance, HOSTS) for _ in range(chance.choice((*[1] * 12, 0, 2)))]
    headers += [_choose(chance, HEADERS) for _ in range(chance.randrange(4))]
    headers += [chance.choice(BODY_HEADERS)] if chance.random() < 0.4 else []
    chance.shuffle(headers)
    body = b"hi" if any(header.endswith(b" 2") for header in headers) else b""
    if any(b"hunked" in header for header in headers):
        chunks = [_choose(chance, CHUNK_LINES) for _ in range(chance.randrange(4))]
        body = b"".join(chunks) + _choose(chance, CHUNK_ENDS)
    head = b"".join(each + _choose(chance, ENDS) for each in (line, *headers))
    return head + _choose(chance, ENDS) + body


def _choose(chance: Random, parts: Sequence[bytes]) -> bytes:
    """Choose among the first, good parts, or among all: where all may be odd, all are refused."""
    return chance.choice(parts if chance.random() < ODD_SHARE else parts[:GOOD_PARTS])


def check(events: Sequence[Bytes], reader: HeadReader) -> Counter[str]:
    """Read each as a whole and in pieces; see the module's invariant."""
    reached: Counter[str] = Counter()
    for event in events:
        found, ending = _read((b"".join(event.pieces),), reader)
        in_pieces, its_ending = _read(event.pieces, reader)
        assert in_pieces == found, f"in pieces {in_pieces}, as a whole {found}"
        assert (its_ending in STATUSES) == (ending in STATUSES), f"{its_ending}, {ending}"
        if ending not in STATUSES:
            assert its_ending == ending, f"{its_ending}, {ending}"
        reached[str(ending)] += 1
        reached["requests"] += len(found)
        for request, _ in found:
            _use(request, reached)
            _check_again(request, reader)
    return reached


_Found = list[tuple[HttpRequest, bytes]]
# Why nothing more is read: the status of a refusal, or this.
CLOSED, IN_HEAD, IN_BODY, AT_REST = "closed", "within a head", "within a body", "at rest"


def _read(pieces: Sequence[bytes], reader: HeadReader) -> tuple[_Found, str | int]:
    """Requests with their bodies, as a connection reads them, and how it ended."""
    connection = _Connection(reader)
    try:
        for piece in pieces:
            connection.buffer += piece
            while connection.take_request():
                pass
            if connection.ending:
                return connection.found, connection.ending
    except ApiError as error:
        return connection.found, _status(error, STATUSES)
    return (
        connection.found,
        IN_BODY if connection.head else IN_HEAD if connection.buffer else AT_REST,
    )


@attrs.define(eq=False)
class _Connection:
    """Connection with what was read of it; `head` is of a request whose body is not whole."""

    reader: HeadReader
    buffer: bytearray = attrs.field(factory=bytearray)
    found: _Found = attrs.field(factory=list)
    head: Head | None = None
    body: bytes = b""
    ending: str | int = ""

    def take_request(self) -> bool:
        """Take what is here of a request; whether another one may follow."""
        if self.head is None:
            skip_empty_lines(self.buffer)
            self.head = self.reader.take(self.buffer, HEAD_BYTES_MAX)
        if self.head is None or self.ending:
            return False
        head = self.head
        if getattr(head.body, "bytes_left", 0) > BODY_BYTES_MAX:
            self.ending = 413
            return False
        while piece := head.body.take(self.buffer):
            self.body += piece if isinstance(head.body, CountedBody) else head.body.read(piece)
        if not head.body.is_whole:
            return False
        self.found.append((head.request, self.body))
        self.head, self.body = None, b""
        self.ending = "" if head.keeps_alive else CLOSED
        return head.keeps_alive


def _status(error: ApiError, statuses: frozenset[int]) -> int:
    assert error.status in statuses, error
    assert error.message, error
    assert error.code, error
    return error.status


def _use(request: HttpRequest, reached: Counter[str]) -> None:
    """Ask a request what a connection and its routes ask of it."""
    assert all(name == name.lower() and name.isascii() for name, _ in request.headers)
    assert not any(mark in value for _, value in request.headers for mark in "\r\n\0")
    assert sum(name == "host" for name, _ in request.headers) <= 1
    policy = OriginPolicy.of(("a",), ("http://b",))
    authorization_of(request.header)
    authorization_of_offer(request.values("sec-websocket-protocol"))
    assert request.request_id is None or len(request.request_id) <= 128
    for ask in (
        request.check_json,
        request.websocket_key,
        lambda: policy.check_host(request.host),
        lambda: policy.check_origin(request.header("origin"), request.host),
    ):
        try:
            ask()
        except ApiError as error:
            reached[f"asked: {_status(error, CHECK_STATUSES)}"] += 1
    reached["sockets"] += request.asks_for_websocket


def _check_again(request: HttpRequest, reader: HeadReader) -> None:
    """Write it plainly and read it again; without its body."""
    if not request.path.startswith("/") or request.path.startswith("//"):
        return
    lengths = ("content-length", "transfer-encoding")
    headers = tuple(each for each in request.headers if each[0] not in lengths)
    target = quote(request.path) + (f"?{request.query}" if request.query else "")
    lines = [f"{request.method} {target} HTTP/{request.http_version}"]
    lines += [f"{name}: {value}" for name, value in headers]
    written = "\r\n".join([*lines, "", ""]).encode("latin-1")
    if len(written) > HEAD_BYTES_MAX:
        return
    head = reader.take(bytearray(written), HEAD_BYTES_MAX)
    assert head is not None, written
    again, stripped = head.request, tuple((name, value.strip(" \t")) for name, value in headers)
    assert (again.method, again.path, again.query) == (request.method, request.path, request.query)
    assert again.headers == stripped, (again.headers, stripped)


# ---- planted faults


def _take_as_ascii(buffer: bytearray, bytes_max: int) -> Head | None:
    """Planted: a byte that is no ASCII is an error that nobody has named."""
    buffer.decode("ascii")
    return take_head(buffer, bytes_max)


def _take_hastily(buffer: bytearray, bytes_max: int) -> Head | None:
    """Planted: a head that is not whole at once is refused."""
    head = take_head(buffer, bytes_max)
    if head is None and buffer:
        raise ApiError(400, "too slow", "invalid_http")
    return head


FUZZER = Fuzzer[Bytes, HeadReader](
    name="heads",
    invariant="however bytes are cut, the same requests are read, and the same refused by name",
    draw=each(_draw_bytes),
    check=check,
    target=HeadReader(take_head),
    faults={
        "a byte that is no ASCII has no name": HeadReader(_take_as_ascii),
        "a head that comes in pieces is refused": HeadReader(_take_hastily),
    },
    round_events=1000,
    smoke_rounds=4,
    reaches=frozenset(
        {
            "requests",
            "sockets",
            CLOSED,
            IN_HEAD,
            IN_BODY,
            AT_REST,
            *map(str, STATUSES),
            *(f"asked: {status}" for status in CHECK_STATUSES),
        }
    ),
    event_s_max=1.0,
)
