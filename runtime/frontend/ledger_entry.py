"""Entry of the frontend's ledger: a request's status, output tokens and latencies; decisions on it.

    PLACED ----> STREAMING          an engine has it; the first token since then has come
      |  ^           |
      v  |           v
     UNPLACED <------+              its engine is gone or refused it; it waits for another one
      any of these --> FINISHED | FAILED | ABORTED, once and for ever

`LedgerEntry.token_ids` is the only list of a stream's tokens in this process: the ledger appends to
it, and what a reader has taken is an index into it (`output_collector`).

Sans-IO: values, and times as `now`. `ledger` decides, `core_client` carries out.
"""

import enum
import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Protocol

import attrs

from ...engine.errors import EngineError
from ...engine.messages import (
    AbortRequests,
    AddRequest,
    FinishReason,
    GrantCredit,
    RequestOutput,
)
from ...transports.links.channel import Peer


class LedgerStatus(enum.Enum):
    """One of these at any time; the last three are ends."""

    PLACED = "placed"  # sent to an engine, no token since
    STREAMING = "streaming"  # tokens come
    UNPLACED = "unplaced"  # between two engines, or before the first
    FINISHED = "finished"  # ran to an end that the client asked for: stop or length
    FAILED = "failed"  # ended by an error
    ABORTED = "aborted"  # ended early, by its client or by a drain


_ENDS = frozenset({LedgerStatus.FINISHED, LedgerStatus.FAILED, LedgerStatus.ABORTED})
# How a request ends that its engine has ended so.
END_OF_REASON: Final = {
    FinishReason.STOP: LedgerStatus.FINISHED,
    FinishReason.LENGTH: LedgerStatus.FINISHED,
    FinishReason.ABORT: LedgerStatus.ABORTED,
    FinishReason.ERROR: LedgerStatus.FAILED,
}
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
    # False if a part of it passed in another life of its frontend.
    is_measured: bool = attrs.field(default=True, init=False)
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

    def handle_lost(self, now: float) -> None:
        """Its engine is gone or refused it, and the request is to go on elsewhere."""
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


class Numerics(Protocol):
    """What tokens are computed with: an engine's READY says it, and a journal."""

    @property
    def numerics_id(self) -> str:
        """Equal ones compute the same; "" before the first engine."""

    @property
    def bitwise(self) -> bool:
        """Whether the same comes out each time."""


@attrs.define(eq=False)
class LedgerEntry:
    """One request that has not ended."""

    # As it was added; attempt, tokens and credit have moved on since.
    request: AddRequest
    state: RequestState
    attempt: int  # 0 before the first
    # None between two engines, and before the first.
    peer: Peer | None
    credit: int | None
    # All output tokens that count, those the request began with included; the sink's own list.
    token_ids: list[int]
    # None where the ledger is used alone, and once the sink has failed.
    sink: RequestSink | None = None
    # What its tokens are computed with, "" before the first engine has it, and whether that gives
    # the same ones again.
    numerics_id: str = ""
    is_bitwise: bool = True
    is_replayed: bool = False
    # Sendings since the last new token, with the one that brought it; refusals for draining are
    # not counted.
    attempts: int = 0
    # Since when no engine has taken it, and the error that it ends by if none does.
    lost_at: float = math.inf
    lost_by: EngineError | None = None

    @property
    def numerics(self) -> tuple[str, bool]:
        """What its tokens are computed with, and whether that gives the same again."""
        return self.numerics_id, self.is_bitwise

    def handle_adopted(self, attempt: int, peer: Peer | None, ready: Numerics | None) -> None:
        """A frontend of before sent it so; without engine it waits for one."""
        self.state.is_measured = False
        self.attempt, self.peer = attempt, peer
        if ready is not None:
            self.numerics_id, self.is_bitwise = ready.numerics_id, ready.bitwise
        self.is_replayed, self.attempts = attempt != 0, int(peer is not None)

    def handle_placed(self, attempt: int, peer: Peer, ready: Numerics | None) -> None:
        """It goes to this engine; without `ready`, to one that computes as the last one did."""
        self.is_replayed = self.attempt != 0
        self.attempts += 1
        self.attempt, self.peer = attempt, peer
        if ready is not None:
            self.numerics_id, self.is_bitwise = ready.numerics_id, ready.bitwise

    def handle_tokens(self, now: float) -> None:
        """Tokens were written down; of use until the first have been, since it was placed."""
        self.state.handle_tokens(now)
        self.attempts, self.lost_at, self.lost_by = 1, math.inf, None

    def message(self) -> AddRequest:
        """The ADD of the present attempt, with the tokens and the credit so far."""
        sampling = self.request.sampling
        if self.token_ids and sampling.prompt_logprobs is not None:
            # They came with the first token.
            sampling = attrs.evolve(sampling, prompt_logprobs=None)
        return attrs.evolve(
            self.request,
            attempt=self.attempt,
            output_token_ids=list(self.token_ids),
            credit=self.credit,
            sampling=sampling,
            replayed=self.is_replayed,
            in_columns=sampling.logprobs is None and sampling.prompt_logprobs is None,
        )


@attrs.frozen
class Fail:
    """Tell the client: the request ended with this error."""

    entry: LedgerEntry
    error: Exception


@attrs.frozen
class Send:
    """A message for one engine; if the channel refuses it, that is all right."""

    peer: Peer
    message: AbortRequests | GrantCredit


@attrs.frozen
class Accepted:
    """What counts of a message: entries with one token more each, and all that is not just that.

    By entry and not by name: an id may be used again before all of this is delivered.
    `out_of_order`: something did not count, as its index was not next. The link is to be broken, so
    that a RESYNC asks for what is. `refused`: the engine drains and did not take these, which wait
    for another one now.
    """

    tokens: list[LedgerEntry]
    outputs: list[tuple[LedgerEntry, RequestOutput]]
    out_of_order: bool = False
    refused: Sequence[LedgerEntry] = ()


NOTHING = Accepted([], [])


# Seconds; each bucket holds what is at most its bound. vLLM's, thinned out.
FIRST_TOKEN_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5,
                        5.0, 7.5, 10.0, 20.0, 40.0, 80.0)  # fmt: skip
TOKEN_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                  0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)  # fmt: skip
REQUEST_BOUNDS_S = (0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0,
                    20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)  # fmt: skip


@attrs.define
class Histogram:
    """Counts by bucket; the last bucket has no bound."""

    bounds_s: tuple[float, ...]
    counts: list[int] = attrs.field()
    sum_s: float = 0.0

    @counts.default
    def _no_counts(self) -> list[int]:
        return [0] * (len(self.bounds_s) + 1)

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """Prometheus's buckets: each bound, and how many were at most that."""
        bounds = [*map(str, self.bounds_s), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))


@attrs.define
class Latencies:
    """Latency histograms of one frontend: first token, between tokens on average, whole.

    A request is counted once, at its end.
    """

    first_token: Histogram = attrs.field(factory=lambda: Histogram(FIRST_TOKEN_BOUNDS_S))
    per_token: Histogram = attrs.field(factory=lambda: Histogram(TOKEN_BOUNDS_S))
    whole: Histogram = attrs.field(factory=lambda: Histogram(REQUEST_BOUNDS_S))

    def handle_end(self, state: RequestState, tokens: int, now: float) -> None:
        """A request ended after so many output tokens; one without tokens took no time."""
        if state.first_token_at == math.inf or not state.is_measured:
            return
        self.first_token.observe(state.first_token_at - state.created_at)
        self.whole.observe(now - state.created_at)
        if tokens > 1:
            self.per_token.observe((now - state.first_token_at) / (tokens - 1))
