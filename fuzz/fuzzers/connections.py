"""Fuzzes HTTP and handshake bytes over real sockets, many at once, ended in every way.

Invariant: each is answered, refused by name or let go; the server lives on and holds nothing.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random

import attrs
import trio

from ...api.application import Application
from ...api.serving.connection import run_connection
from ...api.serving.server import ConnectionSource, serve_connections
from ..doubles.served import (
    DEADLINE_S,
    FAULT_STATUSES,
    GOOD_STATUSES,
    PLAIN,
    FilteredStream,
    Serve,
    Served,
    check_served,
    serve_each,
)
from ..doubles.tcp_client import Ending, converse
from ..doubles.websocket_frames import HANDSHAKE
from ..drawing import mutate
from ..fuzzer import Fuzzer, each

IN_FLIGHT = 60
_CHAT = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"stream":true}'
_LENGTH = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
GOOD = (
    HANDSHAKE,
    HANDSHAKE,
    b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/models?x=%41 HTTP/1.1\r\nHost: localhost:80\r\nAuthorization: Bearer k\r\n\r\n" * 2,
    b"HEAD /health HTTP/1.0\r\n\r\n",
    b"OPTIONS /v1/responses HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n",
    _LENGTH % (b"/v1/responses", len(PLAIN), PLAIN),
    _LENGTH % (b"/v1/chat/completions", len(_CHAT), _CHAT),
    b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    b"Expect: 100-continue\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(PLAIN), PLAIN),
    b"DELETE /v1/responses/resp_1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
)  # fmt: skip


@attrs.frozen
class Connection:
    """Connection: what is written, piece by piece, and how it ends."""

    pieces: tuple[bytes, ...]
    ending: Ending


def draw_connection(chance: Random) -> Connection:
    """Draw a connection; one that is reset is cut at a random byte before."""
    data = chance.choice(GOOD)
    if chance.random() < 0.7:
        data = mutate(chance, data)
    elif chance.random() < 0.1:
        data = data.replace(b"Host", b"X: " + b"x" * chance.choice((30_000, 100_000)) + b"\r\nHost")
    ending = chance.choice((Ending.RESET, Ending.CLOSE, Ending.HALF, Ending.HALF))
    if chance.random() < 0.05:
        ending = Ending.WAIT
    if ending is Ending.RESET or chance.random() < 0.3:
        data = data[: chance.randint(0, len(data))]
    cut = chance.randint(0, len(data))
    pieces = (data[:cut], data[cut:]) if chance.random() < 0.3 else (data,)
    return Connection(pieces, ending)


def check(connections: Sequence[Connection], serve: Serve) -> Counter[str]:
    """Run all against one server, some at once; then it must be as it was."""
    return check_served(connections, _run_one, serve, in_flight=IN_FLIGHT)


async def _run_one(served: Served, connection: Connection, reached: Counter[str]) -> None:
    left = await converse(
        served.address, connection.pieces, connection.ending, deadline_s=DEADLINE_S
    )
    reached[connection.ending.value] += 1
    for status in statuses(left.received):
        assert status in GOOD_STATUSES | FAULT_STATUSES, left.received[:300]
        reached[str(status)] += 1


def statuses(data: bytes) -> list[int]:
    """The statuses of all answers in `data`; refusals must be whole and say what they refuse."""
    found = []
    for part in re.split(rb"HTTP/1\.1 (?=\d{3} )", data)[1:]:
        found.append(int(part[:3]))
        head, _, body = part.partition(b"\r\n\r\n")
        if found[-1] in FAULT_STATUSES and b"content-length" in head and body:
            error = json.loads(body)["error"]
            assert error["code"], body
            assert error["message"], body
    assert not data or data.startswith(b"HTTP/1.1 "), data[:200]
    return found


# ---- planted faults


async def _read_head_as_text(stream: trio.SocketStream, application: Application) -> None:
    """Planted: what goes wrong on one connection goes wrong for all."""
    async with stream:
        reader = _Replaying(stream, head=bytes(await stream.receive_some(65536)))
        reader.head.decode()
        await run_connection(reader, application)


@attrs.define(eq=False)
class _Replaying(FilteredStream):
    """A stream whose first bytes were read already."""

    head: bytes = b""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self.head:
            head, self.head = self.head, b""
            return head
        return await super().receive_some(max_bytes)


async def _serve_leaking(source: ConnectionSource, application: Application) -> None:
    """Planted: each connection leaves a descriptor behind."""
    kept: list[int] = []

    async def handle(stream: trio.SocketStream, application: Application) -> None:
        kept.append(os.dup(0))
        await run_connection(stream, application)

    try:
        await serve_each(source, application, handle)
    finally:
        for descriptor in kept:
            os.close(descriptor)


async def _handle_bluntly(stream: trio.SocketStream, application: Application) -> None:
    """Planted: whatever is no good request is answered 500."""
    async with stream:
        data = bytes(await stream.receive_some(65536))
        if not data.startswith((b"GET ", b"POST ")):
            await stream.send_all(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n")
            return
        await run_connection(_Replaying(stream, head=data), application)


FUZZER = Fuzzer[Connection, Serve](
    name="connections",
    invariant="bytes of any kind, ended in any way: answered or refused by name, and nothing held",
    draw=each(draw_connection),
    check=check,
    target=serve_connections,
    faults={
        "one connection's error is everybody's": partial(serve_each, handle=_read_head_as_text),
        "each connection leaves a descriptor behind": _serve_leaking,
        "what is no request is answered 500": partial(serve_each, handle=_handle_bluntly),
    },
    round_events=120,
    smoke_rounds=4,
    reaches=frozenset(
        {*(ending.value for ending in Ending), "101", "200", "400", "404", "408", "431"}
    ),
)
