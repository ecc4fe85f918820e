"""A frontend as those see it who watch: its tasks, and its streams in buckets of time.

Streams are sampled, so that a token costs nothing more: at the end of each bucket the tokens of the
requests in flight are counted. What begins and ends within one bucket is not seen.
"""

import os
from collections.abc import Callable
from typing import Any

import attrs
import trio

from ...nurseries.processes.watched import Buckets, Row, now_ms
from ...nurseries.tasks.task_rows import TaskRows
from .ledger import Ledger
from .ledger_entry import LedgerEntry, LedgerStatus

# Lines that a page can show. The oldest are followed, those that come when there is room too.
STREAMS_MAX = 128
# Viewers' names of a status; else its own.
WAITING = {LedgerStatus.PLACED: "waiting"}


@attrs.define(eq=False)
class _Followed:
    """A request that is followed."""

    entry: LedgerEntry
    tokens: Buckets
    start: int
    # Facts said last, beside counts.
    said: dict[str, Any] = attrs.field(factory=dict)

    def news(self, now: int, *, is_whole: bool) -> dict[str, Any]:
        """Changed facts, the id included; nothing when there are none."""
        entry, state = self.entry, self.entry.state
        facts: dict[str, Any] = {
            "start": self.start,
            "engine": None if entry.peer is None else entry.peer.rank,
            "replayed": entry.is_replayed,
            "state": WAITING.get(state.status, state.status.value),
            "tokens": len(entry.token_ids),
        }
        if state.ended:
            facts["end"] = now
        known = {} if is_whole else self.said
        news = {name: value for name, value in facts.items() if known.get(name, "") != value}
        if any(counts := self.tokens.take()):
            news |= {"t": now, "counts": counts}
        self.said = facts
        return {"id": entry.request.request_id, **news} if news else {}


@attrs.define(eq=False)
class WatchedFrontend:
    """The frontend at `place`; `facts` is what its tree says of it. See `Watchable`."""

    place: str
    ledger: Ledger
    facts: Callable[[], dict[str, int]]
    _tasks: TaskRows = attrs.field(factory=TaskRows, init=False)
    # Tokens of streams that began later are all counted.
    _begun_s: float = attrs.field(default=0.0, init=False)
    _followed: dict[LedgerEntry, _Followed] = attrs.field(factory=dict, init=False)

    def begin(self) -> None:
        """Follow from here."""
        self._followed, self._begun_s = {}, trio.current_time()
        self._follow()

    async def look(self) -> list[Row]:
        """The frontend's row; its CPU and memory are the root's to tell."""
        hidden = max(0, len(self.ledger) - len(self._followed))
        facts = self.facts() | {"streams_hidden": hidden}
        tasks = self._tasks.look()
        return [{"place": self.place, "pid": os.getpid(), "facts": facts, "tasks": tasks}]

    def sample(self) -> bool:
        """A bucket ends; whether there are streams."""
        for followed in self._followed.values():
            followed.tokens.sample(len(followed.entry.token_ids))
        if len(self.ledger) and len(self._followed) < STREAMS_MAX:
            self._follow()
        return len(self.ledger) > 0

    def _follow(self) -> None:
        """Follow requests that are not followed yet, as long as there is room."""
        now, now_s = now_ms(), trio.current_time()
        for entry in self.ledger.entries():
            if len(self._followed) >= STREAMS_MAX:
                return
            if entry not in self._followed:
                start = now - round((now_s - entry.state.created_at) * 1000)
                is_new = entry.state.is_measured and entry.state.created_at > self._begun_s
                tokens = Buckets(0 if is_new else len(entry.token_ids))
                if is_new:
                    tokens.sample(len(entry.token_ids))
                self._followed[entry] = _Followed(entry, tokens, start)

    def series(self, *, is_whole: bool) -> dict[str, Any]:
        """Changes of the streams, or all of it; those that have ended are said once."""
        now = now_ms()
        news = [each.news(now, is_whole=is_whole) for each in self._followed.values()]
        self._followed = {
            entry: each for entry, each in self._followed.items() if not entry.state.ended
        }
        streams = [{"place": self.place, **stream} for stream in news if stream]
        return {"streams": streams} if streams else {}
