"""Clients of a load against scripted bytes and h11; the real server is met in `test_load`."""

import json
from typing import Any

import h11
import pytest
import wsproto.frame_protocol as rfc
from hypothesis import given
from hypothesis import strategies as st

from triolet.bench.load.client import ClientFault, Outcome, RequestHistory, Target
from triolet.bench.load.events import (
    AnswerFault,
    AnswerReader,
    EventFault,
    note_chat_chunk,
    note_response_event,
    note_whole_answer,
    read_response_event,
)
from triolet.bench.load.protocols import HttpClient, HttpKind, LanesClient
from triolet.bench.load.schedule import Ask
from triolet.fuzz.doubles.websocket_frames import CLOSE, PONG, encode_frame


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


USAGE = {"input_tokens": 4, "output_tokens": 2, "total_tokens": 6}


def history() -> RequestHistory:
    return RequestHistory(3, due_s=0.0, sent_s=0.0)


def note(seen: RequestHistory, **event: Any) -> bool:
    return note_response_event(read_response_event(json.dumps(event).encode()), seen, 2.0)


@pytest.mark.parametrize(
    ("event", "outcome", "error"),
    [
        (
            {"type": "error", "error": {"code": "model_not_found"}},
            Outcome.REFUSED,
            "model_not_found",
        ),
        ({"type": "error", "error": {"type": "server_error"}}, Outcome.REFUSED, "server_error"),
        (
            {"type": "response.failed", "response": {"error": {"code": "engine_died"}}},
            Outcome.FAILED,
            "engine_died",
        ),
        (
            {"type": "response.incomplete", "response": {"status": "cancelled"}},
            Outcome.CANCELLED,
            "",
        ),
        (
            {"type": "response.incomplete", "response": {"status": "incomplete"}},
            Outcome.COMPLETED,
            "",
        ),
    ],
)
def test_ends_are_distinguished(event: dict[str, Any], outcome: Outcome, error: str) -> None:
    seen = history()
    assert note(seen, **event)
    assert (seen.outcome, seen.error) == (outcome, error)


def test_nonsense_is_refused_of_events() -> None:
    with pytest.raises(EventFault):
        read_response_event(b"{")
    with pytest.raises(EventFault):
        note_chat_chunk(b'{"choices": 3}', history(), 0.0)
    with pytest.raises(EventFault):
        note_whole_answer(b"[]", history(), 0.0)


ASK = Ask(0, 0.0, "hi", 2, 1)
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def client(kind: HttpKind) -> HttpClient:
    return HttpClient(Target(host="h", port=1), kind)


def test_a_streamed_response_ends_with_its_answer() -> None:
    sse = client(HttpKind.SSE)
    assert (sse.open(), sse.free) == (b"", 1)
    history, data = sse.start(ASK, 1.0)
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/responses HTTP/1.1")
    assert json.loads(body)["stream"] is True
    assert sse.free == 0
    first = b'event: e\ndata: {"type":"response.output_text.delta","sequence_number":4,"delta":"a"}'
    last = b'\n\nevent: f\ndata: {"type":"response.completed","response":{"id":"r"}}\n\n'
    sse.receive(STREAM + chunk(first + last[:1]), 2.0)
    sse.receive(chunk(last[1:]), 3.0)
    assert sse.take_ended() == []
    sse.receive(b"0\r\n\r\n", 4.0)
    assert sse.take_ended() == [history]
    assert (history.text, history.outcome, history.ended_s) == ("a", Outcome.COMPLETED, 3.0)
    assert sse.free == 1


def test_whole_answers_refusals_and_closes() -> None:
    http = client(HttpKind.HTTP)
    history, data = http.start(ASK, 1.0)
    assert json.loads(data.partition(b"\r\n\r\n")[2])["stream"] is False
    http.receive(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n" + b'{"id":"r"}', 2.0)
    assert (history.outcome, history.response_id) == (Outcome.COMPLETED, "r")
    refused, _ = http.start(ASK, 3.0)
    answer = b"HTTP/1.1 429 No\r\nconnection: close\r\ncontent-length: 27\r\n\r\n"
    http.receive(answer + b'{"error":{"code":"limited"}', 4.0)
    assert (refused.outcome, refused.error) == (Outcome.REFUSED, "429 error")
    assert (http.has_ended, http.free) == (True, 0)


def test_bytes_without_a_request_are_a_fault() -> None:
    with pytest.raises(ClientFault):
        client(HttpKind.HTTP).receive(b"HTTP/1.1 200 OK\r\n\r\n", 0.0)
    sse = client(HttpKind.SSE)
    sse.start(ASK, 1.0)
    with pytest.raises(ClientFault):
        sse.receive(STREAM + chunk(b"data: {\n\n"), 2.0)


ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"


class ActingServer:
    """The server's end of a client's frames."""

    def __init__(self) -> None:
        self.protocol = rfc.FrameProtocol(client=False, extensions=[])

    def read(self, data: bytes) -> dict[str, Any]:
        self.protocol.receive_bytes(data)
        (frame,) = self.protocol.received_frames()
        value = json.loads(str(frame.payload))
        assert isinstance(value, dict)
        return value

    def say(self, **event: Any) -> bytes:
        return bytes(self.protocol.send_data(json.dumps(event), True))


def opened(lanes: int = 2) -> LanesClient:
    client = LanesClient(Target(host="h", port=1), lanes, with_token_ids=True)
    assert b"Upgrade: websocket" in client.open()
    assert client.free == 0
    assert client.receive(ACCEPTED, 0.0) == b""
    return client


def test_a_lane_runs_one_request_and_is_free_again() -> None:
    client, server = opened(), ActingServer()
    assert client.free == 2
    history, data = client.start(Ask(0, 0.0, "hi", 3, 1), 1.0)
    asked = server.read(data)
    assert (asked["type"], asked["input"]) == ("response.create", "hi")
    assert asked["runtime"]["token_ids"]
    assert client.free == 1
    lane = asked["stream_id"]
    created = server.say(
        type="response.created", sequence_number=0, stream_id=lane, response={"id": "r"}
    )
    end = server.say(
        type="response.completed", sequence_number=7, stream_id=lane, response={"id": "r"}
    )
    client.receive(created + end[:5], 2.0)
    assert client.take_ended() == []
    client.receive(end[5:], 3.0)
    assert client.take_ended() == [history]
    assert (client.free, history.outcome, history.ended_s) == (2, Outcome.COMPLETED, 3.0)
    assert client.take_ended() == []


def test_pings_and_closes_are_answered_and_what_runs_is_broken() -> None:
    client, server = opened(), ActingServer()
    assert client.receive(bytes(server.protocol.ping(b"p")), 1.0) == encode_frame(PONG, b"p")
    history, _ = client.start(Ask(0, 0.0, "hi", 3, 1), 1.0)
    reply = client.receive(bytes(server.protocol.close(1012, "restart")), 2.0)
    assert reply == encode_frame(CLOSE, (1012).to_bytes(2, "big"))
    assert (client.has_ended, client.free) == (True, 0)
    client.handle_closed("end of stream", 3.0)
    assert client.take_ended() == [history]
    assert (history.outcome, history.error) == (Outcome.BROKEN, "closed 1012")


def test_a_refused_handshake_is_a_fault() -> None:
    client = LanesClient(Target(host="h", port=1))
    with pytest.raises(ClientFault, match="401"):
        client.receive(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n", 0.0)


def test_nonsense_is_a_fault() -> None:
    with pytest.raises(ClientFault):
        opened().receive(b"\x81\x02{]", 0.0)
