"""Writer task of a socket: gathers what waits in the outbox into bursts, one write for each.

`outbox` decides what is sent next; a lane that has events is marked there and goes on, or waits
until they were taken.
"""

from collections.abc import Callable

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from ...nurseries.tasks.parking import Doorbell
from ..limits import SocketLimits
from ..openai.response_events import Event
from .frames import FrameStream
from .outbox import Outbox, Source


@attrs.define(eq=False)
class SocketWriter:
    """What one open socket sends. `run` is called once."""

    socket: WebSocketConnection
    stream: FrameStream
    limits: SocketLimits

    outbox: Outbox = attrs.field(init=False)
    _bell: Doorbell = attrs.field(factory=Doorbell, init=False)
    # Those who wait for the writer to take or to finish, or for what `notify` tells.
    _progress: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _is_writing: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.outbox = Outbox(self.limits)

    def mark_ready(self, stream_id: str | None, source: Source) -> None:
        """A lane has something to send."""
        self.outbox.mark_ready(stream_id, source)
        self._bell.ring()

    def put_notice(self, event: Event) -> bool:
        """Queue an event of no response; False when too many of them are not being read."""
        if not self.outbox.put_notice(event):
            return False
        self._bell.ring()
        return True

    def notify(self) -> None:
        """Something changed that `wait_idle` asks for."""
        if self._progress:
            self._progress.unpark_all()

    async def wait_taken(self, stream_id: str | None) -> None:
        """Return when nothing of this lane waits for the writer. Cancellation loses nothing."""
        while self.outbox.is_waiting(stream_id):
            await self._progress.park()

    async def wait_idle(self, is_busy: Callable[[], bool]) -> None:
        """Return when all was written and `is_busy` says no. Cancellation loses nothing."""
        while is_busy() or self.outbox or self._is_writing:
            await self._progress.park()

    async def run(self) -> None:
        """Background task `socket-writer`: sends what waits; ends when the connection does."""
        try:
            while True:
                while texts := self.outbox.take():
                    self._is_writing = True
                    self.notify()
                    await self._write_burst(texts)
                self._is_writing = False
                self.notify()
                await self._bell.wait()
        except (ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the reader learns it from its own side and ends the socket

    async def _write_burst(self, texts: list[bytes]) -> None:
        """Raises `ConnectionClosed` once a close frame was sent, by either side's wish."""
        if self.socket.closed is not None:
            raise ConnectionClosed(self.socket.closed)
        await self.stream.send_texts(texts)
