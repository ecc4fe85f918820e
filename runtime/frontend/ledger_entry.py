"""Entry of the frontend's ledger: a request's status, output tokens and times; decisions on it.

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
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import attrs

from ...engine.errors import EngineError
from ...engine.messages import (
    AbortRequests,
    AddRequest,
    FinishReason,
    GrantCredit,
    RequestEvent,
    RequestEventKind,
    RequestKey,
    RequestOutput,
)
from ...transports.links.channel import Peer
from ..journal.records import EngineLife, Placement
from .latencies import Latencies


class LedgerStatus(enum.Enum):
    """Status of a request; the last three are ends."""

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
# Statuses that may follow each; nothing follows an end.
TRANSITIONS: Final = {
    LedgerStatus.PLACED: _ENDS | {LedgerStatus.STREAMING, LedgerStatus.UNPLACED},
    LedgerStatus.STREAMING: _ENDS | {LedgerStatus.STREAMING, LedgerStatus.UNPLACED},
    # Finished, as a stop string may be found in tokens that wait for their reader.
    LedgerStatus.UNPLACED: _ENDS | {LedgerStatus.PLACED},
    LedgerStatus.FINISHED: frozenset[LedgerStatus](),
    LedgerStatus.FAILED: frozenset[LedgerStatus](),
    LedgerStatus.ABORTED: frozenset[LedgerStatus](),
}


class StateObserver(Protocol):
    """Sees a request's changes of status: `tracing.RequestTrace`."""

    def handle_adopted(self, admitted_s: float) -> None:
        """Another life of this frontend admitted it then."""

    def handle_move(self, before: LedgerStatus, since: float, now: float) -> None:
        """The status was `before` since then, and is another now."""


@attrs.define(eq=False)
class RequestState:
    """Status of a request, and its times for metrics and deadlines (seconds)."""

    created_at: float
    status: LedgerStatus = attrs.field(default=LedgerStatus.PLACED, init=False)
    # When the present status began.
    entered_at: float = attrs.field(init=False)
    # False if a part of it passed in another life of its frontend.
    is_measured: bool = attrs.field(default=True, init=False)
    # The whole request's, whatever engine brought it; infinite until there is one.
    first_token_at: float = attrs.field(default=math.inf, init=False)
    # How often it was sent again.
    replays: int = attrs.field(default=0, init=False)
    # How long its engine computed for that, as it says.
    prefill_s: float = attrs.field(default=0.0, init=False)
    observer: StateObserver | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.entered_at = self.created_at

    @property
    def ended(self) -> bool:
        """Whether an end was reached; then nothing changes any more."""
        return self.status in _ENDS

    @property
    def first_token_s(self) -> float | None:
        """How long its first token took; None before that, or where it is not known."""
        has_one = self.is_measured and self.first_token_at < math.inf
        return self.first_token_at - self.created_at if has_one else None

    def handle_tokens(self, now: float) -> None:
        """Tokens were written down; of use until the first have been, since it was placed."""
        if self.status is LedgerStatus.STREAMING:
            return
        if self.first_token_at == math.inf:
            self.first_token_at = now
        self._move(LedgerStatus.STREAMING, now)

    def handle_lost(self, now: float) -> None:
        """Note that the engine is gone or refused the request, which is to go on elsewhere."""
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
        before, since = self.status, self.entered_at
        self.status, self.entered_at = status, now
        if self.observer is not None:
            self.observer.handle_move(before, since, now)


class RequestSink(Protocol):
    """Sink of a request's accepted outputs; never waits, and ignores what comes after an end."""

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
    """Numerics of tokens, as an engine's READY has them, and a journal."""

    @property
    def numerics_id(self) -> str:
        """Equal ones compute the same; "" before the first engine."""

    @property
    def bitwise(self) -> bool:
        """Whether the same comes out each time."""


@attrs.define(eq=False)
class LedgerEntry:
    """Request that has not ended."""

    # The request as added; attempt, tokens and credit have moved on since.
    request: AddRequest
    state: RequestState
    attempt: int  # 0 before the first
    # The engine; None between two, and before the first.
    peer: Peer | None
    credit: int | None
    # Output tokens that count, those the request began with included; the sink's own list.
    token_ids: list[int]
    # The sink; None if the ledger is used alone, and once it has failed.
    sink: RequestSink | None = None
    # Numerics of its tokens, "" before the first engine has it, and whether they give the same ones
    # again.
    numerics_id: str = ""
    is_bitwise: bool = True
    is_replayed: bool = False  # in this life of its frontend
    # When the last of its tokens came: the very object that the ledger has for all of one message.
    token_at: float = math.inf
    # A life of its frontend before this one began it, and no token has come since.
    is_adopted: bool = False
    # The form comes from a journal, and no life of this frontend has checked it yet.
    awaits_check: bool = False
    # Which engine had it last, if one had in this life.
    left: Peer | None = None
    # Sendings since the last new token, with the one that brought it; not counted are refusals for
    # draining, and engines that died while it waited in their queues.
    attempts: int = 0
    is_queued: bool = False  # the engine that has it said so last; asked for of replays alone
    # Since when no engine has taken it, and the error that it ends by if none does.
    lost_at: float = math.inf
    lost_by: EngineError | None = None

    @classmethod
    def begin(cls, request: AddRequest, now: float, sink: RequestSink | None) -> "LedgerEntry":
        """Begin a request that no engine has yet."""
        token_ids = list(request.output_token_ids) if sink is None else sink.token_ids
        assert token_ids == request.output_token_ids
        return cls(request, RequestState(now), 0, None, request.credit, token_ids, sink)

    def placement(self) -> Placement:
        """Which engine has it as which attempt, if one has: for the journal."""
        life = None if self.peer is None else EngineLife(self.peer.rank, self.peer.epoch)
        numerics = self.numerics_id, self.is_bitwise
        return Placement(self.request.request_id, self.attempt, life, *numerics)

    @property
    def is_moved(self) -> bool:
        """Whether it goes on at another engine than it was."""
        return self.is_replayed and self.peer != self.left

    @property
    def is_at_home(self) -> bool:
        """Whether the engine that has it is the one that its client named."""
        return self.peer is not None and self.peer.rank == self.request.engine

    def handle_adopted(self, attempt: int, peer: Peer | None, ready: Numerics | None) -> None:
        """A frontend of before sent it so; without engine it waits for one."""
        self.state.is_measured, self.is_adopted = False, True
        self.awaits_check = self.request.sampling.structured_outputs is not None
        self.attempt, self.peer = attempt, peer
        if ready is not None:
            self.numerics_id, self.is_bitwise = ready.numerics_id, ready.bitwise
        self.attempts = int(peer is not None)

    def handle_placed(self, attempt: int, peer: Peer, ready: Numerics | None) -> None:
        """Note the request's engine; without `ready`, it computes as the last one did."""
        self.is_replayed = self.attempt != 0
        self.attempts += 1
        self.attempt, self.peer = attempt, peer
        if ready is not None:
            self.numerics_id, self.is_bitwise = ready.numerics_id, ready.bitwise

    def handle_displaced(self) -> None:
        """No engine has it from now on."""
        self.left, self.peer, self.is_queued = self.peer, None, False

    def handle_tokens(self, now: float, latencies: Latencies, prefill_s: float = 0.0) -> None:
        """Tokens were written down, by a message that is not the next one of the engine that
        brought those before them: the first, or the first after a pause.
        """
        state, pause_s = self.state, now - self.token_at
        if self.token_at != math.inf:
            latencies.inter_token.observe(pause_s)
        elif state.is_measured:
            latencies.first_token.observe(now - state.created_at)
            state.prefill_s = prefill_s
        if state.status is not LedgerStatus.STREAMING:
            if self.token_at != math.inf:
                gaps = latencies.gaps_of_frontends if self.is_adopted else latencies.gaps_of_engines
                gaps.observe(pause_s)
            state.handle_tokens(now)
            self.attempts, self.lost_at, self.lost_by = 1, math.inf, None
            self.is_adopted = self.is_queued = False
        self.token_at = now

    def handle_events(self, events: Iterable[RequestEvent]) -> None:
        """Note events at the engine."""
        for event in events:
            self.is_queued = event.kind is RequestEventKind.QUEUED

    def count_end(self, latencies: Latencies, now: float) -> None:
        """Count the end; a request without tokens took no time."""
        state, tokens = self.state, len(self.token_ids)
        latencies.prompt_tokens.observe(len(self.request.prompt_token_ids))
        latencies.output_tokens.observe(tokens)
        if state.is_measured and state.first_token_at != math.inf:
            latencies.handle_end(
                first_token_s=state.first_token_at - state.created_at,
                prefill_s=state.prefill_s,
                whole_s=now - state.created_at,
                tokens=tokens,
            )

    def message(self) -> AddRequest:
        """The ADD of the present attempt, with the tokens and the credit so far."""
        sampling = self.request.sampling
        if self.token_ids and sampling.prompt_logprobs is not None:
            # The prompt's logprobs came with the first token.
            sampling = attrs.evolve(sampling, prompt_logprobs=None)
        return attrs.evolve(
            self.request,
            attempt=self.attempt,
            output_token_ids=list(self.token_ids),
            credit=self.credit,
            sampling=sampling,
            replayed=self.is_replayed,
            events=self.request.events or self.is_replayed,
            in_columns=sampling.logprobs is None and sampling.prompt_logprobs is None,
        )

    def output_of(self, event: RequestEvent) -> RequestOutput:
        """Output that hands an event, which no engine sent, to the sink."""
        return RequestOutput(
            request_id=self.request.request_id,
            attempt=self.attempt,
            first_index=len(self.token_ids),
            token_ids=[],
            events=(event,),
        )

    def recall(self) -> "Send":
        """Message that asks the engine for a request in its queue back; not a second time."""
        assert self.is_queued
        self.is_queued = False
        return self._abort(if_queued=True)

    def abort(self) -> "Send | None":
        """Message that tells the engine to end the present attempt; None if no engine has it."""
        return None if self.peer is None else self._abort()

    def _abort(self, *, if_queued: bool = False) -> "Send":
        assert self.peer is not None
        key = RequestKey(self.request.request_id, self.attempt)
        return Send(self.peer, AbortRequests([key], if_queued))

    def check_invariants(self) -> None:
        """Assert that it has not ended, and is at an engine or waits for one."""
        self.state.check_invariants()
        assert not self.state.ended
        assert (self.peer is None) == (self.state.status is LedgerStatus.UNPLACED)
        assert not (self.is_queued and self.state.status is not LedgerStatus.PLACED)


@attrs.frozen
class Send:
    """A message for one engine; if the channel refuses it, that is all right."""

    peer: Peer
    message: AbortRequests | GrantCredit


@attrs.frozen
class Accepted:
    """Parts of a message that count: entries with one token more each, and outputs that say more.

     By entry and not by name: an id may be used again before all of this is delivered.
    `out_of_order`: an index was not next. The link is to be broken, so that a RESYNC asks for it.
    `refused`: the engine drains, or was asked to give these back, and has not begun them; they wait
    for another one now. `queued`: some wait in the engine's queue, and another may have less to do.
    """

    tokens: list[LedgerEntry]
    outputs: list[tuple[LedgerEntry, RequestOutput]]
    out_of_order: bool = False
    refused: Sequence[LedgerEntry] = ()
    queued: bool = False


NOTHING = Accepted([], [])
# The observer of a request that came now; None where it is not traced.
BeginTrace = Callable[[LedgerEntry, float], StateObserver | None]
