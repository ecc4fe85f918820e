"""Writer task of a socket: gathers what waits into bursts, one write for each; notices.

A lane is not a queue of events but a source that is asked when the writer is ready, and then gives
everything that has come meanwhile in one merged delta: however far the writer is behind, a lane
costs nothing here. Lanes take turns: one that was taken from queues up again.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from ...nurseries.tasks.parking import Doorbell
from ..errors import SERVER_ERROR, ApiError
from ..openai.response_events import Event, Part, encode_part
from ..schema.fields import JsonObject
from ..settings import SocketLimits
from .frames import FrameStream


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
class SocketWriter:
    """Writer of an open socket. `run` is called once."""

    socket: WebSocketConnection
    stream: FrameStream
    limits: SocketLimits

    # {lane: where its events come from}, longest waiting lane first; bounded by the active lanes.
    _ready: dict[str | None, Source] = attrs.field(factory=dict, init=False)
    # Errors and notices that belong to no response; bounded by waiting_errors_max.
    _notices: deque[Event] = attrs.field(factory=deque, init=False)
    _bell: Doorbell = attrs.field(factory=Doorbell, init=False)
    # Tasks that wait for the writer to take or to finish, or for what `notify` announces.
    _progress: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _is_writing: bool = attrs.field(default=False, init=False)
    # Notices were put since `waiting_notices` gave none.
    has_notices: bool = attrs.field(default=False, init=False)

    def mark_ready(self, stream_id: str | None, source: Source) -> None:
        """This lane has events, from this source. Harmless when it is known already."""
        self._ready[stream_id] = source
        self._bell.ring()

    def put_notice(self, event: Event) -> bool:
        """Queue an event of no response; False when too many of them are not being read."""
        if len(self._notices) >= self.limits.waiting_errors_max:
            return False
        self._notices.append(event)
        self.has_notices = True
        self._bell.ring()
        return True

    def put_last(self, stream_id: str | None, event: Event) -> None:
        """Queue the event with which a turn of this lane ends that has no response."""
        self.has_notices = True
        self.mark_ready(stream_id, OneEvent(event))

    def waiting_notices(self) -> list[Event]:
        """Events of no response that were not taken yet, those of lanes included."""
        lanes = [each.event for each in self._ready.values() if isinstance(each, OneEvent)]
        notices = [*self._notices, *[event for event in lanes if event is not None]]
        self.has_notices = bool(notices)
        return notices

    def notify(self) -> None:
        """Something changed that `wait_idle` asks for."""
        if self._progress:
            self._progress.unpark_all()

    async def wait_taken(self, stream_id: str | None) -> None:
        """Return when nothing of this lane waits for the writer. Cancellation loses nothing."""
        while stream_id in self._ready:
            await self._progress.park()

    async def wait_idle(self, is_busy: Callable[[], bool]) -> None:
        """Return when all was written and `is_busy` says no. Cancellation loses nothing."""
        while is_busy() or self._ready or self._notices or self._is_writing:
            await self._progress.park()

    async def run(self) -> None:
        """Background task `socket-writer`: sends what waits; ends when the connection does."""
        try:
            while True:
                while texts := self.take_burst():
                    self._is_writing = True
                    self.notify()
                    await self._write_burst(texts)
                self._is_writing = False
                self.notify()
                await self._bell.wait()
        except (ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the reader learns it from its own side and ends the socket

    def take_burst(self) -> list[bytes]:
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

    async def _write_burst(self, texts: list[bytes]) -> None:
        """Raises `ConnectionClosed` once a close frame was sent, by either side's wish."""
        if self.socket.closed is not None:
            raise ConnectionClosed(self.socket.closed)
        await self.stream.send_texts(texts)

    def check_invariants(self) -> None:
        """Assert that the bounds hold, and each listed lane has something; for tests."""
        assert len(self._notices) <= self.limits.waiting_errors_max
        assert all(source.is_ready for source in self._ready.values())


# ---- notices: events that belong to no response


def error_event(error: ApiError, stream_id: str | None, event_id: str | None = None) -> Event:
    """An error of one lane, or of the socket; `event_id` is what the client called its message."""
    body = error.body()["error"]
    assert isinstance(body, dict)
    event: Event = {"type": "error", "status": error.status, "error": body}
    if error.retry_after_s is not None:
        body["headers"] = dict(error.headers())
    if event_id is not None:
        body["event_id"] = event_id
    if stream_id is not None:
        event["stream_id"] = stream_id
    return event


def too_old() -> ApiError:
    """Why a socket at its age limit takes nothing more, and ends."""
    message = "The socket has reached its age limit; open another"
    return ApiError(400, message, "websocket_connection_limit_reached")


def overloaded() -> ApiError:
    """Why a socket ends whose requests were refused so often."""
    message = "The server is overloaded; open another socket"
    return ApiError(503, message, "server_overloaded", SERVER_ERROR)


def steer_failed(event: JsonObject) -> Event:
    """OpenAI's answer for input that is not taken; it returns the input."""
    return {
        "type": "response.steer.failed",
        "sequence_number": 0,
        "error": {
            "type": "invalid_request_error",
            "code": "steering_not_supported",
            "message": "Steering is not supported; send response.create",
        },
        "steer": {
            "input": event.get("input"),
            "previous_response_id": event.get("previous_response_id"),
        },
    }


def inject_failed(event: JsonObject) -> Event:
    """The same for items that a response is to be given while it runs."""
    return {
        "type": "response.inject.failed",
        "sequence_number": 0,
        "response_id": event.get("response_id"),
        "input": event.get("input"),
        "error": {
            "code": "response_not_found",  # one of OpenAI's two
            "message": "No response takes input while it runs; send response.create",
        },
    }
