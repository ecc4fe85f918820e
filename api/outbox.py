"""Events of one socket that wait for its writer; a lane's waiting deltas are merged into one.

Sans-IO: events in, encoded messages out. However far the writer is behind, a lane costs its
opening events, one delta and its ending. A lane whose delta has reached the limit is *full*: its
producer waits, so its request meets its credit and is paused, while other lanes go on. Must not
know sockets, tasks or where events come from.
"""

import itertools
from collections import deque

import attrs
import msgspec

from .limits import SocketLimits
from .responses import Event, merge_deltas


@attrs.define(eq=False)
class Outbox:
    """What waits, by lane. Lanes take turns: one whose events were taken queues up again."""

    limits: SocketLimits
    deltas_merged: int = attrs.field(default=0, init=False)

    # {lane: its events}, longest waiting lane first. Bound: see the module's first paragraph.
    _lanes: dict[str | None, deque[Event]] = attrs.field(factory=dict, init=False)
    # Errors and notices that belong to no response; bounded by waiting_errors_max.
    _notices: deque[Event] = attrs.field(factory=deque, init=False)

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._lanes or self._notices)

    def put(self, stream_id: str | None, event: Event) -> None:
        """Add the next event of a lane's response. The caller asks `is_full` before."""
        queue = self._lanes.setdefault(stream_id, deque())  # bounded with `_lanes`
        merged = merge_deltas(queue[-1], event) if queue else None
        if merged is None:
            queue.append(event)
        else:
            queue[-1] = merged
            self.deltas_merged += 1

    def put_notice(self, event: Event) -> bool:
        """Add an error or notice; False when too many wait: the client sends but does not read."""
        if len(self._notices) >= self.limits.waiting_errors_max:
            return False
        self._notices.append(event)
        return True

    def is_waiting(self, stream_id: str | None) -> bool:
        """Whether events of this lane have not been taken yet."""
        return stream_id in self._lanes

    def is_full(self, stream_id: str | None) -> bool:
        """Whether the lane's producer has to wait until the writer has taken its events."""
        queue = self._lanes.get(stream_id)
        if not queue:
            return False
        text = queue[-1].get("delta")
        return isinstance(text, str) and len(text) >= self.limits.lane_buffer_bytes_max

    def take(self) -> list[bytes]:
        """Encode what waits, up to the limit of one burst (exceeded by at most one event)."""
        taken: list[bytes] = []
        size = 0
        while size < self.limits.burst_bytes_max and self._notices:
            taken.append(_encode(self._notices.popleft(), None))
            size += len(taken[-1])
        while size < self.limits.burst_bytes_max and self._lanes:
            stream_id = next(iter(self._lanes))
            queue = self._lanes[stream_id]
            while queue and size < self.limits.burst_bytes_max:
                taken.append(_encode(queue.popleft(), stream_id))
                size += len(taken[-1])
            if not queue:
                del self._lanes[stream_id]
        return taken

    def check_invariants(self) -> None:
        """For property tests: no empty lane, no two deltas side by side."""
        assert all(self._lanes.values())
        for queue in self._lanes.values():
            events = list(queue)
            pairs = itertools.pairwise(events)
            assert all(merge_deltas(first, second) is None for first, second in pairs)


def _encode(event: Event, stream_id: str | None) -> bytes:
    if stream_id is not None:
        event = {**event, "stream_id": stream_id}
    return msgspec.json.encode(event)
