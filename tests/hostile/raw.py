"""Bytes that HTTP clients of all ages send, each with the first lines of the answers.

A request that may be answered ends in a connection that still serves.
"""

import json
from collections.abc import Mapping, Sequence

import h11
import trio

from triolet.fuzz.doubles.clients import HttpClient

from .surfaces import ASKED, MODEL

# Of an answer that never comes.
DEADLINE_S = 30.0
_BODY = json.dumps({**MODEL, **ASKED, "max_tokens": 2}).encode()
_BOM = b"\xef\xbb\xbf"


def _post(body: bytes, *, target: str = "/v1/chat/completions", version: str = "1.1") -> bytes:
    head = (
        f"POST {target} HTTP/{version}\r\nHost: HOST\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


_LONE = _BODY.replace(b'"messages"', b'"\\ud800"', 1)
# What is sent by one connection, piece by piece, and the status of each answer.
RAW: Mapping[str, tuple[Sequence[bytes], Sequence[int]]] = {
    "an empty line before a request": ([b"\r\n" + _post(_BODY)], [200]),
    "two empty lines before a request": ([b"\r\n\r\n" + _post(_BODY)], [200]),
    "an empty line behind a body": ([_post(_BODY) + b"\r\n", _post(_BODY)], [200, 200]),
    "two empty lines behind a body": ([_post(_BODY) + b"\r\n\r\n", _post(_BODY)], [200, 200]),
    "a byte order mark before a body": ([_post(_BOM + _BODY)], [200]),
    "HTTP/1.2": ([_post(_BODY, version="1.2")], [200]),
    "HTTP/2.0 in the words of 1": ([_post(_BODY, version="2.0")], [505]),
    "an absolute target": ([_post(_BODY, target="http://HOST/v1/chat/completions")], [200]),
    "an absolute target of another host": (
        [_post(_BODY, target="http://rebound.example/v1/chat/completions")], [403]),
    "an empty line that comes late": ([_post(_BODY), b"\r\n" + _post(_BODY)], [200, 200]),
    "a lone surrogate in a name": ([_post(_LONE)], [400]),
    "a body that is no JSON": ([_post(b'{"model": '), _post(_BODY)], [400, 200]),
}  # fmt: skip


async def statuses(url: str, pieces: Sequence[bytes]) -> list[int]:
    """The status of each answer, 0 where the connection ends instead.

    A piece is sent when the one before it is answered.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    found: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            for piece in pieces:
                await stream.send_all(piece.replace(b"HOST", f"{host}:{port}".encode()))
                try:
                    answer = await HttpClient(stream).read_answer_without_request()
                except h11.RemoteProtocolError:
                    return [*found, 0]
                found.append(answer.status)
    return found
