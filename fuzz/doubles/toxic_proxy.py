"""Toxic TCP proxy: connections to a port of this machine that are late, lossy, silent or cut.

For faults of a network where no namespace with such a link may be made. What TCP makes of a lost
packet is a delay until it is sent again, so that is what loss is here.
"""

import contextlib
import random

import attrs
import trio

from .tcp_client import reset

HOST = "127.0.0.1"
CHUNK_BYTES = 4096
# The shortest time after which Linux sends a packet again; twice as long each time that it is lost.
RETRANSMIT_S, RETRANSMITS_MAX = 0.2, 3


@attrs.define(eq=False)
class ToxicProxy:
    """A proxy to `port`; it does as it is set at the moment, to all its connections."""

    port: int
    chance: random.Random
    # Each piece is late by so much, and lost with this probability.
    delay_s: float = 0.0
    loss: float = 0.0
    # Counts: bytes that were late or kept back, connections that were cut.
    late_bytes: int = attrs.field(default=0, init=False)
    cuts: int = attrs.field(default=0, init=False)
    _open: set[trio.SocketStream] = attrs.field(factory=set, init=False)
    _passing: trio.Event = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._passing = trio.Event()
        self._passing.set()

    async def run(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; starts with its port."""
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._handle, listeners)

    def silence(self) -> None:
        """Pass nothing on until `pass_on`."""
        self._passing = trio.Event()

    def pass_on(self) -> None:
        """Be a good network again."""
        self.delay_s = self.loss = 0.0
        self._passing.set()

    def cut(self) -> None:
        """Reset both ends of every connection."""
        self.cuts += len(self._open) // 2
        for stream in self._open:
            reset(stream)
        self._open.clear()
        self.pass_on()

    async def _handle(self, client: trio.SocketStream) -> None:
        with contextlib.suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            async with client, await trio.open_tcp_stream(HOST, self.port) as server:
                self._open |= {client, server}
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._pump, client, server)
                        nursery.start_soon(self._pump, server, client)
                finally:
                    self._open -= {client, server}

    async def _pump(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(CHUNK_BYTES):
                await self._spoil(len(data))
                await target.send_all(data)
            await target.send_eof()

    async def _spoil(self, size: int) -> None:
        late_s, again_s = self.delay_s, RETRANSMIT_S
        for _ in range(RETRANSMITS_MAX):
            if self.chance.random() >= self.loss:
                break
            late_s, again_s = late_s + again_s, 2 * again_s
        if late_s or not self._passing.is_set():
            self.late_bytes += size
        await trio.sleep(late_s)
        await self._passing.wait()
