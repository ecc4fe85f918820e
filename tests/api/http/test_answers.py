"""Answers as bytes: heads, chunks, dates."""

import pytest

from triolet.api.http.answers import http_date, write_chunk, write_head


def test_the_head_of_an_answer_is_http() -> None:
    head = write_head(404, [("content-length", "0"), ("x-request-id", "a")])
    assert head == b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nx-request-id: a\r\n\r\n"
    assert write_chunk(b"0123456789abcdef") == b"10\r\n0123456789abcdef\r\n"


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\n", "\0"])
def test_a_value_cannot_break_the_head(value: str) -> None:
    with pytest.raises(ValueError, match="allow"):
        write_head(200, [("allow", value)])


def test_answers_have_a_date() -> None:
    assert http_date(784111777) == "Sun, 06 Nov 1994 08:49:37 GMT"
