"""Store of one surface's streams by id: those that run, and ended ones for a while.

Through it a stream is found again from anywhere, by an HTTP call or an event on any socket of the
same principal. Another principal's stream does not exist for the caller (404, not 403). Running
ones are bounded by the admission of requests; of the ended ones the oldest are forgotten, by
number, by bytes and by age. One that is kept for its readers alone is forgotten when they have all.
"""

import math
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs
import trio

from ..errors import ApiError
from .books import StreamBooks
from .claims import Standing
from .executions import DELETED, FORGOTTEN, INTERRUPTED
from .retention import Retention
from .served_stream import Order, ServedStream

Stream = TypeVar("Stream", bound=ServedStream[Any])


@attrs.frozen
class Unread(Generic[Stream]):
    """Ended in a life of this frontend before. `read` gives the stream, if it can be read."""

    read: Callable[[], Stream | None]
    noted_names: list[str]
    session: str
    is_keyed: bool
    # How long it is kept after its end.
    keep_s: float


@attrs.define(eq=False)
class StreamStore(Generic[Stream]):
    """Streams by id; ended ones within the limits of count, bytes and age.

    `missing` is the error of an id that is not found.
    """

    books: StreamBooks
    missing: Callable[[str], ApiError]
    _running: dict[str, Stream] = attrs.field(factory=dict, init=False)
    # Ended ones that are not kept, but for those who have not had all of them.
    _awaited: dict[str, Stream] = attrs.field(factory=dict, init=False)
    # Running ones of which nothing is to be kept.
    _deleted: set[str] = attrs.field(factory=set, init=False)
    ended: Retention[Stream | Unread[Stream]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        limits = self.books.limits
        bounds = (limits.ended_responses_max, limits.ended_bytes_max)
        self.ended = Retention(*bounds, self._handle_forgotten)

    @property
    def active(self) -> int:
        """How many streams run."""
        return len(self._running)

    @property
    def kept(self) -> int:
        """How many ended streams are kept."""
        return len(self.ended)

    def running(self) -> list[Stream]:
        """Streams that run now."""
        return list(self._running.values())

    def cancel_all(self, reason: str) -> None:
        """End those that run."""
        for stream in self.running():
            stream.cancel(reason)

    # ---- what a stream says

    def add(self, stream: Stream) -> None:
        """Make a stream known. Ids are ours and random: a double one is a mistake of ours."""
        stream_id = stream.order.stream_id
        assert stream_id not in self._running
        self._running[stream_id] = stream
        if stream.order.is_keyed:
            self.books.executions.handle_admitted(stream_id)

    def end(self, stream: Stream) -> None:
        """A stream has ended, for whatever reason; keep it a while if it may be kept and fits."""
        order, adoption = stream.order, stream.adoption
        stream_id = order.stream_id
        known_ns = None if adoption is None else adoption.ended_ns
        ended_ns = time.monotonic_ns() if known_ns is None else known_ns
        del self._running[stream_id]
        is_deleted = stream_id in self._deleted
        keep_s = 0.0 if is_deleted else stream.kept_s(self.books)
        is_awaited = (stream.is_attached and stream.is_resumable) or keep_s == math.inf
        is_awaited, is_kept = is_awaited and not is_deleted, 0 < keep_s < math.inf
        if is_kept:
            self._keep(stream, _end_of(keep_s, ended_ns))
        elif is_awaited:
            self._awaited[stream_id] = stream
        if order.is_keyed and not (is_kept or is_deleted):
            self.books.bury(stream_id, Standing.LOST, INTERRUPTED)
        if not (is_kept or is_awaited):
            self.books.forget(*stream.order.noted_names)
        elif self.books.journal is not None:
            stream.note_end(self.books.journal, ended_ns)
        self._deleted.discard(stream_id)
        self.ended.forget_old(trio.current_time())
        self.books.on_ended()

    def handle_refused(self, stream: Stream) -> None:
        """A stream was not admitted: no successor is to find it."""
        self.books.forget(*stream.order.noted_names)

    def handle_left(self, stream: Stream) -> None:
        """An ended stream has no reader any more, and no caller is to answer with it."""
        stream_id = stream.order.stream_id
        was_awaited = self._awaited.pop(stream_id, None) is not None
        may_come_back = stream.kept_s(self.books) == math.inf
        if may_come_back and not stream.is_over:
            self._keep(stream, stream.scope.deadline)
            self.ended.forget_old(trio.current_time())
        elif may_come_back or was_awaited:
            self.ended.drop(stream_id)
            self.books.forget(*stream.order.noted_names)

    def _keep(self, stream: Stream, until_s: float) -> None:
        self.ended.keep(stream.order.stream_id, stream, stream.size_bytes, until_s)

    def keep_unread(self, unread: Unread[Stream], size_bytes: int, ended_ns: int) -> None:
        """A stream ended then, before this life; it is read when it is asked for."""
        (stream_id,) = unread.noted_names
        until_s = _end_of(unread.keep_s, ended_ns)
        self.ended.keep(stream_id, unread, size_bytes, until_s)
        self.ended.forget_old(trio.current_time())

    def _handle_forgotten(
        self, stream_id: str, ended: Stream | Unread[Stream], is_over: bool
    ) -> None:
        facts = _facts(ended)
        if facts.is_keyed:
            if not is_over:
                self.books.bury(stream_id, Standing.GONE, FORGOTTEN)
            # The stream must not be found again beside what says that it is gone.
            self.books.forget(*facts.noted_names)
        elif self.books.journal is not None:
            for name in facts.noted_names:
                self.books.journal.forget_soon(name)

    def forget_session(self, session: str) -> None:
        """The socket is gone: what only it could continue is forgotten."""
        names: list[str] = []
        for stream_id, ended in self.ended.items():
            if _facts(ended).session == session:
                self.ended.drop(stream_id)
                names += _facts(ended).noted_names
        self.books.forget(*names)
        running = self._running.items()
        self._deleted.update(name for name, each in running if each.order.session == session)

    # ---- what clients ask

    def begun(self, stream_id: str) -> Stream | None:
        """The stream of this id, which is the caller's own; None if it was never admitted."""
        return self._running.get(stream_id) or self._ended(stream_id)

    def _ended(self, stream_id: str) -> Stream | None:
        """An ended one, read if it was not yet."""
        awaited = self._awaited.get(stream_id)
        if awaited is not None and awaited.kept_s(self.books) == math.inf:
            return awaited
        found = self.ended.find(stream_id, trio.current_time())
        if not isinstance(found, Unread):
            return found
        stream = found.read()
        if stream is None:
            self.ended.drop(stream_id)
            return None
        self.ended.replace(stream_id, stream, stream.size_bytes)
        self.ended.forget_old(trio.current_time())
        return stream

    def find(self, stream_id: str, principal: str, session: str = "") -> Stream:
        """The stream of this id. Raises `ApiError` 404.

        One that is kept for a session is found by anybody while it runs, and then by that session.
        """
        running = self._running.get(stream_id)
        if running is not None:
            is_found = stream_id not in self._deleted
        else:
            running = self._ended(stream_id)
            is_found = running is not None and self._is_shown(running, session)
        if running is None or not is_found or running.order.principal != principal:
            raise self.missing(stream_id)
        return running

    def _is_shown(self, ended: Stream, session: str) -> bool:
        if ended.order.session in ("", session):
            return True
        # By a reader that was cut off.
        return ended.adoption is not None and trio.current_time() < self.books.adopted_until_s

    def cancel(self, stream_id: str, principal: str, reason: str, session: str = "") -> Stream:
        """Ask a stream to end; one that has ended stays as it is. Raises `ApiError` 404."""
        stream = self.find(stream_id, principal, session)
        if not stream.has_ended:
            stream.cancel(reason)
        return stream

    def delete(self, stream_id: str, principal: str) -> None:
        """Forget it; one that runs is cancelled, its readers see its end. Raises `ApiError` 404."""
        stream = self.find(stream_id, principal)
        if stream.order.is_keyed:
            self.books.bury(stream_id, Standing.GONE, DELETED)
        if stream.has_ended:
            self.ended.drop(stream_id)
            self.books.forget(*stream.order.noted_names)
        else:
            self._deleted.add(stream_id)
            stream.cancel("deleted")

    def check_invariants(self) -> None:
        """Assert sums and limits; for property tests."""
        self.ended.check_invariants()
        assert self._deleted <= set(self._running)


def _facts(ended: ServedStream[Any] | Unread[Any]) -> Order | Unread[Any]:
    return ended if isinstance(ended, Unread) else ended.order


def _end_of(keep_s: float, ended_ns: int) -> float:
    """When what ended then (CLOCK_MONOTONIC) was kept for its time, by trio's clock.

    What says that it ended later than now is of a boot of the machine before.
    """
    now_ns = time.monotonic_ns()
    return trio.current_time() + keep_s - (now_ns - min(ended_ns, now_ns)) / 1e9
