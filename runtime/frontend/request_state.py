"""Where one request is, from the moment it is written down to its one end.

    PLACED ----> STREAMING          an engine has it; the first token since then has come
      |  ^           |
      v  |           v
     UNPLACED <------+              its engine is gone; another one will get it
      any of these --> FINISHED | FAILED | ABORTED, once and for ever

Sans-IO: times come in as `now`. The ledger drives it; it knows neither engines nor tokens.
"""

import enum
import math
from typing import Final

import attrs


class RequestStatus(enum.Enum):
    """One of these at any time; the last three are ends."""

    PLACED = "placed"  # sent to an engine, no token since
    STREAMING = "streaming"  # tokens come
    UNPLACED = "unplaced"  # between two engines
    FINISHED = "finished"  # ran to an end that the client asked for: stop or length
    FAILED = "failed"  # ended by an error
    ABORTED = "aborted"  # ended early, by its client or by a drain


_ENDS = frozenset({RequestStatus.FINISHED, RequestStatus.FAILED, RequestStatus.ABORTED})
# What may follow each status; nothing follows an end.
TRANSITIONS: Final = {
    RequestStatus.PLACED: _ENDS | {RequestStatus.STREAMING, RequestStatus.UNPLACED},
    RequestStatus.STREAMING: _ENDS | {RequestStatus.STREAMING, RequestStatus.UNPLACED},
    # Finished, as a stop string may be found in tokens that wait for their reader.
    RequestStatus.UNPLACED: _ENDS | {RequestStatus.PLACED},
    RequestStatus.FINISHED: frozenset[RequestStatus](),
    RequestStatus.FAILED: frozenset[RequestStatus](),
    RequestStatus.ABORTED: frozenset[RequestStatus](),
}


@attrs.define(eq=False)
class RequestState:
    """One request's status and the times that metrics and deadlines are made of (seconds)."""

    created_at: float
    status: RequestStatus = attrs.field(default=RequestStatus.PLACED, init=False)
    # When the present status began.
    entered_at: float = attrs.field(init=False)
    # Of the whole request, whatever engine brought it; infinite until there is one.
    first_token_at: float = attrs.field(default=math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self.entered_at = self.created_at

    @property
    def ended(self) -> bool:
        """Whether an end was reached; then nothing changes any more."""
        return self.status in _ENDS

    def handle_tokens(self, now: float) -> None:
        """Tokens were written down; of use until the first have been, since it was placed."""
        if self.status is RequestStatus.STREAMING:
            return
        if self.first_token_at == math.inf:
            self.first_token_at = now
        self._move(RequestStatus.STREAMING, now)

    def handle_engine_gone(self, now: float) -> None:
        """Its engine is gone and the request is to go on elsewhere."""
        self._move(RequestStatus.UNPLACED, now)

    def handle_placed(self, now: float) -> None:
        """Another engine has it."""
        self._move(RequestStatus.PLACED, now)

    def handle_end(self, end: RequestStatus, now: float) -> None:
        """The one terminal transition; a second one is a bug and asserted."""
        assert end in _ENDS
        self._move(end, now)

    def check_invariants(self) -> None:
        """Times are in order."""
        assert self.created_at <= self.entered_at
        if self.status is RequestStatus.STREAMING:
            assert self.first_token_at <= self.entered_at < math.inf

    def _move(self, status: RequestStatus, now: float) -> None:
        assert status in TRANSITIONS[self.status], f"{self.status.value} -> {status.value}"
        self.status, self.entered_at = status, now
