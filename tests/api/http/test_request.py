"""Heads as routes read them, and handshakes."""

from collections.abc import Iterator

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triolet.api.errors import ApiError
from triolet.api.http.request import (
    CHUNKS_BYTES,
    ChunkedBody,
    CountedBody,
    Head,
    HttpRequest,
    skip_empty_lines,
    take_head,
)


def request(target: str = "/", method: str = "GET", **headers: str) -> HttpRequest:
    pairs = (("host", "h"), *((n.replace("_", "-"), v) for n, v in headers.items()))
    return HttpRequest.of_target(method, target, pairs)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/a/b?x=1", "/a/b", "x=1"),
        ("/a%20b", "/a b", ""),
        ("http://h:1/a?x", "/a", "x"),
        ("http://h:1", "", ""),
        ("//v1/models?x=/%41", "//v1/models", "x=/%41"),
        ("/%61//b", "/a//b", ""),
        ("*", "*", ""),
        ("http://[::1/a", "http://[::1/a", ""),
    ],
)
def test_targets(target: str, path: str, query: str) -> None:
    found = request(target)
    assert (found.path, found.query) == (path, query)


def test_headers_and_tokens() -> None:
    found = request(connection="keep-alive, Upgrade", upgrade="WebSocket")
    assert found.host == "h"
    assert found.tokens("connection") == {"keep-alive", "upgrade"}
    assert found.asks_for_websocket
    assert not request(upgrade="websocket").asks_for_websocket


@pytest.mark.parametrize(("given", "taken"), [("a-1", True), ("a b", False), ("x" * 129, False)])
def test_request_ids(given: str, taken: bool) -> None:
    assert (request(x_request_id=given).request_id == given) is taken


BYTES_MAX = 4096
USUAL = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost:8000\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Connection: keep-alive\r\nAuthorization: Bearer key \r\nContent-Length: 12\r\n\r\n"
)
LENGTH = b"Content-Length: 12"
CHUNKED = b"Transfer-Encoding: chunked"
NEXT = b"GET /next HTTP/1.1\r\n\r\n"


def parse(data: bytes) -> tuple[Head, bytearray]:
    """A whole head, and what is left."""
    buffer = bytearray(data)
    skip_empty_lines(buffer)
    head = take_head(buffer, BYTES_MAX)
    assert head is not None
    return head, buffer


@pytest.mark.parametrize("version", [b"HTTP/1.2", b"HTTP/1.9"])
def test_a_later_minor_version_is_read_as_1_1(version: bytes) -> None:
    head, rest = parse(USUAL.replace(b"HTTP/1.1", version) + NEXT)
    assert (head.request.http_version, head.keeps_alive) == ("1.1", True)
    assert rest == NEXT


def test_empty_lines_before_a_head_are_skipped() -> None:
    assert parse(b"\r\n" * 3 + USUAL)[0].request == parse(USUAL)[0].request
    buffer = bytearray(b"\r\n\r")
    skip_empty_lines(buffer)
    assert buffer == b"\r", "half of one may be followed by the other"
    assert take_head(buffer, BYTES_MAX) is None
    buffer += b"\n" + USUAL
    skip_empty_lines(buffer)
    assert buffer == USUAL


def test_the_host_of_an_absolute_target_goes_before_the_header() -> None:
    head, _ = parse(USUAL.replace(b"POST /v1", b"POST http://evil.example/v1"))
    assert (head.request.host, head.request.path) == ("evil.example", "/v1/completions")
    early, _ = parse(b"GET http://evil.example/ HTTP/1.0\r\n\r\n")
    assert early.request.host == "evil.example"
    with pytest.raises(ApiError, match="no Host"):
        parse(b"GET http://evil.example/ HTTP/1.1\r\n\r\n")


def test_a_usual_head() -> None:
    head, rest = parse(USUAL + b'{"prompt": 1')
    assert rest == b'{"prompt": 1'
    assert isinstance(head.body, CountedBody)
    assert (head.body.bytes_left, head.keeps_alive, head.expects_continue) == (12, True, False)
    assert (head.request.method, head.request.path) == ("POST", "/v1/completions")
    assert head.request.header("authorization") == "Bearer key"
    assert head.body.take(rest) == b'{"prompt": 1'
    assert head.body.is_whole


def test_a_head_is_waited_for() -> None:
    for size in range(len(USUAL)):
        buffer = bytearray(USUAL[:size])
        assert take_head(buffer, BYTES_MAX) is None
        assert buffer == USUAL[:size]


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (b"HTTP/1.1", b"HTTP/2.0", 505),
        (b" HTTP/1.1", b"", 505),
        (b"HTTP/1.1", b"HTTP/1.1 ", 400),
        (b"POST", b"BREW", 501),
        (b"POST", b"post", 501),
        (b"POST", b"P(ST", 400),
        (b"POST ", b"POST  ", 400),
        (b" HTTP", b"  HTTP", 400),
        (b" HTTP", b"\xc3\xa4 HTTP", 400),
        (b"Host: localhost:8000\r\n", b"", 400),
        (b"Host:", b"Host: b\r\nHost:", 400),
        (LENGTH, b"Content-Length: 12\r\nContent-Length: 12", 400),
        (LENGTH, b"Content-Length: 12\r\nTransfer-Encoding: chunked", 400),
        (LENGTH, b"Transfer-Encoding: chunked\r\nContent-Length: 12", 400),
        (LENGTH, b"Content-Length: +12", 400),
        (LENGTH, b"Content-Length: 12, 12", 400),
        (LENGTH, b"Content-Length: 1_2", 400),
        (LENGTH, b"Content-Length:", 400),
        (LENGTH, b"Content-Length: 18446744073709551616", 400),
        (LENGTH, b"Content-Length: 0000000000000000000012", 400),
        (LENGTH, b"Transfer-Encoding: gzip", 501),
        (LENGTH, b"Transfer-Encoding: gzip, chunked", 501),
        (LENGTH, b"Transfer-Encoding: chunked, gzip", 400),
        (LENGTH, b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
        (LENGTH, CHUNKED + b"\r\nUpgrade: h2c\r\nConnection: upgrade", 501),
        (b"gzip", b"a\r\n gzip", 400),
        (b"gzip", b"a\x00b", 400),
        (b"gzip", b"a\rb", 400),
        (b"gzip", b"a\nb: c", 400),
        (b"Accept-Encoding", b"Accept-Encoding ", 400),
        (b"Accept-Encoding", b"", 400),
        (b"\r\nAccept", b"\nAccept", 400),
        (b"gzip", b"x" * BYTES_MAX, 431),
    ],
)
def test_what_is_refused(old: bytes, new: bytes, status: int) -> None:
    assert old in USUAL
    with pytest.raises(ApiError) as caught:
        take_head(bytearray(USUAL.replace(old, new, 1)), BYTES_MAX)
    assert caught.value.status == status


def test_http_1_0_has_no_chunks_and_ends_with_its_answer() -> None:
    old = USUAL.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Host: localhost:8000\r\n", b"")
    assert not parse(old)[0].keeps_alive
    with pytest.raises(ApiError):
        parse(old.replace(LENGTH, CHUNKED))


@pytest.mark.parametrize(
    ("new", "keeps_alive", "expects_continue"),
    [
        (b"Connection: Close", False, False),
        (b"Connection: x, close", False, False),
        (b"Connection: keep-alive\r\nConnection: close", False, False),
        (b"Expect: 100-Continue", True, True),
        (b"Expect: something", True, False),
    ],
)
def test_what_a_client_wishes(new: bytes, keeps_alive: bool, expects_continue: bool) -> None:
    head, _ = parse(USUAL.replace(b"Connection: keep-alive", new))
    assert (head.keeps_alive, head.expects_continue) == (keeps_alive, expects_continue)
    without_body = USUAL.replace(b"Connection: keep-alive", new).replace(LENGTH, b"Accept: x")
    assert not parse(without_body)[0].expects_continue


# ---- chunks


def chunked_body() -> ChunkedBody:
    head, _ = parse(USUAL.replace(LENGTH, CHUNKED))
    assert isinstance(head.body, ChunkedBody)
    return head.body


def pieces_of(body: ChunkedBody, buffer: bytearray) -> Iterator[bytes]:
    while piece := body.take(buffer):
        yield body.read(piece)


def test_chunks_are_parsed_in_the_same_pieces_however_they_came() -> None:
    text = b"x" * CHUNKS_BYTES + b"\r\n\r\n"
    wire = b"".join(b"%x\r\n%b\r\n" % (len(text[:size]), text[:size]) for size in (3, 20_000))
    wire += b"0\r\n\r\n"
    found = set[tuple[bytes, ...]]()
    for step in (1, 7, CHUNKS_BYTES, len(wire)):
        body, buffer, pieces = chunked_body(), bytearray(), list[bytes]()
        for start in range(0, len(wire), step):
            buffer += wire[start : start + step]
            while piece := body.take(buffer):
                pieces.append(piece)
                body.read(piece)
        assert body.is_whole
        found.add(tuple(pieces))
    assert len(found) == 1
    assert b"".join(*found) == wire


@given(
    st.lists(
        st.tuples(st.sampled_from([b"", b";a", b';a="b"']), st.text("a\r\n0", min_size=1)),
        max_size=4,
    ),
    st.sampled_from([b"", b"X: y\r\n"]),
    st.lists(st.integers(1, 60)),
)
def test_a_chunked_body_ends_where_it_ends_however_it_is_cut(
    chunks: list[tuple[bytes, str]], trailers: bytes, cuts: list[int]
) -> None:
    wire = b"".join(b"%x%b\r\n%b\r\n" % (len(d), x, d.encode()) for x, d in chunks)
    wire += b"0\r\n" + trailers + b"\r\n" + NEXT
    body, data, buffer = chunked_body(), b"", bytearray()
    for size in [*cuts, len(wire)]:
        buffer += wire[:size]
        wire = wire[size:]
        data += b"".join(pieces_of(body, buffer))
    assert body.is_whole
    assert data.decode() == "".join(text for _, text in chunks)
    assert buffer == NEXT


@pytest.mark.parametrize(
    "wire",
    [
        b"zz\r\n",
        b"+3\r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b"3 \r\nabc\r\n",
        b"3\nabc\n0\n\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc0\r\n\r\n",
        b"3;\r\nabc\r\n",
        b"fffffffffffffffff\r\na",
        b"0\r\nX : y\r\n\r\n",
        b"0\r\nContent-Length: 3\r\n\r\nabc",
    ],
)
def test_chunks_that_are_none(wire: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        list(pieces_of(chunked_body(), bytearray(wire + b"\r\n\r\n")))
    assert caught.value.status == 400


@pytest.mark.parametrize("start", [b"3;", b"0\r\nX: ", b"0000000000"])
def test_what_is_no_data_is_bounded(start: bytes) -> None:
    body = chunked_body()
    buffer = bytearray(start + b"0" * BYTES_MAX)
    assert b"".join(pieces_of(body, buffer)) == b""
    buffer += b"0" * CHUNKS_BYTES
    with pytest.raises(ApiError) as caught:
        list(pieces_of(body, buffer))
    assert caught.value.status == 431


# ---- against h11


def by_h11(data: bytes) -> HttpRequest:
    """The request. Raises `RemoteProtocolError`."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    parts = (event.method.decode(), event.target.decode())
    headers = tuple((n.decode(), v.decode("latin-1")) for n, v in event.headers)
    return HttpRequest.of_target(*parts, headers, event.http_version.decode())


NAMES = ("Host", "Content-Length", "Connection", "Transfer-Encoding", "Expect", "x-y", "X Y", "")
VALUES = ("localhost", "3", "003", "-3", "close", "keep-alive", "chunked", "a b", " a\t", "", "\0")
lines = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from([": ", ":", " : ", ":\t"]),
    st.sampled_from(VALUES) | st.text(st.characters(max_codepoint=255), max_size=5),
).map("".join)
heads = st.builds(
    lambda method, target, version, fields, end: (
        "\r\n".join([f"{method} {target} HTTP/{version}", *fields]) + end
    ).encode("latin-1"),
    st.sampled_from(["GET", "POST", "get", "CONNECT", "G(T", ""]),
    st.sampled_from(["/", "/a%20b?c=d", "//h/p", "*", "http://h/p", "/ä", "/a b", " /", ""]),
    st.sampled_from(["1.1", "1.0", "2.0"]),
    st.lists(lines, max_size=4).map(lambda found: ["Host: localhost", *found]),
    st.sampled_from(["\r\n\r\n", "\n\n", "\r\n"]),
)
spoilt = st.builds(
    lambda noise, at: USUAL[:at] + noise + USUAL[at:], st.binary(max_size=9), st.integers(0, 200)
)


@settings(max_examples=500)
@given(heads | spoilt)
@example(USUAL)
def test_what_is_accepted_means_the_same_to_h11(data: bytes) -> None:
    buffer = bytearray(data)
    skip_empty_lines(buffer)  # which h11 refuses
    sent = bytes(buffer)
    try:
        head = take_head(buffer, BYTES_MAX)
    except ApiError:
        return
    if head is not None:
        sent = sent[: len(sent) - len(buffer)]
        assert head.request == by_h11(sent)
