"""A frontend is killed that serves a thousand clients that hardly read; each sees a pause alone.

What they were sent before is in the kernel or in their connection's slot, what comes later is in
the journal or at the engine. Their answers are the same, so each is compared with all others.
"""

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from .server import DEADLINE_S, Server, open_server

pytestmark = pytest.mark.slow

CLIENTS = 1000
# Some are still to begin when their frontend dies: an engine has fewer rows.
BEGUN = CLIENTS // 4
TOKENS = 24
READ_BYTES = 1024
BODY: dict[str, Any] = {
    "prompt": "A fox",
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "stream": True,
    "seed": 5,
}


@attrs.define(eq=False)
class SlowClient:
    """One connection, whose receive buffer is as small as the kernel allows."""

    received: bytes = b""

    async def ask(self, server: Server) -> trio.SocketStream:
        host, _, port = server.url.removeprefix("http://").partition(":")
        sock = trio.socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        await sock.connect((host, int(port)))
        stream = trio.SocketStream(sock)
        body = json.dumps(BODY)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        await stream.send_all((head + body).encode())
        return stream

    async def read(self, stream: trio.SocketStream, until: bytes = b"") -> None:
        """To the end, or until this has come."""
        while not (until and until in self.received):
            part = await stream.receive_some(READ_BYTES)
            if not part:
                return
            self.received += part

    def said(self) -> tuple[str, str, str]:
        """Its text, how that ended, and the last line."""
        lines = [
            line.removeprefix("data: ")
            for line in _whole(self.received).decode().splitlines()
            if line.startswith("data: ")
        ]
        choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
        return "".join(each["text"] for each in choices), choices[-1]["finish_reason"], lines[-1]


def _whole(received: bytes) -> bytes:
    """The body of a chunked answer, which must be whole."""
    head, _, rest = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        assert rest[length : length + 2] == b"\r\n"
        rest = rest[length + 2 :]
        if not length:
            return body


async def test_a_thousand_slow_clients_see_a_pause(tmp_path: Path) -> None:
    clients = [SlowClient() for _ in range(CLIENTS)]
    begun, is_killed = trio.Semaphore(0), trio.Event()

    async def go_on(client: SlowClient) -> None:
        stream = await client.ask(server)
        async with stream:
            await client.read(stream, b"data: ")
            begun.release()
            await is_killed.wait()
            await client.read(stream)

    # All at once, however long the last ones wait.
    limits = ("--admission.active-requests-max", str(CLIENTS), "--wait-target", "0")
    options = ("--frontends", "1", *limits)
    with trio.fail_after(3 * DEADLINE_S):
        async with open_server(tmp_path, "--executor", "null", *options) as server:
            await server.wait_linked(1, 1)
            async with trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(go_on, client)
                for _ in range(BEGUN):
                    await begun.acquire()
                os.kill((await server.pids())["frontend 0"], signal.SIGKILL)
                is_killed.set()
            (said,) = {client.said() for client in clients}
            assert said[1:] == ("length", "[DONE]")
            metrics = await server.metrics()
            added = sum(n for name, n in metrics.items() if "engine_requests_added" in name)
            assert added == CLIENTS, "none was executed twice"
