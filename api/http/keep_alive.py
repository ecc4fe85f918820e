"""Keep-alive comments of event streams: a proxy must not take a silent stream for a dead one.

One task looks at all streams of a frontend, twice in each period, and wakes the writers of those
that have sent nothing since it looked last; each writes its comment itself, as one of its events.
So a token costs nothing, where a time limit around each wait would cost as much as all else there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.parking import Doorbell
from .connection import HttpConnection

# Clients ignore it, also those that read block by block.
COMMENT = b": keep-alive\n\n"
# Comment behind an event with an id: OpenAI's client for Python takes the empty line for the end of
# another event, one without data, which it fails to parse.
COMMENT_LINE = b": keep-alive\n"


@attrs.define(eq=False)
class _Watched:
    """Stream with its state at the last look, replaced whenever it sends."""

    wake: Callable[[], None]
    state: object = None


@attrs.define(eq=False)
class KeepAlive:
    """The event streams of a frontend that are open; with a period of 0 none is watched."""

    period_s: float
    _streams: dict[HttpConnection, _Watched] = attrs.field(factory=dict, init=False)
    _begun: Doorbell = attrs.field(factory=Doorbell, init=False)

    @contextmanager
    def watching(self, connection: HttpConnection, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` in this block when a comment is due, which `send_due` then sends."""
        if not self.period_s:
            yield
            return
        self._streams[connection] = _Watched(wake)
        self._begun.ring()
        try:
            yield
        finally:
            del self._streams[connection]

    async def send_due(self, connection: HttpConnection) -> None:
        """Write a comment if one is due; a successor goes on as from the event before it."""
        if connection.is_silent:
            connection.is_silent = False
            position = connection.state.position
            comment = COMMENT if position is None else COMMENT_LINE
            await connection.send_events(comment, position)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `keep-alive`; never returns unless cancelled. It sleeps when idle."""
        task_status.started()
        while True:
            if not self._streams:
                with waiting_for("event streams"):
                    await self._begun.wait()
            with waiting_for("the time to look for silent streams"):
                await trio.sleep(self.period_s / 2)
            for connection, watched in self._streams.items():
                if watched.state is connection.state:
                    connection.is_silent = True
                    watched.wake()
                watched.state = connection.state
