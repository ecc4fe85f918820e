"""The HTTP client against scripted bytes; the real server is met in `test_runner`."""

import json

import pytest

from triolet.bench.load.client import ClientFault, Target
from triolet.bench.load.history import Outcome
from triolet.bench.load.http import HttpClient, HttpKind
from triolet.bench.load.schedule import Ask

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


def test_a_chat_ends_by_its_mark() -> None:
    chat = client(HttpKind.CHAT)
    history, data = chat.start(ASK, 1.0)
    assert data.startswith(b"POST /v1/chat/completions HTTP/1.1")
    text = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
    chat.receive(STREAM + chunk(text) + b"0\r\n\r\n", 2.0)
    assert (history.text, history.outcome) == ("a", Outcome.COMPLETED)


def test_a_stream_without_a_last_event_is_broken() -> None:
    sse = client(HttpKind.SSE)
    history, _ = sse.start(ASK, 1.0)
    sse.receive(STREAM + b"0\r\n\r\n", 2.0)
    assert sse.take_ended() == [history]
    assert history.outcome is Outcome.BROKEN


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


def test_a_lost_connection_breaks_what_runs() -> None:
    http = client(HttpKind.HTTP)
    history, _ = http.start(ASK, 1.0)
    http.handle_closed("ConnectionResetError", 2.0)
    assert http.take_ended() == [history]
    assert (history.outcome, history.error) == (Outcome.BROKEN, "ConnectionResetError")


def test_bytes_that_nobody_asked_for_are_a_fault() -> None:
    with pytest.raises(ClientFault):
        client(HttpKind.HTTP).receive(b"HTTP/1.1 200 OK\r\n\r\n", 0.0)
    sse = client(HttpKind.SSE)
    sse.start(ASK, 1.0)
    with pytest.raises(ClientFault):
        sse.receive(STREAM + chunk(b"data: {\n\n"), 2.0)
