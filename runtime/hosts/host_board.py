"""Board of a head: what viewers and monitors are shown of its hosts.

Sans-IO: watches, figures and news of hosts, and the time, in; rows, texts and reports out. What a
host says for viewers is of its own places alone, and by its own clock, whose distance to the head's
is that of the quickest news.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import msgspec

from ...nurseries.processes.watched import Row
from ...nurseries.tasks.task_rows import TaskRow
from ..control.calls import EngineState, Signal
from ..messages import HostReport
from .host_directory import HostDirectory
from .host_messages import HostFigures
from .lease import HostState, HostWatch

# Hosts that are remembered as lost; names of pods are new each time. Pulled out of the air.
LOST_SHOWN_MAX = 64
# Until a host has said any; one of the version before says none.
NO_FIGURES = HostFigures(process_id=0, rss_bytes=0, cpu_s=0.0)


@attrs.frozen
class Change:
    """What of a `Watched` is passed on; all else is the head's to say."""

    t: int
    processes: list[dict[str, Any]] = attrs.field(factory=list)
    gone: list[str] = attrs.field(factory=list)
    steps: list[dict[str, Any]] = attrs.field(factory=list)


@attrs.define(eq=False)
class HostOnBoard:
    """A host that is here."""

    name: str
    ranks: range
    watch: HostWatch
    figures: HostFigures = NO_FIGURES
    # Places that viewers know of it, bounded by its processes.
    places: set[str] = attrs.field(factory=set)
    # The head's clock minus the host's, in milliseconds, by the news that was least late.
    ahead_ms: float = math.inf
    # Its state, and since when.
    said: tuple[HostState | None, int] = (None, 0)

    @property
    def place(self) -> str:
        """Name of its own row."""
        return f"host {self.name}"

    def is_own(self, row: dict[str, Any]) -> bool:
        """Whether a row is of a place on this host."""
        words = str(row.get("place")).split()
        if words[:2] == self.place.split():
            return True
        return words[:1] == ["engine"] and words[1:2] in ([str(rank)] for rank in self.ranks)

    def read(self, text: str, now_ms: int) -> str:
        """Return what viewers get of a text, by the head's clock; "" if that is nothing."""
        try:
            return self._read(msgspec.json.decode(text, type=Change), now_ms)
        except msgspec.MsgspecError:  # of another version, perhaps: there is less to see
            return ""

    def _read(self, change: Change, now_ms: int) -> str:
        self.ahead_ms = min(self.ahead_ms, now_ms - change.t)
        rows = [self._by_our_clock(row) for row in change.processes if self.is_own(row)]
        gone = [place for place in change.gone if place in self.places]
        steps = [self._by_our_clock(each) for each in change.steps if self.is_own(each)]
        self.places.update(row["place"] for row in rows)
        self.places.difference_update(gone)
        news = {"processes": rows, "gone": gone, "steps": steps}
        if not any(news.values()):
            return ""
        found = {"t": now_ms, **{name: each for name, each in news.items() if each}}
        return msgspec.json.encode(found).decode()

    def _by_our_clock(self, row: dict[str, Any]) -> dict[str, Any]:
        for name in ("t", "since"):
            if name in row:
                row[name] = self._ours(row[name])
        if "tasks" in row:
            row["tasks"] = [
                (*task, self._ours(since), count, self._ours(end))
                for *task, since, count, end in msgspec.convert(row["tasks"], list[TaskRow])
            ]
        return row

    def _ours(self, time: object) -> object:
        """Time by the head's clock; reasons and what is not known stay as they are."""
        return round(time + self.ahead_ms) if isinstance(time, int) else time

    def since_ms(self, now: float, now_ms: int) -> int:
        """Since when it is in its state; a silence began before it was noticed."""
        state, since = self.watch.state, self.watch.silent_since
        if self.said[0] is not state:
            age_s = 0.0 if since is None else now - since
            self.said = state, round(now_ms - 1000 * age_s)
        return self.said[1]


@attrs.define(eq=False)
class HostBoard:
    """Board of the hosts that this directory lists."""

    directory: HostDirectory
    _hosts: dict[str, HostOnBoard] = attrs.field(factory=dict, init=False)
    # {host: how often it was lost}, the latest last.
    _times_lost: dict[str, int] = attrs.field(factory=dict, init=False)

    def handle_joined(self, name: str, ranks: range, watch: HostWatch) -> None:
        """A host is here."""
        self._hosts[name] = HostOnBoard(name, ranks, watch)

    def handle_figures(self, name: str, figures: HostFigures) -> None:
        """A host says its figures."""
        self._hosts[name].figures = figures

    def handle_watch(self) -> None:
        """Everything is ordered again: clocks may have been set since."""
        for host in self._hosts.values():
            host.ahead_ms = math.inf

    def handle_news(self, name: str, texts: Iterable[str], now_ms: int) -> list[str]:
        """Return what viewers get of a host's texts."""
        host = self._hosts[name]
        return [news for text in texts if (news := host.read(text, now_ms))]

    def handle_over(self, name: str, now_ms: int, *, is_lost: bool) -> str:
        """A host is lost, or has left; returns what viewers get."""
        host = self._hosts.pop(name)
        if is_lost:
            self._times_lost[name] = self._times_lost.pop(name, 0) + 1
            for oldest in list(self._times_lost)[:-LOST_SHOWN_MAX]:
                del self._times_lost[oldest]
        gone = {"t": now_ms, "gone": sorted(host.places)}
        return msgspec.json.encode(gone).decode()

    def rows(self, now: float, now_ms: int) -> Iterator[Row]:
        """Rows of hosts; each says the CPU, memory and tasks of its own."""
        for name, host in sorted(self._hosts.items()):
            facts: dict[str, object] = {
                "ranks": ", ".join(map(str, host.ranks)),
                "round trip": f"{1000 * host.figures.round_trip_s:.1f} ms",
                "lease left": f"{host.watch.lease_left_s(now):.1f} s",
            }
            yield {
                "place": host.place,
                "parent": "root",
                "role": "host",
                "pid": host.figures.process_id,
                "epoch": 0,
                "state": host.watch.state.value,
                "since": host.since_ms(now, now_ms),
                "reason": "",
                "restarts": 0,
                "facts": facts
                | {
                    "beats lost": host.watch.beats_lost,
                    "times lost": self._times_lost.get(name, 0),
                },
                # A host that is stopped cannot be told to go on.
                "can": [Signal.KILL.value],
            }

    def reports(self, now: float) -> list[HostReport]:
        """Reports of all hosts, and of the last that were lost."""
        found = [self._report(host, now) for _, host in sorted(self._hosts.items())]
        return found + [
            HostReport(name=name, state=HostState.LOST.value, times_lost=count)
            for name, count in sorted(self._times_lost.items())
            if name not in self._hosts
        ]

    def _report(self, host: HostOnBoard, now: float) -> HostReport:
        members = self.directory.members(host.name)
        ready = [each for each in members if each.state is EngineState.READY]
        figures = host.figures
        return HostReport(
            name=host.name,
            state=host.watch.state.value,
            engines_ready=sum(not (each.silent or each.draining) for each in ready),
            rss_bytes=figures.rss_bytes,
            cpu_s=figures.cpu_s,
            round_trip_s=figures.round_trip_s,
            lease_left_s=host.watch.lease_left_s(now),
            beats_lost=host.watch.beats_lost,
            dropped=figures.dropped,
            times_lost=self._times_lost.get(host.name, 0),
        )
