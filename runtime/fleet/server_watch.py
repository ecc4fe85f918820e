"""Live view of a server, or of a host: what its processes say while it is watched, as one stream.

Each process says what changed in it, twice a second; the root adds what only it knows (who is
there, since when, their CPU and memory, deaths) and passes all of it on as it came, unread. While
no one watches nothing is said, and the root only remembers the latest deaths and restarts.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import msgspec
import trio

from ...nurseries.processes.watched import (
    BUCKET_S,
    PERIOD_S,
    RowChanges,
    Watch,
    now_ms,
)
from ...nurseries.tasks.background import BackgroundTask, waiting_for
from ...nurseries.tasks.parking import Doorbell
from ..events import (
    ChildFailed,
    ChildGone,
    ChildHung,
    ChildReady,
    ChildStarting,
    ChildStopped,
    HostHeard,
    HostJoined,
    HostLost,
    HostSaid,
    HostSilent,
    RunEvent,
)
from ..launch.child import Child
from ..launch.child_control import SEND_TIMEOUT_S
from ..messages import ServerNews, WatchServer
from .news import NewsQueue
from .process_supervisor import ProcessSupervisor
from .server_rows import ServerRows

# Time for processes, which all look at the same moment, to say what they saw.
ANSWER_S = 0.06
# Marks that a viewer sees of the time before it came.
MARKS_MAX = 64


def mark_of(event: RunEvent) -> dict[str, Any] | None:
    """Mark of an event for viewers, its time not included; None if it is nothing for them."""
    match event:
        case ChildStarting():
            kind, text = "starting", ""
        case ChildReady():
            kind, text = "ready", f"after {event.boot_s:.1f} s"
        case ChildHung():
            kind, text = "hung", event.cause
        case ChildGone():
            kind, text = "died", event.cause
        case ChildStopped():
            kind, text = "ended", ""
        case ChildFailed():
            return {"place": event.child, "epoch": 0, "kind": "failed", "text": event.cause}
        case HostSaid():
            return event.mark
        case _:
            return _mark_of_host(event)
    return {"place": event.child, "epoch": event.epoch, "kind": kind, "text": text}


def _mark_of_host(event: RunEvent) -> dict[str, Any] | None:
    match event:
        case HostJoined(ranks=ranks):
            kind, text = "joined", f"with {', '.join(f'engine {rank}' for rank in ranks)}"
        case HostSilent():
            kind, text = "silent", ""
        case HostHeard():
            kind, text = "heard", "again"
        case HostLost(cause=cause):
            kind, text = ("left", "") if cause == "left" else ("lost", cause.removeprefix("lost: "))
        case _:
            return None
    return {"place": f"host {event.host}", "epoch": 0, "kind": kind, "text": text}


@attrs.define(eq=False)
class ServerWatch:
    """Watch of a root, or host. `facts` is what the server says of itself."""

    facts: dict[str, str]
    rows: ServerRows
    # Passes orders on to other machines: to say everything, under another number, or nothing (0).
    on_order: Callable[[int], None] = lambda number: None
    _views: set[NewsQueue] = attrs.field(factory=set, init=False)
    # Number of the latest `Watch`; grows whenever everything is to be said again.
    _number: int = attrs.field(default=0, init=False)
    _marks: deque[dict[str, Any]] = attrs.field(factory=lambda: deque(maxlen=MARKS_MAX), init=False)
    # News that no viewer has yet: what processes said, and marks.
    _said: list[str] = attrs.field(factory=list, init=False)
    _new_marks: list[dict[str, Any]] = attrs.field(factory=list, init=False)
    _changes: RowChanges = attrs.field(factory=RowChanges, init=False)
    # There is news that does not wait.
    _is_due: Doorbell = attrs.field(factory=Doorbell, init=False)
    _is_whole_wanted: bool = attrs.field(default=False, init=False)

    # ---- what there is to see

    def handle_event(self, event: RunEvent) -> None:
        """A process began, died, …; viewers hear of it at once."""
        mark = mark_of(event)
        if mark is None:
            return
        place = mark["place"]
        self.rows.handle_event(event)
        if isinstance(event, ChildReady) and self._views:
            self._order_one(place)
        mark = {"t": now_ms(), **mark}
        self._marks.append(mark)
        if self._views:
            self._new_marks.append(mark)
            self._is_due.ring()

    def handle_said(self, text: str) -> None:
        """A process said what changed in it: viewers have it with the next look."""
        if self._views:
            self._said.append(text)

    # ---- who watches

    @property
    def is_watched(self) -> bool:
        """Whether there are viewers."""
        return bool(self._views)

    @contextmanager
    def view(self) -> Iterator[NewsQueue]:
        """Watch during the block; the first news is a snapshot."""
        queue = NewsQueue(self._want_all)
        self._views.add(queue)
        try:
            yield queue
        finally:
            self._views.discard(queue)
            if not self._views:
                self._order(0)

    def _want_all(self) -> None:
        self._is_whole_wanted = True
        self._is_due.ring()

    def _order(self, number: int) -> None:
        for fleet in self.rows.fleets:
            fleet.publish(Watch(number))
        self.on_order(number)

    def _order_one(self, place: str) -> None:
        for fleet in self.rows.fleets:
            for rank, child in fleet.ready.items():
                if f"{fleet.role} {rank}" == place:
                    child.control.publish(Watch(self._number))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `watch`; never returns unless cancelled."""
        self.rows.begin()
        task_status.started()
        due_s = trio.current_time()
        while True:
            with (
                trio.move_on_at(due_s if self._views else math.inf),
                waiting_for("the next look" if self._views else "a viewer"),
            ):
                await self._is_due.wait()
            if self._views:
                now = trio.current_time()
                if self._is_whole_wanted:
                    due_s = now + ANSWER_S
                elif now >= due_s:
                    due_s = max(due_s, now - PERIOD_S) + PERIOD_S
                self._tell()

    def _tell(self) -> None:
        is_whole, self._is_whole_wanted = self._is_whole_wanted, False
        news: dict[str, Any] = {"t": now_ms()}
        marks, self._new_marks = self._new_marks, []
        if is_whole:
            self._changes.forget()
            marks = list(self._marks)
            news |= self.facts
            news |= {"period_ms": round(PERIOD_S * 1000), "bucket_ms": round(BUCKET_S * 1000)}
        news |= self._changes.look(self.rows.look(trio.current_time()))
        if marks:
            news["marks"] = marks
        said, self._said = self._said, []
        if is_whole or len(news) > 1:
            said.insert(0, msgspec.json.encode(news).decode())
        for view in self._views:
            for place, text in enumerate(said):
                view.put(text, is_whole=is_whole and not place)
        if is_whole:  # behind ours: what they say now is to be merged into it
            self._number += 1
            self._order(self._number)


@attrs.define(eq=False)
class FrontendViews:
    """The view of each frontend that has viewers of its own: one, however many these are."""

    watch: ServerWatch
    fleet: ProcessSupervisor
    # By rank, the task that sends the news, or sent them to the life before: one each.
    _views: dict[int, BackgroundTask] = attrs.field(factory=dict, init=False)

    def handle_order(self, rank: int, order: WatchServer) -> None:
        """A frontend wants everything, or nothing any more."""
        child = self.fleet.ready.get(rank)
        if child is None:
            return
        if rank in self._views:
            self._views.pop(rank).cancel("this frontend begins anew, or has no viewers any more")
        if order.number:
            name = f"view-frontend-{rank}"
            self._views[rank] = self.fleet.start_task(self._send_news, child, name=name)

    async def _send_news(self, child: Child) -> None:
        """Send news until there is another order, or the child has died."""
        with suppress(trio.BrokenResourceError), self.watch.view() as queue:
            while True:
                news = await queue.take()
                try:
                    await child.control.send(ServerNews(news.texts, news.is_whole), SEND_TIMEOUT_S)
                except trio.TooSlowError:
                    queue.begin_anew()
