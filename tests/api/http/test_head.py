"""The fast reader of heads against h11: what it accepts, h11 accepts with the same meaning."""

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triolet.api.http.head import read_head, write_chunk, write_head
from triolet.api.http.request import HttpRequest

BYTES_MAX = 4096
USUAL = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost:8000\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Connection: keep-alive\r\nAuthorization: Bearer key\r\nContent-Length: 12\r\n\r\n"
)


def test_a_usual_head() -> None:
    head = read_head(bytearray(USUAL + b'{"prompt": 1'), BYTES_MAX)
    assert head is not None
    assert (head.size, head.body_bytes, head.keeps_alive) == (len(USUAL), 12, True)
    assert (head.request.method, head.request.path) == ("POST", "/v1/completions")
    assert head.request.header("authorization") == "Bearer key"


def test_a_client_may_want_to_close() -> None:
    head = read_head(USUAL.replace(b"keep-alive", b"Close"), BYTES_MAX)
    assert head is not None
    assert not head.keeps_alive


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"HTTP/1.1", b"HTTP/2.0"),
        (b"POST /", b"CONNECT /"),
        (b"POST /v1/completions", b"POST http://a/b"),
        (b"POST /v1/completions", b"OPTIONS *"),
        (b"Host: localhost:8000\r\n", b""),
        (b"Host:", b"Host: b\r\nHost:"),
        (b"Content-Length: 12", b"Content-Length: 12\r\nContent-Length: 12"),
        (b"Content-Length: 12", b"Content-Length: 12\r\nTransfer-Encoding: chunked"),
        (b"Content-Length: 12", b"Transfer-Encoding: chunked"),
        (b"Content-Length: 12", b"Content-Length: +12"),
        (b"Content-Length: 12", b"Content-Length: 12, 12"),
        (b"Content-Length: 12", b"Content-Length: 1_2"),
        (b"Content-Length: 12", b"Content-Length:"),
        (b"Content-Length: 12", b"Content-Length: 1234567890123456"),
        (b"Content-Length: 12", b"Expect: 100-continue"),
        (b"keep-alive", b"Upgrade\r\nUpgrade: websocket"),
        (b"keep-alive", b"keep-alive, close"),
        (b"keep-alive", b"keep-alive\r\nConnection: close"),
        (b"Accept-Encoding: gzip", b"Accept-Encoding : gzip"),
        (b"Accept-Encoding: gzip", b"Accept-Encoding: a\r\n gzip"),
        (b"Accept-Encoding: gzip", b"Accept-Encoding: a\x00b"),
        (b"Accept-Encoding: gzip", b"Accept-Encoding: \xc3\xa4"),
        (b"\r\nAccept", b"\nAccept"),
        (b"\r\n\r\n", b"\r\n"),
        (b"gzip", b"x" * BYTES_MAX),
    ],
)
def test_everything_uncommon_is_left_to_h11(old: bytes, new: bytes) -> None:
    assert old in USUAL
    assert read_head(USUAL.replace(old, new, 1), BYTES_MAX) is None


def by_h11(data: bytes) -> tuple[HttpRequest, bytes, bool]:
    """The request, its body, and whether the connection may go on. Raises `RemoteProtocolError`."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=BYTES_MAX)
    connection.receive_data(data)
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    request = HttpRequest.of(event)
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    return request, body, connection.our_state is h11.DONE


names = st.sampled_from(
    [
        "Host",
        "Content-Length",
        "Connection",
        "Transfer-Encoding",
        "Expect",
        "Accept",
        "x-y",
        "X Y",
        "",
    ]
)
values = st.sampled_from(
    [
        "localhost",
        "3",
        "0",
        "003",
        "-3",
        "close",
        "keep-alive",
        "chunked",
        "a b",
        " a\t",
        "",
        "ä",
        "\0",
    ]
) | st.text(st.characters(max_codepoint=255), max_size=5)
lines = st.tuples(names, st.sampled_from([": ", ":", " : ", ":\t"]), values).map("".join)
heads = st.builds(
    lambda method, target, version, fields, end: (
        "\r\n".join([f"{method} {target} HTTP/{version}", *fields]) + end
    ).encode("latin-1"),
    st.sampled_from(["GET", "POST", "get", "CONNECT", "G(T", ""]),
    st.sampled_from(["/", "/v1/x", "/a%20b?c=d", "//h/p", "*", "http://h/p", "/ä", "/a b", ""]),
    st.sampled_from(["1.1", "1.0", "2.0"]),
    st.lists(lines, max_size=4).map(lambda found: ["Host: localhost", *found]),
    st.sampled_from(["\r\n\r\n", "\n\n", "\r\n"]),
)


@settings(max_examples=500)
@given(heads)
@example(USUAL)
def test_what_is_accepted_means_the_same_to_h11(data: bytes) -> None:
    head = read_head(data, BYTES_MAX)
    if head is None:
        return
    body = b"x" * min(head.body_bytes, 10_000)
    if len(body) < head.body_bytes:
        return
    request, read, goes_on = by_h11(data[: head.size] + body)
    assert (head.request, head.keeps_alive, body) == (request, goes_on, read)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_a_head_or_not(noise: bytes, at: int) -> None:
    spoilt = USUAL[:at] + noise + USUAL[at:]
    head = read_head(spoilt, BYTES_MAX)
    if head is not None:
        assert by_h11(spoilt[: head.size] + b"x" * head.body_bytes)[0] == head.request


def test_the_head_of_an_answer_is_http() -> None:
    head = write_head(404, [("content-length", "0"), ("x-request-id", "a")])
    assert head == b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nx-request-id: a\r\n\r\n"
    assert write_chunk(b"0123456789abcdef") == b"10\r\n0123456789abcdef\r\n"


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\n", "\0"])
def test_a_value_cannot_break_the_head(value: str) -> None:
    with pytest.raises(ValueError, match="allow"):
        write_head(200, [("allow", value)])
