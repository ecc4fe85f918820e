"""The server's own connection code on a real socket in this process, with a real engine behind it.

For fuzzers of what clients send: after any of it, the server must still serve, hold nothing and
have failed nowhere.
"""

import json
import os
import pathlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import attrs
import trio

from ...api.application import Application
from ...api.serving.connection import run_connection
from ...api.serving.server import ConnectionSource, serve_connections
from ...api.settings import HttpLimits, ServerLimits, ServeSettings, SocketLimits
from ...engine.model.bundled import bundled_model_folder
from ...nurseries.tasks.service import open_service, single_errors_unwrapped
from ..observers import descriptors
from .bed import Bed, open_bed
from .tcp_client import Ending, converse

T = TypeVar("T")
BUNDLED = pathlib.Path(bundled_model_folder())
# Type of `serve_connections`; canaries put a wrong one in its place.
Serve = Callable[[ConnectionSource, Application], Awaitable[None]]
# Type of `run_connection`.
Handle = Callable[[trio.SocketStream, Application], Awaitable[None]]
# Short, so that a client that says nothing more is soon let go, but not shorter than a busy machine
# may keep a good one waiting; the sizes are the real ones.
LIMITS = ServerLimits(
    http=HttpLimits(head_s=2.0, body_s=2.0, idle_s=2.0, write_s=5.0, linger_s=0.5),
    socket=SocketLimits(close_s=0.5, write_s=5.0, ping_s=0.3, pong_s=0.3),
)
# Time for one connection, and for the server to let go of all; far above what limits allow.
DEADLINE_S = 60.0
# In so many looks may one be open that is nobody's: a thread reads a file, a look at one's own is
# one. Looks, since a machine that keeps us from looking keeps the thread from closing as well.
DESCRIPTORS_LOOKS = 100
DESCRIPTORS_LOOK_S = 0.01
# Statuses that a client's fault may be answered with; 500 is a fault of ours.
FAULT_STATUSES = frozenset(
    {400, 401, 403, 404, 405, 408, 409, 411, 413, 414, 415, 422, 426, 429, 431, 501, 503, 505}
)
# The answer to a head that was sent at once, when the machine stood still before it was read.
CAME_LATE = b"HTTP/1.1 408 "
GOOD_STATUSES = frozenset({100, 101, 200, 204})
PLAIN = b'{"input":"hi","max_output_tokens":2}'


@attrs.define(eq=False)
class Served:
    """Server, with what is behind it."""

    address: tuple[str, int]
    application: Application
    bed: Bed
    descriptors_before: frozenset[tuple[int, str]]

    async def check_unharmed(self) -> None:
        """Check that it serves a plain request, and then holds nothing of anybody's."""
        status = 408
        while status == 408:  # the machine stood still in the midst of our own request
            status, body = await self.post("/v1/responses", PLAIN)
        assert status == 200, (status, body)
        assert body["status"] in ("completed", "incomplete"), body
        with trio.move_on_after(DEADLINE_S):
            await self._wait_idle()
        counters = self.application.counters
        assert counters.connections_active == 0, "a connection is held"
        assert self.active_requests == 0, "a request is held"
        assert counters.connections_failed == 0, "a connection failed by a fault of ours"
        assert not [key for key in counters.answers if key[2] == 500], "an answer was 500"
        held = await self._wait_descriptors()
        assert not held, f"a descriptor is held: {held}"

    async def _wait_idle(self) -> None:
        """Looks again and again: what ends last is not known."""
        while self.application.counters.connections_active or self.active_requests:
            await trio.lowlevel.checkpoint()

    async def _wait_descriptors(self) -> list[tuple[int, str]]:
        """Wait for new descriptors that stay: those of other threads come and go meanwhile."""
        held = open_descriptors() - self.descriptors_before
        for _ in range(DESCRIPTORS_LOOKS):
            if held:
                await trio.sleep(DESCRIPTORS_LOOK_S)
                held &= open_descriptors()
        return sorted(held)

    @property
    def active_requests(self) -> int:
        """Requests that the frontend has not let go of."""
        return self.bed.frontend.admission.active_requests

    async def post(self, path: str, body: bytes) -> tuple[int, Any]:
        """Post a whole request on a connection of its own; the status and the JSON."""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        left = await converse(self.address, (head, body), Ending.WAIT, deadline_s=DEADLINE_S)
        status, _, answer = split_answer(left.received)
        return status, json.loads(answer) if answer[:1] == b"{" else answer


async def open_listener() -> trio.SocketListener:
    """Listens on a free port of loopback."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    return listener


def where(listener: trio.SocketListener) -> tuple[str, int]:
    """The address that clients connect to."""
    host, port = listener.socket.getsockname()
    return host, port


@asynccontextmanager
async def open_served(serve: Serve = serve_connections, **engine: Any) -> AsyncIterator[Served]:
    """A server that serves the bundled model with the null executor, on loopback.

    `engine` are settings of its engine.
    """
    opened = open_bed(BUNDLED, **{"max_num_seqs": 16, **engine})
    async with opened as bed, await open_listener() as listener:
        application = Application(bed.frontend, ServeSettings(limits=LIMITS))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, listener, application)
            yield Served(where(listener), application, bed, open_descriptors())
            nursery.cancel_scope.cancel("the round is over")


@attrs.define(eq=False)
class FilteredStream(trio.abc.HalfCloseableStream):
    """A transport that changes what is sent, for canaries: a server that says something wrong."""

    stream: trio.abc.HalfCloseableStream
    change: Callable[[bytes], bytes] = bytes

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send what `change` makes of it."""
        await self.stream.send_all(self.change(bytes(data)))

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self.stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self.stream.send_eof()

    async def aclose(self) -> None:
        await self.stream.aclose()


async def serve_each(source: ConnectionSource, application: Application, handle: Handle) -> None:
    """Serve connections without a limit, and with another handler than `serve_connections` has."""
    responses = open_service(application.streams.run, name="responses")
    async with responses, trio.open_nursery() as nursery:
        while True:
            accepted = await source.accept()
            assert isinstance(accepted, trio.SocketStream)
            nursery.start_soon(handle, accepted, application)


def serve_filtered(change: Callable[[bytes], bytes]) -> Serve:
    """The server, with every write changed."""

    async def handle(stream: trio.SocketStream, application: Application) -> None:
        await run_connection(FilteredStream(stream, change), application)

    return partial(serve_each, handle=handle)


def open_descriptors() -> frozenset[tuple[int, str]]:
    """Descriptors of this process, each with what it is: a number alone is soon reused."""
    return frozenset(descriptors(os.getpid()).items())


def split_answer(data: bytes) -> tuple[int, bytes, bytes]:
    """Status, head and body of the one answer in `data`. Asserts that it is one."""
    head, mark, body = data.partition(b"\r\n\r\n")
    assert mark, f"no whole head in {data[:200]!r}"
    version, status, _ = head.split(b" ", 2)
    assert version == b"HTTP/1.1", head[:200]
    return int(status), head, body


def check_served(
    events: Sequence[T],
    run_one: Callable[[Served, T, Counter[str]], Awaitable[None]],
    serve: Serve,
    *,
    in_flight: int,
) -> Counter[str]:
    """Run all events against one server, so many at once; then it must be as it was.

    Returns what `run_one(served, event, reached)` counted. Raises what it raises, bare.
    """
    reached: Counter[str] = Counter()

    async def run_within(served: Served, limiter: trio.CapacityLimiter, event: T) -> None:
        async with limiter:
            await run_one(served, event, reached)

    async def run_all() -> None:
        with single_errors_unwrapped():
            async with open_served(serve) as served:
                limiter = trio.CapacityLimiter(in_flight)
                async with trio.open_nursery() as nursery:
                    for event in events:
                        nursery.start_soon(run_within, served, limiter, event)
                await served.check_unharmed()

    trio.run(run_all)
    return reached
