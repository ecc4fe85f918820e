"""A client's TCP connection whose server's end outlives the process that serves it.

A life dies between two looks of the kernel: what it had stored in the slot, and what the kernel had
taken and given, stays; nothing that it does afterwards counts.
"""

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import attrs
import trio
import trio.testing

from triolet.api.application import Application
from triolet.api.connection_shares import LOCAL
from triolet.api.http.held import HeldSlots
from triolet.api.serving.connection import run_connection
from triolet.transports.takeover.memory import SLOT_BYTES
from triolet.transports.takeover.tcp import make_countable

from .lives import Lives, asking

DEADLINE_S = 20.0


@attrs.define(eq=False)
class Wire:
    """One client's connection, of which the root has a duplicate, with its slot."""

    client: socket.socket
    server: socket.socket
    memory: bytearray = attrs.field(factory=lambda: bytearray(SLOT_BYTES))
    received: bytes = b""
    ended: list[int] = attrs.field(factory=list)

    @asynccontextmanager
    async def served_by(
        self, application: Application, *, is_taken_over: bool = False
    ) -> AsyncIterator[trio.CancelScope]:
        """A process that has it for this block, or until its scope is cancelled."""
        application.slots = HeldSlots(lambda _: memoryview(self.memory), self.ended.append)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(self.server.dup()))
        run = partial(run_connection, is_taken_over=is_taken_over)
        async with asking(run, stream, application, LOCAL, 0) as scope:
            yield scope

    def look(self) -> bytes:
        """All that the client has received by now."""
        try:
            while data := self.client.recv(2**16):
                self.received += data
        except BlockingIOError:
            pass
        return self.received

    async def wait(self, holds: Callable[[bytes], bool]) -> bytes:
        """Until this holds for all that was received."""
        with trio.fail_after(DEADLINE_S):
            while not holds(self.look()):
                await trio.lowlevel.checkpoint()
        return self.received


@contextmanager
def open_wire() -> Iterator[Wire]:
    """Both ends, non-blocking."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    for each in (client, server):
        each.setblocking(False)
    make_countable(server)
    with client, server:
        yield Wire(client, server)


@asynccontextmanager
async def next_life(
    lives: Lives, wire: Wire, scope: trio.CancelScope
) -> AsyncIterator[Application]:
    """The present one is killed: what it does in its last moments changes nothing."""
    lives.cut_off()
    # Its death is where it waits: one that is cancelled in a write would reset the connection.
    await trio.testing.wait_all_tasks_blocked(0.01)
    image = bytes(wire.memory)
    lives.kill()
    scope.cancel("it was killed")
    await trio.testing.wait_all_tasks_blocked(0.01)
    wire.memory = bytearray(image)
    async with lives.next() as after:
        yield after
