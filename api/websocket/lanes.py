"""Decides which response of a socket runs when: named lanes, each first in first out.

Sans-IO: requests and ends in, starts or refusals out; `websocket` runs what is started. The words
are OpenAI's: a socket has at most 32 lane names in its life and 16 active lanes at a time; the
lane without a name is always there. A lane is active from its first waiting request until its last
one has ended.
"""

import itertools
from collections import deque
from collections.abc import Iterable
from typing import Protocol, Self

import attrs
import msgspec

from ..errors import ApiError
from ..http.held import SessionState, TurnState
from ..openai.response_events import TERMINAL_TYPES
from ..openai.responses_request import ResponseRequest, ResumeRequest
from ..settings import SocketLimits

StreamId = str | None
LIMIT_CODE = "websocket_stream_limit_reached"
CANCELLED = "cancelled on a socket"


class StartedResponse(Protocol):
    """Response of a turn."""

    def grant(self, tokens: int) -> None:
        """Allow so many tokens more."""

    def cancel(self, reason: str) -> None:
        """Ask for its end."""


class DoneFlag(Protocol):
    """Event of a turn."""

    def is_set(self) -> bool:
        """Whether it has come."""


class PlacedReader(Protocol):
    """Reader of a turn's response."""

    @property
    def done(self) -> DoneFlag:
        """Set when everything has been taken."""

    @property
    def position(self) -> int | None:
        """The number of the last event that was taken."""


@attrs.frozen
class Start:
    """Run this now; its lane is free for it, and its response has this id. `event_id` is what the
    client called its `message`. With what it said of it later, to a process before this one.
    """

    request: ResponseRequest | ResumeRequest
    message: bytes
    response_id: str
    event_id: str | None = None
    granted: int = 0
    is_cancelled: bool = False
    # Which had begun it.
    is_taken_over: bool = False

    @property
    def number(self) -> int | None:
        """Number of the event behind which the turn begins."""
        return self.request.starting_after if isinstance(self.request, ResumeRequest) else None

    def state(self) -> TurnState:
        """State for a process that goes on with this socket."""
        said = (self.number, self.granted, self.is_cancelled)
        return TurnState(self.request.stream_id, self.response_id, self.message, *said)


@attrs.define(eq=False)
class Turn:
    """Turn that runs in a lane, from its request on: a client may want its end, or allow it tokens,
    before the response is there."""

    start: Start | None
    response_id: str
    is_begun: bool = False
    granted: int = 0
    is_cancelled: bool = False
    reader: PlacedReader | None = None

    @classmethod
    def of(cls, start: Start) -> Self:
        """The turn of this request; what is resumed has begun."""
        is_begun = isinstance(start.request, ResumeRequest)
        return cls(start, start.response_id, is_begun, start.granted, start.is_cancelled)

    def begin(self, response: StartedResponse) -> None:
        """The response is there."""
        self.is_begun = True
        if self.granted:
            response.grant(self.granted)
        if self.is_cancelled:
            response.cancel(CANCELLED)

    def state(self) -> TurnState:
        """State for a process that goes on with this socket."""
        start, reader = self.start, self.reader
        assert start is not None
        message = b"" if self.is_begun else start.message
        number = start.number if reader is None else reader.position
        said = (number, self.granted, self.is_cancelled)
        return TurnState(start.request.stream_id, self.response_id, message, *said)

    @property
    def is_done(self) -> bool:
        """Whether all its events were taken."""
        return self.reader is not None and self.reader.done.is_set()


@attrs.define(eq=False)
class Lanes:
    """The lanes of one socket."""

    limits: SocketLimits

    # Names ever used; they never come free.
    names: set[str] = attrs.field(factory=set)
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
                self.names.add(name)
            self._waiting[name] = deque()  # bounded by queued_per_lane_max
            return start
        if len(queue) >= self.limits.queued_per_lane_max:
            raise _refusal(f"{self.limits.queued_per_lane_max} requests wait in this lane already")
        if self._waiting_bytes + len(start.message) > self.limits.queued_bytes_max:
            raise _refusal("the waiting requests of this socket are too large together")
        queue.append(start)
        self._waiting_bytes += len(start.message)
        return None

    def _check_new_activity(self, name: StreamId) -> None:
        if self.active >= self.limits.lanes_active_max:
            raise _refusal(f"{self.limits.lanes_active_max} lanes are active already")
        is_new = name is not None and name not in self.names
        if is_new and len(self.names) >= self.limits.lane_names_max:
            raise _refusal(f"{self.limits.lane_names_max} lane names are used already")

    def waiting(self) -> Iterable[Start]:
        """Starts that wait, lane by lane, each in turn."""
        return itertools.chain.from_iterable(self._waiting.values())

    def handle_ended(self, stream_id: StreamId) -> Start | None:
        """The running response of a lane has ended: what to start next, or None: lane idle."""
        queue = self._waiting[stream_id]
        if not queue:
            del self._waiting[stream_id]
            return None
        start = queue.popleft()
        self._waiting_bytes -= len(start.message)
        return start

    def check_invariants(self) -> None:
        """Assert that the limits hold and the byte count is the sum; for property tests."""
        assert self.active <= self.limits.lanes_active_max
        assert len(self.names) <= self.limits.lane_names_max
        waiting = [start for queue in self._waiting.values() for start in queue]
        assert sum(len(start.message) for start in waiting) == self._waiting_bytes
        assert self._waiting_bytes <= self.limits.queued_bytes_max
        assert set(self._waiting) - {None} <= self.names


class _EventHead(msgspec.Struct):
    """Fields by which an event is known."""

    type: str
    sequence_number: int | None = None
    stream_id: StreamId = None


_decode_head = msgspec.json.Decoder(_EventHead).decode
_TERMINAL = frozenset(TERMINAL_TYPES.values())


def session_behind(session: SessionState, texts: Iterable[bytes]) -> SessionState:
    """The session behind these events of its turns, as they were sent.

    Raises `msgspec.MsgspecError`.
    """
    turns = list(session.turns)
    for head in map(_decode_head, texts):
        places = (i for i, turn in enumerate(turns) if turn.stream_id == head.stream_id)
        place = next(places, None)
        if place is None or head.sequence_number is None:
            continue
        if head.type in _TERMINAL:
            del turns[place]  # those that wait in its lane follow
        else:
            change = {"message": b"", "number": head.sequence_number}
            turns[place] = msgspec.structs.replace(turns[place], **change)
    return msgspec.structs.replace(session, turns=turns)


def _refusal(reason: str) -> ApiError:
    return ApiError(429, reason, LIMIT_CODE, "rate_limit_error", param="stream_id")
