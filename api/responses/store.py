"""Store of this frontend's responses by id: those that run, and ended ones for a while.

Through it a response is read again, continued, cancelled or deleted from anywhere: by an HTTP call,
by an event on any socket of the same principal. Another principal's response does not exist for the
caller (404, not 403). Running ones are bounded by the admission of requests; of the ended ones the
oldest are forgotten, by number, by bytes and by age.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

import attrs
import trio

from ...runtime.journal.journal import AdmissionNote, Journal
from ..errors import ApiError
from ..schema.fields import JsonObject
from ..settings import ServerLimits
from .answers import WholeAnswers
from .claims import Claims, Standing
from .executions import DELETED, FORGOTTEN, Executions
from .history import Conversation, with_output
from .kept import note_of, said_of
from .response import Response

# What an ended response costs beside its conversation; an estimate.
RESPONSE_BYTES = 4096


def ignore_end() -> None:
    """A default that does nothing."""


@attrs.frozen
class _Ended:
    response: Response
    # What the next response continues.
    conversation: Conversation
    size_bytes: int
    until_s: float


@attrs.define(eq=False)
class ResponseStore:
    """All responses by id; ended ones within the limits of count, bytes and age."""

    limits: ServerLimits
    # Called when a response has ended.
    on_ended: Callable[[], None] = ignore_end
    # Where a successor of this frontend finds them, if there is one.
    journal: Journal | None = None
    # This life of this frontend.
    epoch: int = 0
    # How long one whose reader was cut off waits for it.
    adopted_keep_s: float = 0.0

    # Of idempotency keys whose home this frontend is; and of those that it executes, the rest.
    claims: Claims = attrs.field(init=False)
    executions: Executions = attrs.field(init=False)
    answers: WholeAnswers = attrs.field(init=False)
    _running: dict[str, Response] = attrs.field(factory=dict, init=False)
    # Running ones of which nothing is to be kept.
    _deleted: set[str] = attrs.field(factory=set, init=False)
    # Oldest first.
    _ended: OrderedDict[str, _Ended] = attrs.field(factory=OrderedDict, init=False)
    _ended_bytes: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        keys_max, journal = self.limits.keys_max, self.journal
        self.claims = Claims(keys_max, int(self.limits.key_age_s * 1e9), journal)
        is_whole = journal is not None and journal.is_whole
        self.executions = Executions(keys_max, self.epoch, journal, is_whole)
        self.answers = WholeAnswers(self.limits, self.executions, journal)

    @property
    def active(self) -> int:
        """How many responses run."""
        return len(self._running)

    @property
    def kept(self) -> int:
        """How many ended responses are kept."""
        return len(self._ended)

    def running(self) -> list[Response]:
        """Those that run now."""
        return list(self._running.values())

    def add(self, response: Response) -> None:
        """Make a response known. Ids are ours and random: a double one is a mistake of ours."""
        assert response.response_id not in self._running
        self._running[response.response_id] = response
        if response.is_keyed:
            self.executions.handle_admitted(response.response_id)

    def note_of(self, response: Response) -> AdmissionNote | None:
        """For the journal, if there is one."""
        return None if self.journal is None else note_of(response)

    def end(self, response: Response, ended_ns: int | None = None) -> None:
        """A response has ended, for whatever reason; keep it a while if it may be kept and fits.

        `ended_ns` (CLOCK_MONOTONIC): it ended then, in a life of this frontend before.
        """
        response_id, now_ns = response.response_id, time.monotonic_ns()
        ended_ns = now_ns if ended_ns is None else ended_ns
        del self._running[response_id]
        keep_s = self._keep_s(response)
        if keep_s and response_id not in self._deleted:
            self._keep(response, trio.current_time() + keep_s - (now_ns - ended_ns) / 1e9)
            if self.journal is not None:
                self.journal.end(response_id, said_of(response, ended_ns))
        elif self.journal is not None:
            self.journal.forget(response_id)
        self._deleted.discard(response_id)
        self._forget_old()
        self.on_ended()

    def _keep_s(self, response: Response) -> float:
        """How long it is kept after its end."""
        if response.request.store or response.session is not None or response.is_keyed:
            return self.limits.ended_s
        # Its reader was cut off, and is to find its end.
        return 0.0 if response.adopted is None else self.adopted_keep_s

    def _keep(self, response: Response, until_s: float) -> None:
        conversation = with_output(response.conversation, response.record)
        size_bytes = conversation.size_bytes + response.request.extra_bytes
        size_bytes += response.record.extra_bytes
        ended = _Ended(response, conversation, RESPONSE_BYTES + size_bytes, until_s)
        self._ended[response.response_id] = ended
        self._ended_bytes += ended.size_bytes

    def _forget_old(self) -> None:
        now = trio.current_time()
        while self._ended:
            oldest_id, oldest = next(iter(self._ended.items()))
            fits = (
                len(self._ended) <= self.limits.ended_responses_max
                and self._ended_bytes <= self.limits.ended_bytes_max
            )
            is_over = now >= oldest.until_s
            if fits and not is_over:
                return
            if oldest.response.is_keyed and not is_over:
                self.bury(oldest_id, Standing.GONE, FORGOTTEN)
            self._forget(oldest_id)

    def _forget(self, response_id: str) -> None:
        self._ended_bytes -= self._ended.pop(response_id).size_bytes
        if self.journal is not None:
            self.journal.forget(response_id)

    def forget_session(self, session: object) -> None:
        """The socket is gone: what only it could continue is forgotten."""
        for response_id in [i for i, e in self._ended.items() if e.response.session is session]:
            self._forget(response_id)
        self._deleted.update(i for i, r in self._running.items() if r.session is session)

    def find(self, response_id: str, principal: str, session: object = None) -> Response:
        """The response of this id. Raises `ApiError` 404.

        One that is not stored is found while it runs, and afterwards by its own session.
        """
        running = self._running.get(response_id)
        if running is not None:
            if running.principal == principal and response_id not in self._deleted:
                return running
            raise response_not_found(response_id)
        return self._find_ended(response_id, principal, session).response

    def _find_ended(self, response_id: str, principal: str, session: object) -> _Ended:
        self._forget_old()
        ended = self._ended.get(response_id)
        if ended is None or trio.current_time() >= ended.until_s:
            raise response_not_found(response_id)
        if ended.response.principal != principal:
            raise response_not_found(response_id)
        if ended.response.session is not None and ended.response.session is not session:
            raise response_not_found(response_id)
        return ended

    def conversation_of(
        self, response_id: str, principal: str, session: object = None
    ) -> Conversation:
        """The conversation with its output. Raises `ApiError`: 404, or it still runs."""
        running = self.find(response_id, principal, session)
        if not running.has_ended:
            raise still_running(response_id)
        return self._find_ended(response_id, principal, session).conversation

    def get(self, response_id: str, principal: str) -> JsonObject:
        """The response object as it is now. Raises `ApiError` 404."""
        return self.find(response_id, principal).record.snapshot()

    def cancel(
        self, response_id: str, principal: str, reason: str, session: object = None
    ) -> Response:
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

    def bury(self, response_id: str, standing: Standing, reason: str) -> None:
        """Its answer is not kept for its time: a request with its key is not executed again."""
        until_ns = time.monotonic_ns() + int(self.limits.ended_s * 1e9)
        self.executions.bury(response_id, standing, reason, until_ns)

    def check_invariants(self) -> None:
        """For property tests: sums and limits."""
        sizes = [ended.size_bytes for ended in self._ended.values()]
        assert sum(sizes) == self._ended_bytes
        assert len(sizes) <= self.limits.ended_responses_max
        assert self._ended_bytes <= self.limits.ended_bytes_max
        assert self._deleted <= set(self._running)


def response_not_found(response_id: str) -> ApiError:
    """The 404 for an id that is unknown, or another principal's."""
    return ApiError(
        404,
        f"No response with the id {response_id[:100]!r} runs or is kept",
        "response_not_found",
        param="response_id",
    )


def still_running(response_id: str) -> ApiError:
    """The refusal to continue a response before its end."""
    return ApiError(
        400,
        f"The response {response_id[:100]!r} still runs; continue it when it has ended",
        "response_in_progress",
        param="previous_response_id",
    )
