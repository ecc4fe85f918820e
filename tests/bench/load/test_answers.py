"""Answers against h11, which knows the RFC; and however the bytes are cut."""

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.bench.load.answers import AnswerFault, AnswerReader


def answer_bytes(parts: list[bytes], *, chunked: bool, close: bool = False) -> bytes:
    """One answer as h11 writes it."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    server.next_event()
    headers = [] if chunked else [("content-length", str(sum(map(len, parts))))]
    headers += [("connection", "close")] if close else []
    wire = server.send(h11.Response(status_code=200, headers=headers)) or b""
    for part in parts:
        wire += server.send(h11.Data(data=part)) or b""
    return wire + (server.send(h11.EndOfMessage()) or b"")


@given(st.lists(st.binary(max_size=30), max_size=5), st.booleans(), st.data())
def test_bodies_are_found_however_they_are_cut(
    parts: list[bytes], chunked: bool, data: st.DataObject
) -> None:
    wire = answer_bytes(parts, chunked=chunked) * 2
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    reader, bodies, body = AnswerReader(), [], b""
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        body += reader.feed(wire[begin:end])
        while reader.is_whole:
            assert reader.status == 200
            bodies.append(body)
            reader.next_answer()
            body = reader.feed(b"")
    assert bodies == [b"".join(parts)] * 2


def test_a_server_that_closes_says_so() -> None:
    reader = AnswerReader()
    reader.feed(answer_bytes([b"a"], chunked=False, close=True))
    assert reader.closes
    reader.next_answer()
    assert not reader.closes


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: a\r\n\r\n",
    ],
)
def test_nonsense_is_refused(wire: bytes) -> None:
    with pytest.raises(AnswerFault):
        AnswerReader().feed(wire)
