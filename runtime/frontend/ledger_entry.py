"""One request in the frontend's ledger: its status from first to last, and all its output tokens.

    PLACED ----> STREAMING          an engine has it; the first token since then has come
      |  ^           |
      v  |           v
     UNPLACED <------+              its engine is gone; another one will get it
      any of these --> FINISHED | FAILED | ABORTED, once and for ever

`LedgerEntry.token_ids` is the only list of a stream's tokens in this process: the ledger appends to
it, and what a reader has taken is an index into it (`output_collector`).

Sans-IO: times come in as `now`. The ledger drives it.
"""

import enum
import math
from typing import Final, Protocol

import attrs

from ...engine.messages import AddRequest, RequestOutput
from ...transports.links.channel import Peer


class LedgerStatus(enum.Enum):
    """One of these at any time; the last three are ends."""

    PLACED = "placed"  # sent to an engine, no token since
    STREAMING = "streaming"  # tokens come
    UNPLACED = "unplaced"  # between two engines
    FINISHED = "finished"  # ran to an end that the client asked for: stop or length
    FAILED = "failed"  # ended by an error
    ABORTED = "aborted"  # ended early, by its client or by a drain


_ENDS = frozenset({LedgerStatus.FINISHED, LedgerStatus.FAILED, LedgerStatus.ABORTED})
# What may follow each status; nothing follows an end.
TRANSITIONS: Final = {
    LedgerStatus.PLACED: _ENDS | {LedgerStatus.STREAMING, LedgerStatus.UNPLACED},
    LedgerStatus.STREAMING: _ENDS | {LedgerStatus.STREAMING, LedgerStatus.UNPLACED},
    # Finished, as a stop string may be found in tokens that wait for their reader.
    LedgerStatus.UNPLACED: _ENDS | {LedgerStatus.PLACED},
    LedgerStatus.FINISHED: frozenset[LedgerStatus](),
    LedgerStatus.FAILED: frozenset[LedgerStatus](),
    LedgerStatus.ABORTED: frozenset[LedgerStatus](),
}


@attrs.define(eq=False)
class RequestState:
    """One request's status and the times that metrics and deadlines are made of (seconds)."""

    created_at: float
    status: LedgerStatus = attrs.field(default=LedgerStatus.PLACED, init=False)
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
        if self.status is LedgerStatus.STREAMING:
            return
        if self.first_token_at == math.inf:
            self.first_token_at = now
        self._move(LedgerStatus.STREAMING, now)

    def handle_engine_gone(self, now: float) -> None:
        """Its engine is gone and the request is to go on elsewhere."""
        self._move(LedgerStatus.UNPLACED, now)

    def handle_placed(self, now: float) -> None:
        """Another engine has it."""
        self._move(LedgerStatus.PLACED, now)

    def handle_end(self, end: LedgerStatus, now: float) -> None:
        """The one terminal transition; a second one is a bug and asserted."""
        assert end in _ENDS
        self._move(end, now)

    def check_invariants(self) -> None:
        """Times are in order."""
        assert self.created_at <= self.entered_at
        if self.status is LedgerStatus.STREAMING:
            assert self.first_token_at <= self.entered_at < math.inf

    def _move(self, status: LedgerStatus, now: float) -> None:
        assert status in TRANSITIONS[self.status], f"{self.status.value} -> {status.value}"
        self.status, self.entered_at = status, now


class RequestSink(Protocol):
    """Where one request's accepted outputs go; never waits, and ignores what comes after an end."""

    @property
    def request_id(self) -> str:
        """The request's name."""

    @property
    def token_ids(self) -> list[int]:
        """The list that the ledger writes into, as long as the request lives."""

    def put_token(self) -> None:
        """The next token was written into `token_ids`, and nothing else happened."""

    def put(self, output: RequestOutput) -> None:
        """The next tokens, written into `token_ids` already, an end or events."""

    def fail(self, error: Exception) -> None:
        """The request ended with this error."""


@attrs.define(eq=False)
class LedgerEntry:
    """One request that has not ended."""

    # As it was added; attempt, tokens and credit have moved on since.
    request: AddRequest
    state: RequestState
    attempt: int
    # None between two engines.
    peer: Peer | None
    credit: int | None
    # All output tokens that count, those the request began with included; the sink's own list.
    token_ids: list[int]
    # None where the ledger is used alone, and once the sink has failed.
    sink: RequestSink | None = None
