"""What all clients share: heads, and the end of what a lost connection leaves."""

from triolet.bench.load.client import Target, break_off
from triolet.bench.load.history import Outcome, RequestHistory


def test_a_head_has_host_key_and_headers() -> None:
    head = Target(host="127.0.0.1", port=80, key="k").head("GET", "/a", Content_Length="3")
    assert head == (
        b"GET /a HTTP/1.1\r\nHost: 127.0.0.1:80\r\nAuthorization: Bearer k\r\n"
        b"Content-Length: 3\r\n\r\n"
    )
    assert b"Authorization" not in Target(host="h", port=80).head("GET", "/")
    assert Target(host="::1", port=80).address == "[::1]:80"


def test_what_runs_is_broken_off() -> None:
    (history,) = break_off([RequestHistory(0, due_s=0.0, sent_s=0.0)], "end of stream", 3.0)
    assert (history.outcome, history.error) == (Outcome.BROKEN, "end of stream")
