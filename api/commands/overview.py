"""A viewer's picture of a server: its processes as lines, in order, and what happened to them.

Sans-IO: news in, lines out. Changes are merged as the feed's protocol says: rows by place.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import attrs
import msgspec

from ...nurseries.plain_text import for_terminal
from ...runtime.control.calls import News

ORDERS = ("place", "cpu", "memory")
MARKS_KEPT = 100
# Rates are of so long.
RATE_MS = 2000


@attrs.frozen
class ProcessLine:
    """Line of a process."""

    place: str
    depth: int
    pid: int
    state: str
    cpu: float
    memory: int
    does: str
    can: tuple[str, ...]
    # State of a host as it was, for one of which nothing is heard.
    is_struck: bool = False


@attrs.define(eq=False)
class Rate:
    """How much a second, of counts with the time of their last bucket."""

    # No older than `RATE_MS`; bounded by how often anything is said.
    _counts: deque[tuple[int, int]] = attrs.field(factory=deque, init=False)

    def handle(self, t: int, count: int) -> None:
        """Count so many more at this time."""
        self._counts.append((t, count))
        self._forget(t)

    def at(self, t: int) -> float:
        """Within the last `RATE_MS` before this time."""
        self._forget(t)
        return sum(count for _, count in self._counts) * 1000 / RATE_MS

    def _forget(self, t: int) -> None:
        while self._counts and self._counts[0][0] <= t - RATE_MS:
            self._counts.popleft()


@attrs.define(eq=False)
class Overview:
    """Merged news."""

    order: str = ORDERS[0]
    # The latest, with their Unix time.
    marks: deque[tuple[float, str]] = attrs.field(
        factory=lambda: deque(maxlen=MARKS_KEPT), init=False
    )
    _about: dict[str, str] = attrs.field(factory=dict, init=False)
    _now: int = attrs.field(default=0, init=False)
    _rows: dict[str, dict[str, Any]] = attrs.field(factory=dict, init=False)
    _tokens: Rate = attrs.field(factory=Rate, init=False)
    _steps: dict[str, Rate] = attrs.field(factory=dict, init=False)

    def handle_news(self, news: News) -> None:
        """Merge a snapshot or changes."""
        for place, text in enumerate(news.texts):
            # In JSON control characters are spelled out, and would be obeyed once they are read.
            change = _plain(msgspec.json.decode(text))
            self._merge(change, is_whole=news.is_whole and not place)

    def _merge(self, change: dict[str, Any], *, is_whole: bool) -> None:
        self._now = change["t"]
        if is_whole:
            self._rows.clear()
            self.marks.clear()
            self._about = {name: str(change.get(name, "")) for name in ("run", "model")}
        for row in change.get("processes", ()):
            self._rows.setdefault(row["place"], {}).update(row)
        for place in change.get("gone", ()):
            self._rows.pop(place, None)
        for stream in change.get("streams", ()):
            self._tokens.handle(stream.get("t", self._now), sum(stream.get("counts", ())))
        for steps in change.get("steps", ()):
            rate = self._steps.setdefault(steps["place"], Rate())
            rate.handle(steps["t"], sum(steps["counts"]))
        for mark in change.get("marks", ()):
            text = f"{mark['place']}: {mark['kind']} {mark['text']}".rstrip()
            self.marks.append((mark["t"] / 1000, text))

    def choose_next_order(self) -> None:
        """By place, by CPU, by memory, and again."""
        self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]

    def head(self) -> str:
        """The line above all."""
        rate = f"{self._tokens.at(self._now):.0f} tokens/s"
        about = f"{self._about.get('model', '')}  run {self._about.get('run', '')}"
        return f"{about}  {rate}  by {self.order}"

    def line(self, place: str) -> ProcessLine | None:
        """The line of one place."""
        return next((line for line in self.lines() if line.place == place), None)

    def lines(self) -> list[ProcessLine]:
        """Lines of all processes: each above its own, or the busiest or largest first."""
        if self.order == "place":
            return list(self._below(None, 0))
        rows = [row for row in self._rows.values() if "pid" in row]
        rows.sort(key=lambda row: (-row.get(self.order, 0), row["place"]))
        return [self._line(row, 0) for row in rows]

    def _below(self, parent: str | None, depth: int) -> Iterator[ProcessLine]:
        for row in self._rows.values():
            if row.get("parent", "") == parent:
                yield self._line(row, depth)
                yield from self._below(row["place"], depth + 1)

    def _line(self, row: dict[str, Any], depth: int) -> ProcessLine:
        is_struck = self._is_on_silent_host(row)
        return ProcessLine(
            row["place"],
            depth,
            row["pid"],
            "silent" if is_struck else row.get("state", ""),
            row.get("cpu", 0.0),
            row.get("memory", 0),
            self._does(row),
            tuple(row.get("can", ())),
            is_struck,
        )

    def _is_on_silent_host(self, row: dict[str, Any] | None) -> bool:
        while row is not None and row.get("role") != "host":
            row = self._rows.get(row.get("parent") or "")
        return row is not None and row.get("state") == "silent"

    def _does(self, row: dict[str, Any]) -> str:
        """Activity of a process, in words."""
        facts = row.get("facts", {})
        if row.get("role") == "host" and row.get("state") == "silent":
            return f"silent for {max(0, self._now - row['since']) / 1000:.1f} s"
        if row.get("reason"):
            return str(row["reason"])
        if "kv_blocks" in facts:
            rate = self._steps.setdefault(row["place"], Rate()).at(self._now)
            used = facts["kv_blocks"] - facts["kv_blocks_free"]
            return (
                f"{facts['running']} running, {facts['waiting']} waiting, {rate:.0f} steps/s,"
                f" {used} of {facts['kv_blocks']} KV blocks"
            )
        return ", ".join(f"{name} {value}" for name, value in facts.items() if value != 0)


def _plain(value: Any) -> Any:
    """The same with U+FFFD in place of each control character in its texts."""
    match value:
        case str():
            return for_terminal(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case _:
            return value
