"""Decides which response of a socket runs when: named lanes, each first in first out.

Sans-IO: requests and ends in, starts or refusals out; `websocket` runs what is started. The words
are OpenAI's: a socket has at most 32 lane names in its life and 16 active lanes at a time; the
lane without a name is always there. A lane is active from its first waiting request until its last
one has ended.
"""

from collections import deque
from typing import Protocol, Self

import attrs

from ..errors import ApiError
from ..openai.responses_request import ResponseRequest, ResumeRequest
from ..settings import SocketLimits

StreamId = str | None
LIMIT_CODE = "websocket_stream_limit_reached"
CANCELLED = "cancelled on a socket"


class StartedResponse(Protocol):
    """What a turn needs of its response."""

    @property
    def response_id(self) -> str:
        """Its id."""

    def grant(self, tokens: int) -> None:
        """Allow so many tokens more."""

    def cancel(self, reason: str) -> None:
        """Ask for its end."""


@attrs.frozen
class Start:
    """Run this now; its lane is free for it. `event_id` is what the client called its message."""

    request: ResponseRequest | ResumeRequest
    size_bytes: int
    event_id: str | None = None


@attrs.define(eq=False)
class Turn:
    """What runs in a lane, from its request on: a client may want its end, or allow it tokens,
    before the response has an id. It is done when the response is there.
    """

    response_id: str | None = None
    is_cancelled: bool = False
    granted: int = 0

    @classmethod
    def of(cls, start: Start) -> Self:
        """The turn of this request; what is resumed has its id."""
        request = start.request
        return cls(request.response_id if isinstance(request, ResumeRequest) else None)

    def begin(self, response: StartedResponse) -> None:
        """The response is there."""
        self.response_id = response.response_id
        if self.granted:
            response.grant(self.granted)
        if self.is_cancelled:
            response.cancel(CANCELLED)


@attrs.define(eq=False)
class Lanes:
    """The lanes of one socket. `size_bytes` of a start is its message's length."""

    limits: SocketLimits

    # Names ever used; they never come free.
    _names: set[str] = attrs.field(factory=set, init=False)
    # {lane: waiting requests}, oldest first; bounded by queued_per_lane_max and queued_bytes_max.
    # A lane is in here exactly while it is active, that is while one of its requests runs.
    _waiting: dict[StreamId, deque[Start]] = attrs.field(factory=dict, init=False)
    _waiting_bytes: int = attrs.field(default=0, init=False)

    @property
    def active(self) -> int:
        """How many lanes run a response now."""
        return len(self._waiting)

    def handle_request(self, start: Start) -> Start | None:
        """Something is to run in a lane: start it, or None when it waits there.

        Raises `ApiError` at a limit; nothing has changed then.
        """
        name = start.request.stream_id
        queue = self._waiting.get(name)
        if queue is None:
            self._check_new_activity(name)
            if name is not None:
                self._names.add(name)
            self._waiting[name] = deque()  # bounded by queued_per_lane_max
            return start
        if len(queue) >= self.limits.queued_per_lane_max:
            raise _refusal(f"{self.limits.queued_per_lane_max} requests wait in this lane already")
        if self._waiting_bytes + start.size_bytes > self.limits.queued_bytes_max:
            raise _refusal("the waiting requests of this socket are too large together")
        queue.append(start)
        self._waiting_bytes += start.size_bytes
        return None

    def _check_new_activity(self, name: StreamId) -> None:
        if self.active >= self.limits.lanes_active_max:
            raise _refusal(f"{self.limits.lanes_active_max} lanes are active already")
        is_new = name is not None and name not in self._names
        if is_new and len(self._names) >= self.limits.lane_names_max:
            raise _refusal(f"{self.limits.lane_names_max} lane names are used already")

    def handle_ended(self, stream_id: StreamId) -> Start | None:
        """The running response of a lane has ended: what to start next, or None: lane idle."""
        queue = self._waiting[stream_id]
        if not queue:
            del self._waiting[stream_id]
            return None
        start = queue.popleft()
        self._waiting_bytes -= start.size_bytes
        return start

    def check_invariants(self) -> None:
        """For property tests: the limits hold and the byte count is the sum."""
        assert self.active <= self.limits.lanes_active_max
        assert len(self._names) <= self.limits.lane_names_max
        waiting = [start for queue in self._waiting.values() for start in queue]
        assert sum(start.size_bytes for start in waiting) == self._waiting_bytes
        assert self._waiting_bytes <= self.limits.queued_bytes_max
        assert set(self._waiting) - {None} <= self._names


def _refusal(reason: str) -> ApiError:
    return ApiError(429, reason, LIMIT_CODE, "rate_limit_error", param="stream_id")
