"""View of a host for its head: events, figures, and while it has viewers what its processes do.

The host watches its own processes as a root does, and forwards what they say: one message at a
time, the next when the head has taken it, so that no viewer is in the way of a beat. What waits is
bounded; what was dropped is counted, and said again whole.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import attrs
import trio

from ...nurseries.processes.usage import resident_bytes
from ...nurseries.processes.watched import Watch
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import open_service
from ..event_lines import sentence
from ..events import ChildFailed, ChildGone, ChildHung, ChildReady, RunEvent
from ..fleet.process_supervisor import ProcessSupervisor
from ..fleet.server_rows import ServerRows
from ..fleet.server_watch import ServerWatch, mark_of
from .host_messages import HostEvent, HostFigures, HostNews

# Events that wait for the link.
EVENTS_MAX = 64
# Characters of a message: at 1 Mbit/s a beat waits for a quarter of a second behind it.
MESSAGE_CHARACTERS_MAX = 2**15


def messages_of(texts: Iterable[str]) -> Iterator[HostNews]:
    """Texts in their order, in messages of a bounded size; a larger text has one of its own."""
    together, size = list[str](), 0
    for text in texts:
        if together and size + len(text) > MESSAGE_CHARACTERS_MAX:
            yield HostNews(together)
            together, size = [], 0
        together.append(text)
        size += len(text)
    if together:
        yield HostNews(together)


@attrs.define(eq=False)
class HostView:
    """View of the host of this fleet. `send` returns whether the link is up."""

    name: str
    fleet: ProcessSupervisor
    send: Callable[[object], bool]
    watch: ServerWatch = attrs.field(init=False)
    # Events and texts that did not reach the head.
    dropped: int = attrs.field(default=0, init=False)
    _events: deque[HostEvent] = attrs.field(factory=lambda: deque(maxlen=EVENTS_MAX), init=False)
    # The head's latest order, and what is done by it.
    _is_wanted: bool = attrs.field(default=False, init=False)
    _ordered: Doorbell = attrs.field(factory=Doorbell, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _taken: Doorbell = attrs.field(factory=Doorbell, init=False)

    def __attrs_post_init__(self) -> None:
        self.watch = ServerWatch({}, ServerRows((self.fleet,), dict, name=self.name))

    # ---- always

    def handle_event(self, event: RunEvent) -> None:
        """Something happened here; the head hears of what people are told."""
        self.watch.handle_event(event)
        if not isinstance(event, ChildReady | ChildGone | ChildHung | ChildFailed):
            return
        mark = mark_of(event)
        assert mark is not None, "each has one"
        self.dropped += len(self._events) == EVENTS_MAX
        self._events.append(
            HostEvent(
                sentence(event),
                is_warning=not isinstance(event, ChildReady),
                place=mark["place"],
                epoch=mark["epoch"],
                kind=mark["kind"],
                cause=mark["text"],
            )
        )
        self.tell_events()

    def tell_events(self) -> None:
        """Tell the head what it has not got yet, if it can be reached."""
        while self._events and self.send(self._events[0]):
            self._events.popleft()

    def figures(self, round_trip_s: float) -> HostFigures:
        """Figures of this moment."""
        return HostFigures(
            process_id=os.getpid(),
            rss_bytes=resident_bytes(),
            cpu_s=time.process_time(),
            round_trip_s=round_trip_s,
            dropped=self.dropped,
        )

    # ---- while somebody views

    def handle_order(self, order: Watch) -> None:
        """The head's order; the latest wins, and begins anew."""
        self._is_wanted = order.number > 0
        self._scope.cancel("the head has ordered otherwise")
        self._ordered.ring()

    def handle_taken(self) -> None:
        """The head has taken a message."""
        self._taken.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `view`; never returns unless cancelled."""
        async with open_service(self.watch.run, name="watch"):
            task_status.started()
            while True:
                with waiting_for("a viewer"):
                    await self._ordered.wait()
                self._ordered.clear()
                with trio.CancelScope() as self._scope:
                    if self._is_wanted:
                        await self._forward()

    async def _forward(self) -> None:
        """Forward news until the next order."""
        with self.watch.view() as queue:
            while True:
                news = await queue.take()
                for message in messages_of(news.texts):
                    self._taken.clear()
                    if not self.send(message):
                        self.dropped += len(message.texts)
                    # Without a link the next order comes with the next one.
                    with waiting_for("the head to take it"):
                        await self._taken.wait()
                self.dropped += queue.dropped
                queue.dropped = 0
