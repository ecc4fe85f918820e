"""Outbox of one socket: which lanes have events for its writer, and notices.

Sans-IO: lanes that became ready in, encoded messages out. A lane is not a queue of events but a
source that is asked when the writer is ready, and then says everything that has come meanwhile in
one merged delta: however far the writer is behind, a lane costs nothing here.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import attrs

from ..limits import SocketLimits
from ..openai.response_events import Event, Part, encode_part


class Source(Protocol):
    """Events of a lane: a reader of a response, or one event."""

    @property
    def is_ready(self) -> bool:
        """Whether `take` has something now."""

    def take(self, characters_max: int) -> Sequence[Part]:
        """The next events, with not much more characters than that."""


@attrs.define(eq=False)
class OneEvent:
    """A source of a single event."""

    event: Event | None

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

    # {lane: where its events come from}, longest waiting lane first; bounded by the active lanes.
    _ready: dict[str | None, Source] = attrs.field(factory=dict, init=False)
    # Errors and notices that belong to no response; bounded by waiting_errors_max.
    _notices: deque[Event] = attrs.field(factory=deque, init=False)

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._ready or self._notices)

    def mark_ready(self, stream_id: str | None, source: Source) -> None:
        """This lane has events, from this source. Harmless when it is known already."""
        self._ready[stream_id] = source

    def drop(self, stream_id: str | None) -> None:
        """This lane has nothing to say any more."""
        self._ready.pop(stream_id, None)

    def put_notice(self, event: Event) -> bool:
        """Add an error or notice; False when too many wait: the client sends but does not read."""
        if len(self._notices) >= self.limits.waiting_errors_max:
            return False
        self._notices.append(event)
        return True

    def is_waiting(self, stream_id: str | None) -> bool:
        """Whether events of this lane have not been taken yet."""
        return stream_id in self._ready

    def take(self) -> list[bytes]:
        """Encode what waits, up to the limit of one burst (exceeded by at most one take)."""
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
