"""Viewers of this frontend: who reads the live view of the server, and what they have not read.

The root says what changes while there are viewers here. However many there are, it is said once.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from ..nurseries.tasks.background import waiting_for
from ..nurseries.tasks.parking import Doorbell
from ..runtime.fleet.news import NewsQueue
from ..runtime.messages import ServerNews, WatchServer
from .errors import RETRY_AFTER_ENGINE_S, SERVER_ERROR, ApiError

# Limit of one frontend; pulled out of the air: each may have a megabyte that waits.
VIEWERS_MAX = 32


@attrs.define(eq=False)
class Viewers:
    """Viewers of a frontend process; `send` goes to the root, None where there is none."""

    send: Callable[[WatchServer], Awaitable[None]] | None = None
    _queues: set[NewsQueue] = attrs.field(factory=set, init=False)
    # How often everything was asked for; the number of the order.
    _number: int = attrs.field(default=0, init=False)
    _changed: Doorbell = attrs.field(factory=Doorbell, init=False)

    @contextmanager
    def view(self) -> Iterator[NewsQueue]:
        """Watch during the block; the first news is a snapshot. Raises `ApiError` 503."""
        if self.send is None:
            raise _refused("There is no root to watch", "root_unreachable")
        if len(self._queues) >= VIEWERS_MAX:
            message = f"This frontend has {VIEWERS_MAX} viewers; another may have room"
            raise _refused(message, "too_many_viewers")
        queue = NewsQueue(self._want_all)
        self._queues.add(queue)
        try:
            yield queue
        finally:
            self._queues.discard(queue)
            self._changed.ring()

    def handle_news(self, news: ServerNews) -> None:
        """The root said what changed."""
        for place, text in enumerate(news.texts):
            for queue in self._queues:
                queue.put(text, is_whole=news.is_whole and not place)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `viewers`: orders from the root what they want. Raises as `send`."""
        task_status.started()
        ordered = 0
        while True:
            with waiting_for("viewers"):
                await self._changed.wait()
            number = self._number if self._queues else 0
            if number != ordered and self.send is not None:
                await self.send(WatchServer(number))
                ordered = number

    def _want_all(self) -> None:
        self._number += 1
        self._changed.ring()


def _refused(message: str, code: str) -> ApiError:
    return ApiError(503, message, code, SERVER_ERROR, retry_after_s=RETRY_AFTER_ENGINE_S)
