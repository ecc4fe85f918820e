"""Store of this frontend's responses by id: those that run, and ended ones for a while.

Through it a response is read again, continued, cancelled or deleted from anywhere: by an HTTP call,
by an event on any socket of the same principal. Another principal's response does not exist for the
caller (404, not 403). Running ones are bounded by the admission of requests; of the ended ones the
oldest are forgotten, by number, by bytes and by age.
"""

import time
from collections.abc import Callable
from typing import Self

import attrs
import trio

from ...runtime.journal.journal import AdmissionNote
from ..errors import ApiError, response_not_found
from ..schema.fields import JsonObject
from ..streams.books import StreamBooks
from ..streams.claims import Standing
from ..streams.executions import DELETED, FORGOTTEN
from ..streams.retention import Retention
from .adoption import KeptEnding, is_resumable, note_of, said_of
from .history import Conversation, with_output
from .response import Response

# Size of an ended response beside its conversation; an estimate.
RESPONSE_BYTES = 4096


@attrs.frozen
class _Ended:
    response: Response
    # The conversation that the next response continues.
    conversation: Conversation

    @classmethod
    def of(cls, response: Response) -> Self:
        return cls(response, with_output(response.conversation, response.record))

    @property
    def session(self) -> str:
        return self.response.session

    @property
    def is_keyed(self) -> bool:
        return self.response.is_keyed

    @property
    def size_bytes(self) -> int:
        size_bytes = self.conversation.size_bytes + self.response.request.extra_bytes
        return RESPONSE_BYTES + size_bytes + self.response.record.extra_bytes


@attrs.frozen
class _Unread:
    """Ended in a life of this frontend before. `read` gives the response, if it can be read."""

    read: Callable[[], Response | None]
    session: str
    is_keyed: bool


@attrs.define(eq=False)
class ResponseStore(StreamBooks):
    """Responses by id; ended ones within the limits of count, bytes and age."""

    _running: dict[str, Response] = attrs.field(factory=dict, init=False)
    # Ended ones that are not kept, but for those who have not had all of them.
    _awaited: set[str] = attrs.field(factory=set, init=False)
    # Running ones of which nothing is to be kept.
    _deleted: set[str] = attrs.field(factory=set, init=False)
    ended: Retention[_Ended | _Unread] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        limits = self.limits
        self.ended = Retention(
            limits.ended_responses_max, limits.ended_bytes_max, self._handle_forgotten
        )

    @property
    def active(self) -> int:
        """How many responses run."""
        return len(self._running)

    @property
    def kept(self) -> int:
        """How many ended responses are kept."""
        return len(self.ended)

    def running(self) -> list[Response]:
        """Responses that run now."""
        return list(self._running.values())

    def add(self, response: Response) -> None:
        """Make a response known. Ids are ours and random: a double one is a mistake of ours."""
        assert response.response_id not in self._running
        self._running[response.response_id] = response
        if response.is_keyed:
            self.executions.handle_admitted(response.response_id)

    def note_of(self, response: Response) -> AdmissionNote | None:
        """Note for the journal, if there is one."""
        return None if self.journal is None else note_of(response)

    def end(self, response: Response) -> None:
        """A response has ended, for whatever reason; keep it a while if it may be kept and fits."""
        response_id = response.response_id
        adoption = response.adoption
        known_ns = None if adoption is None else adoption.ended_ns
        ended_ns = time.monotonic_ns() if known_ns is None else known_ns
        del self._running[response_id]
        keep_s = self._keep_s(
            response.request.store,
            response.session,
            is_keyed=response.is_keyed,
            is_adopted=adoption is not None,
        )
        is_deleted = response_id in self._deleted
        is_kept = keep_s > 0 and not is_deleted
        if is_kept:
            self._keep(response, _end_of(keep_s, ended_ns))
        if self.journal is not None:
            is_awaited = response.is_attached and is_resumable(response) and not is_deleted
            if is_awaited and not is_kept:
                self._awaited.add(response_id)
            if is_kept or is_awaited:
                self.journal.end(response_id, said_of(response, ended_ns))
            else:
                self.journal.forget(response_id)
        self._deleted.discard(response_id)
        self.ended.forget_old(trio.current_time())
        self.on_ended()

    def handle_refused(self, response: Response) -> None:
        """A response was not admitted: no successor is to find it."""
        if self.journal is not None:
            self.journal.forget(response.response_id)

    def handle_left(self, response: Response) -> None:
        """An ended response has no reader any more, and no caller is to answer with it."""
        if self.journal is not None and response.response_id in self._awaited:
            self._awaited.remove(response.response_id)
            self.journal.forget(response.response_id)

    def keep_unread(
        self,
        response_id: str,
        kept: KeptEnding,
        size_bytes: int,
        read: Callable[[], Response | None],
    ) -> None:
        """A response ended so, before this life; `read` it when it is asked for."""
        keep_s = self._keep_s(kept.is_stored, kept.session, is_keyed=kept.is_keyed, is_adopted=True)
        unread = _Unread(read, kept.session, kept.is_keyed)
        until_s = _end_of(keep_s, kept.ended_ns)
        self.ended.keep(response_id, unread, RESPONSE_BYTES + size_bytes, until_s)
        self.ended.forget_old(trio.current_time())

    def _keep_s(self, is_stored: bool, session: str, *, is_keyed: bool, is_adopted: bool) -> float:
        """How long one that is kept so is kept after its end."""
        if is_stored or session or is_keyed:
            return self.limits.ended_s
        # The reader of an adopted one was cut off, and is to find its end.
        return self.adopted_keep_s if is_adopted else 0.0

    def _keep(self, response: Response, until_s: float) -> None:
        kept = _Ended.of(response)
        self.ended.keep(response.response_id, kept, kept.size_bytes, until_s)

    def _handle_forgotten(self, response_id: str, ended: _Ended | _Unread, is_over: bool) -> None:
        if ended.is_keyed and not is_over:
            self.bury(response_id, Standing.GONE, FORGOTTEN)
        if self.journal is not None:
            # A response with a key must not be found again beside what says that it is gone.
            forget = self.journal.forget if ended.is_keyed else self.journal.forget_soon
            forget(response_id)

    def _forget(self, *ids: str) -> None:
        for response_id in ids:
            self.ended.drop(response_id)
        if self.journal is not None:
            self.journal.forget(*ids)

    def forget_session(self, session: str) -> None:
        """The socket is gone: what only it could continue is forgotten."""
        self._forget(*(name for name, ended in self.ended.items() if ended.session == session))
        self._deleted.update(i for i, r in self._running.items() if r.session == session)

    def begun(self, response_id: str) -> Response | None:
        """The response of this id, which is the caller's own; None if it was never admitted."""
        ended = self._ended(response_id)
        return self._running.get(response_id) if ended is None else ended.response

    def _ended(self, response_id: str) -> _Ended | None:
        """An ended one, read if it was not yet."""
        found = self.ended.find(response_id, trio.current_time())
        if not isinstance(found, _Unread):
            return found
        response = found.read()
        if response is None:
            self.ended.drop(response_id)
            return None
        ended = _Ended.of(response)
        self.ended.replace(response_id, ended, ended.size_bytes)
        self.ended.forget_old(trio.current_time())
        return ended

    def find(self, response_id: str, principal: str, session: str = "") -> Response:
        """The response of this id. Raises `ApiError` 404.

        One that is not stored is found while it runs, and afterwards by its own session.
        """
        running = self._running.get(response_id)
        if running is not None:
            if running.principal == principal and response_id not in self._deleted:
                return running
            raise response_not_found(response_id)
        return self._find_ended(response_id, principal, session).response

    def _find_ended(self, response_id: str, principal: str, session: str) -> _Ended:
        ended = self._ended(response_id)
        if ended is None or ended.response.principal != principal:
            raise response_not_found(response_id)
        is_own = not ended.response.session or ended.response.session == session
        # By a reader that was cut off.
        is_awaited = ended.response.adoption is not None
        is_awaited = is_awaited and trio.current_time() < self.adopted_until_s
        if not (is_own or is_awaited):
            raise response_not_found(response_id)
        return ended

    def conversation_of(self, response_id: str, principal: str, session: str = "") -> Conversation:
        """The conversation with its output. Raises `ApiError`: 404, or it still runs."""
        running = self.find(response_id, principal, session)
        if not running.has_ended:
            raise still_running(response_id)
        return self._find_ended(response_id, principal, session).conversation

    def get(self, response_id: str, principal: str) -> JsonObject:
        """The response object as it is now. Raises `ApiError` 404."""
        return self.find(response_id, principal).record.snapshot()

    def cancel(self, response_id: str, principal: str, reason: str, session: str = "") -> Response:
        """Ask a response to end; one that has ended stays as it is. Raises `ApiError` 404."""
        response = self.find(response_id, principal, session)
        if not response.has_ended:
            response.cancel(reason)
        return response

    def delete(self, response_id: str, principal: str) -> None:
        """Forget it; one that runs is cancelled, its readers see its end. Raises `ApiError` 404."""
        response = self.find(response_id, principal)
        if response.is_keyed:
            self.bury(response_id, Standing.GONE, DELETED)
        if response.has_ended:
            self._forget(response_id)
        else:
            self._deleted.add(response_id)
            response.cancel("deleted")

    def check_invariants(self) -> None:
        """Assert sums and limits; for property tests."""
        self.ended.check_invariants()
        assert self._deleted <= set(self._running)


def _end_of(keep_s: float, ended_ns: int) -> float:
    """When what ended then (CLOCK_MONOTONIC) was kept for its time, by trio's clock.

    What says that it ended later than now is of a boot of the machine before.
    """
    now_ns = time.monotonic_ns()
    return trio.current_time() + keep_s - (now_ns - min(ended_ns, now_ns)) / 1e9


def still_running(response_id: str) -> ApiError:
    """The refusal to continue a response before its end."""
    return ApiError(
        400,
        f"The response {response_id[:100]!r} still runs; continue it when it has ended",
        "response_in_progress",
        param="previous_response_id",
    )
