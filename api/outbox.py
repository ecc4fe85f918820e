"""What waits for the writer of one socket: lanes that have something to say, and notices.

Sans-IO: lanes that became ready in, encoded messages out. A lane is not a queue of events but a
source that is asked when the writer is ready, and then says everything that has come meanwhile in
one merged delta: however far the writer is behind, a lane costs nothing here. A source may say that
it can wait for more; then its lane is due at the end of a window. Must not know sockets, tasks or
where events come from.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import attrs

from .event_encoding import encode_part
from .limits import SocketLimits
from .merge_window import MergeWindows
from .responses import Event, Part

# Due before any time.
AT_ONCE = -math.inf


class Source(Protocol):
    """Whatever has events for a lane."""

    @property
    def is_ready(self) -> bool:
        """Whether `take` has something now."""

    @property
    def merge_s(self) -> float:
        """How long that may wait for more; 0: not at all."""

    def take(self, characters_max: int) -> Sequence[Part]:
        """The next events, with not much more characters than that."""


@attrs.define(eq=False)
class OneEvent:
    """A source of a single event."""

    event: Event | None
    merge_s: float = attrs.field(default=0.0, init=False)

    @property
    def is_ready(self) -> bool:
        """Whether it has not been taken."""
        return self.event is not None

    def take(self, characters_max: int) -> list[Event]:
        """The event, once."""
        event, self.event = self.event, None
        return [] if event is None else [event]


@attrs.define(eq=False)
class Outbox:
    """What waits, by lane. Lanes take turns: one that was taken from queues up again."""

    limits: SocketLimits
    windows: MergeWindows = attrs.field(factory=lambda: MergeWindows(0.0))

    # {lane: who has events for it}, longest waiting lane first; bounded by the active lanes.
    _ready: dict[str | None, Source] = attrs.field(factory=dict, init=False)
    # {lane: when it is due, and who has events for it}; none of these is in `_ready`.
    _later: dict[str | None, tuple[float, Source]] = attrs.field(factory=dict, init=False)
    # Errors and notices that belong to no response; bounded by waiting_errors_max.
    _notices: deque[Event] = attrs.field(factory=deque, init=False)

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._ready or self._later or self._notices)

    def mark_ready(self, stream_id: str | None, source: Source) -> None:
        """This lane has events, from this source. Harmless when it is known already."""
        if self._later:
            self._later.pop(stream_id, None)
        self._ready[stream_id] = source

    def mark_later(self, stream_id: str | None, source: Source, now: float) -> float:
        """The same of events that wait for more; when they are due. Harmless if known."""
        if stream_id in self._ready:
            return AT_ONCE
        if stream_id not in self._later:
            self._later[stream_id] = (self.windows.end(source.merge_s, now), source)
        return self._later[stream_id][0]

    def next_deadline(self) -> float:
        """When `take` has something, if not now."""
        return min((due_s for due_s, _ in self._later.values()), default=math.inf)

    def drop(self, stream_id: str | None) -> None:
        """This lane has nothing to say any more."""
        self._ready.pop(stream_id, None)
        self._later.pop(stream_id, None)

    def put_notice(self, event: Event) -> bool:
        """Add an error or notice; False when too many wait: the client sends but does not read."""
        if len(self._notices) >= self.limits.waiting_errors_max:
            return False
        self._notices.append(event)
        return True

    def is_waiting(self, stream_id: str | None) -> bool:
        """Whether events of this lane have not been taken yet."""
        return stream_id in self._ready or stream_id in self._later

    def take(self, now: float) -> list[bytes]:
        """Encode what is due, up to the limit of one burst (exceeded by at most one take)."""
        for lane in [lane for lane, (due_s, _) in self._later.items() if due_s <= now]:
            self._ready[lane] = self._later.pop(lane)[1]
        taken: list[bytes] = []
        left = self.limits.burst_bytes_max
        while left > 0 and self._notices:
            taken.append(encode_part(self._notices.popleft()))
            left -= len(taken[-1])
        while left > 0 and self._ready:
            stream_id, source = next(iter(self._ready.items()))
            del self._ready[stream_id]
            for part in source.take(min(left, self.limits.lane_buffer_bytes_max)):
                taken.append(encode_part(part, stream_id))
                left -= len(taken[-1])
            if source.is_ready:
                self._ready[stream_id] = source
        return taken

    def check_invariants(self) -> None:
        """For property tests: the bounds hold, and who is here has something."""
        assert len(self._notices) <= self.limits.waiting_errors_max
        assert all(source.is_ready for source in self._ready.values())
        assert all(source.is_ready for _, source in self._later.values())
        assert not self._ready.keys() & self._later.keys()
