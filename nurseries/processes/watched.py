"""Changes that a process reports about itself while it is watched, twice a second.

The watcher sends a `Watch`; until another says that it is over, the process sends `Watched`. While
it is not watched it does nothing. A `Watch` with a new number has it say everything again: so
viewers come at any time, and nothing is kept for them but what was said last.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Protocol

import attrs
import msgspec
import trio

from ..tasks.background import waiting_for
from ..tasks.parking import Doorbell
from ..tasks.task_rows import unix_s
from ..tasks.task_tree import ProcessTree
from .usage import Row as Row

PERIOD_S = 0.5
# Counts of a timeline are so fine while there is something to count. What costs is to wake up: 0.2
# ms for a process that sleeps otherwise.
BUCKET_S = 0.25
# Signals that the root sends to a process on demand.
SIGNALS = ["kill", "stop", "continue"]
_ABSENT = object()


@attrs.frozen
class Watch:
    """Say what you do; everything, when the number is another. 0: say no more."""

    number: int


@attrs.frozen
class Watched:
    """Changes as JSON text: an object with `processes`, `gone` and more."""

    text: str


def now_ms() -> int:
    """Unix milliseconds."""
    return round(unix_s() * 1000)


def spare_rows(trees: Iterable[ProcessTree], owner: str = "") -> Iterator[Row]:
    """Rows of spare processes; of the root's own without `owner`, which alone take signals."""
    for tree in trees:
        place = f"{owner} {tree.name}".strip()
        row = {"role": "spare", "state": "ready", "tasks": []}
        facts = {name: value for name, value in tree.facts.items() if name != "since"}
        links = {"place": place, "parent": owner or "root", "pid": tree.pid}
        yield links | row | {"facts": facts, "can": [] if owner else SIGNALS}
        for child in tree.processes:
            links = {"place": f"{place} {child.name}", "parent": place, "pid": child.pid}
            yield links | row | {"facts": {}, "can": []}


@attrs.define
class RowChanges:
    """Differences between two looks at a table of processes. Sans-IO.

    A row's `place` is its name, its `pid` says which process that is.
    """

    _known: dict[str, Row] = attrs.field(factory=dict, init=False)

    def forget(self) -> None:
        """Have every row count as new next time."""
        self._known = {}

    def look(self, rows: Iterable[Row]) -> dict[str, Any]:
        """`processes`: rows with what is new in them, whole for a new process; `gone`: places.

        Each is left out when it is empty.
        """
        news: list[Row] = []
        now: dict[str, Row] = {}
        for row in rows:
            place = row["place"]
            now[place] = row
            before = self._known.get(place, {})
            if before.get("pid") != row["pid"]:
                before = {}
            new = {key: value for key, value in row.items() if before.get(key, _ABSENT) != value}
            if new:
                news.append({"place": place, **new})
        gone = [place for place in self._known if place not in now]
        self._known = now
        found = {"processes": news, "gone": gone}
        return {name: value for name, value in found.items() if value}


@attrs.define
class Buckets:
    """How much a number has grown in each bucket of time since they were taken."""

    last: int
    counts: list[int] = attrs.field(factory=list)

    def sample(self, total: int) -> None:
        """A bucket ends."""
        self.counts.append(total - self.last)
        self.last = total

    def take(self) -> list[int]:
        """The buckets that have ended."""
        counts, self.counts = self.counts, []
        return counts


class Watchable(Protocol):
    """Source of a process's rows and series for its watchers."""

    def begin(self) -> None:
        """Watching begins: what is counted is counted from here."""

    def sample(self) -> bool:
        """A bucket of time ends; whether anything is under way that is to be counted finely."""

    async def look(self) -> list[Row]:
        """The rows of this moment, whole."""

    def series(self, *, is_whole: bool) -> dict[str, Any]:
        """Series beside the rows: new points since the last call, or the whole."""


@attrs.define(eq=False)
class WatchedProcess:
    """Watches `source`, and sends what is new as `Watched`."""

    source: Watchable
    send: Callable[[object], Awaitable[None]]
    _number: int = attrs.field(default=0, init=False)
    _ordered: Doorbell = attrs.field(factory=Doorbell, init=False)
    # The next look is at everything, as it was ordered since the last one.
    _is_whole_due: bool = attrs.field(default=False, init=False)
    _changes: RowChanges = attrs.field(factory=RowChanges, init=False)
    # When to look next, by trio's clock: the watcher's looks follow all processes' closely.
    _due_s: float = attrs.field(default=0.0, init=False)
    _is_busy: bool = attrs.field(default=False, init=False)

    def handle_watch(self, order: Watch) -> None:
        """The watcher's order; the latest wins."""
        if not self._number:
            self.source.begin()
        self._number, self._is_whole_due = order.number, True
        self._ordered.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `watched`; never returns unless cancelled. Raises what `send` does."""
        task_status.started()
        while True:
            if not self._number:
                with waiting_for("a viewer"):
                    await self._ordered.wait()
            is_whole, self._is_whole_due = self._is_whole_due, False
            if is_whole:
                self._ordered.clear()
                self._changes.forget()
                self._due_s = trio.current_time()
            if self._number:
                await self._tell(is_whole=is_whole)
                await self._sample_one_period()

    async def _tell(self, *, is_whole: bool) -> None:
        rows = await self.source.look()
        change = self._changes.look(rows) | self.source.series(is_whole=is_whole)
        if change:
            await self.send(Watched(msgspec.json.encode({"t": now_ms(), **change}).decode()))

    async def _sample_one_period(self) -> None:
        """Sample until the next look is due, or an order comes."""
        began_s = max(self._due_s, trio.current_time() - PERIOD_S)
        self._due_s = began_s + PERIOD_S
        next_s = began_s
        while next_s < self._due_s:
            next_s += BUCKET_S if self._is_busy else PERIOD_S
            with trio.move_on_at(next_s), waiting_for("the next look"):
                await self._ordered.wait()
                return
            self._is_busy = self.source.sample()
