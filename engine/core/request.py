"""Request: one attempt's tokens, status, credit, blocks and row in the engine core.

Sans-IO: plain state; `scheduler` moves it from status to status, `engine_core` appends tokens.

There is no prefill and no decode: `computed_tokens` chases `len(token_ids)`. While a step computes
the next one is scheduled, so there are two more counts that run ahead of these two:

    token_ids   | prompt ............ | output ....... | being sampled |
                0          prompt_tokens       len(token_ids)    total_tokens
                |-- computed_tokens -->|-- in flight -->| scheduled_tokens

Output index i is `token_ids[prompt_tokens + i]`. Tokens that a replay brought count as output.
"""

import enum
import math
from collections.abc import Hashable

import attrs

from ...transports.array import Array
from ..batch_table import content_hash, form_hash
from ..messages import AddRequest, RequestOutput
from ..request_options import SentOptions
from ..sampling_params import SamplingParams
from ..step_messages import RowLogprobs, RowSampling
from .grammar import RequestGrammar
from .logprob_log import LogprobLog, logprobs_from

# Name of the frontend that a request belongs to: whatever the shell chooses, the same for a
# successor that may adopt the requests (its rank, say, not its epoch).
Home = Hashable

# A request this near its credit does not wait: the frontend's grant takes some steps to come.
CREDIT_LOW_TOKENS = 16
# "To the end": above any output index, as lengths are bounded by the model's.
CREDIT_UNLIMITED = 2**62
# Row of a request that no worker holds.
NO_ROW = -1
# A number of tokens that no request reaches, for the same reason as above.
NEVER = 2**62
# A reader whose tokens come merged after so long or longer does not see how long a step takes: no
# step that is cut by time (`step_time_target_s`) is longer by default.
INTERACTIVE_BELOW_S = 0.5
_NO_IDS: frozenset[int] = frozenset()


class RequestStatus(enum.Enum):
    """State of a request; see `TRANSITIONS`."""

    WAITING = "waiting"  # never scheduled, holds nothing
    WAITING_FOR_GRAMMAR = "waiting_for_grammar"  # not to be scheduled before it is compiled
    RUNNING = "running"  # holds a row and blocks; *paused* when it is at its credit
    PREEMPTED = "preempted"  # ran, gave row and blocks back, waits to be computed again
    FINISHED = "finished"  # its `FinishedRequest` says how, if that may have to be sent again


_S = RequestStatus
WAITING = frozenset({_S.WAITING, _S.WAITING_FOR_GRAMMAR})
# {status: those that may follow}. A replay may meet a stop rule before it ever runs, so any status
# may be followed by the end; nothing follows that.
TRANSITIONS: dict[RequestStatus, frozenset[RequestStatus]] = {
    _S.WAITING: frozenset({_S.RUNNING, _S.FINISHED}),
    _S.WAITING_FOR_GRAMMAR: frozenset({_S.WAITING, _S.FINISHED}),
    _S.RUNNING: frozenset({_S.PREEMPTED, _S.FINISHED}),
    _S.PREEMPTED: frozenset({_S.RUNNING, _S.FINISHED}),
    _S.FINISHED: frozenset(),
}


@attrs.define(eq=False)
class Request(SentOptions):
    """Mutable state of one attempt at one request. Compared and hashed by identity."""

    home: Home
    request_id: str
    attempt: int
    # Order of arrival at this engine: unique, growing. It decides between equals alone.
    arrival: int
    sampling: SamplingParams
    choice: int
    # Whose it is: principals take turns.
    principal: str

    # Prompt and output; the engine core's truth, the worker's copy can be made again from it.
    token_ids: list[int]
    prompt_tokens: int
    # Output tokens that came with it (a replay): the index of the first that is sampled here.
    replayed_tokens: int
    # Total tokens at which it ends by length: prompt + max_tokens, or the model's length.
    length_max: int
    # Total tokens below which neither end of sequence nor stop tokens end it.
    length_min: int
    # Empty if the request ignores the end of sequence.
    eos_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]

    # Output index up to which it may be scheduled (exclusive). Only ever grows.
    credit: int
    status: RequestStatus = RequestStatus.WAITING
    # When its frontend took it: FCFS is this order, here and wherever it is sent again.
    admitted_ns: int = 0
    # Preempted here, or sent before: it has its turn ahead of new ones.
    has_run: bool = False
    # The attempt alone names it to its frontend.
    in_columns: bool = False
    # Has accepted all output tokens. None: any token may come, or it is still being compiled.
    grammar: RequestGrammar | None = None
    # Token sequences that its output must not contain.
    bad_words: list[list[int]] = attrs.field(factory=list)
    # Embeddings of the prompt, whose ids are placeholders then; kept to compute it again.
    prompt_embeds: Array | None = None
    # Common name of the choices of one prompt, "" for one alone.
    parent: str = ""
    # Another choice computes their prompt; `SharedPrompts` says until when.
    waits_for_sibling: bool = False

    # Tokens whose keys and values are in the blocks. < len(token_ids) until it ends.
    computed_tokens: int = 0
    # The same once the steps in flight have completed; means nothing while it waits.
    scheduled_tokens: int = 0
    # Tokens it will have then: those it has and one for each step in flight that samples.
    total_tokens: int = attrs.field(
        default=attrs.Factory(lambda self: len(self.token_ids), takes_self=True), init=False
    )
    # Total tokens from which on none may be scheduled: its end by length, or its credit.
    tokens_max: int = attrs.field(init=False)
    # Total tokens up to which the newest one is not near its credit.
    delayed_until: int = attrs.field(init=False)
    # Logprobs of output tokens (not those of a replay) and of the prompt, if asked for.
    logprobs: LogprobLog | None = None
    prompt_logprobs: LogprobLog | None = None
    # Block table; changed by `KVCacheManager` alone. Empty unless running or in flight.
    block_ids: list[int] = attrs.field(factory=list)
    # The worker's place for it; changed by `Scheduler` alone. NO_ROW like the above.
    row: int = NO_ROW
    # Hash that knows the request when it is sent again (`batch_table`).
    content: bytes = b""
    # The same of the form of its answer; empty without one.
    form_content: bytes = b""
    # Tokens that the request computes alone in its steps, as a step of it may have ended an engine;
    # 0 from then on (`Suspects`).
    solo_tokens: int = 0
    # Parent of the first block in the prefix cache (`root_hash`); empty: it shares no blocks.
    cache_root: bytes = b""
    # Hashes of its first full blocks, as far as they were asked for.
    block_hashes: list[bytes] = attrs.field(factory=list)
    # Blocks of its table that were registered in the prefix cache, and at how many computed tokens
    # the next one will be; both are `KVCacheManager`'s.
    registered_blocks: int = 0
    register_at: int = NEVER
    # Prompt tokens that its first admission found in the cache.
    cached_tokens: int = 0
    # When it was in a step first, and how long its first token took from then on.
    began_s: float = math.inf
    prefill_s: float = 0.0
    # Output index of the first token that was not sent, if any is held (`OutputWindows`).
    unsent_from: int | None = None
    # In so many losses of workers in a row it was in flight, since it had so many tokens.
    losses: int = 0
    lost_at: int = 0
    # Count of completed steps at an abort in flight; NEVER otherwise.
    aborted_at: int = NEVER

    # End of sequence and stop tokens.
    ending_ids: frozenset[int] = attrs.field(init=False)
    # Total tokens from which on a single one goes in columns; NEVER without `in_columns`.
    columns_from: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._note_credit()
        # A shared object where possible: all requests' sets are looked at in every step.
        self.ending_ids = self.eos_token_ids
        if self.stop_token_ids:
            self.ending_ids |= self.stop_token_ids
        # Logprobs of the prompt, sent with the first token, have no room in columns.
        first_sampled = self.prompt_tokens + self.replayed_tokens + 1
        self.columns_from = first_sampled + 1 if self.in_columns else NEVER

    @property
    def in_flight(self) -> bool:
        """In a step that is not complete: row and blocks stay until the last such one is."""
        return self.scheduled_tokens > self.computed_tokens

    @property
    def is_interactive(self) -> bool:
        """Whether its tokens may be read one by one; embeddings count, as they make steps large."""
        return (self.merge_s or 0.0) < INTERACTIVE_BELOW_S or self.prompt_embeds is not None

    @property
    def output_count(self) -> int:
        """Output tokens so far, those of a replay included: the index of the next one."""
        return len(self.token_ids) - self.prompt_tokens

    @property
    def has_credit(self) -> bool:
        """Whether the next output token may be scheduled; if not, a running request is paused."""
        return len(self.token_ids) - self.prompt_tokens < self.credit

    @property
    def has_prompt_logprobs(self) -> bool:
        """Whether those of its prompt are known, so that no step needs to bring them again."""
        log = self.prompt_logprobs
        return log is not None and len(log) == self.prompt_tokens - 1

    @property
    def is_finished(self) -> bool:
        """Whether it has ended; its row and blocks may still be in flight."""
        return self.status is RequestStatus.FINISHED

    @property
    def takes_hits(self) -> bool:
        """Whether cached blocks may take the place of computing its first tokens."""
        return bool(self.cache_root) and self.sampling.prompt_logprobs is None

    @property
    def is_schedulable(self) -> bool:
        """Whether nothing but room keeps a request that waits from running."""
        compiled = self.status is not RequestStatus.WAITING_FOR_GRAMMAR
        return self.has_credit and compiled and not self.waits_for_sibling

    def move_to(self, status: RequestStatus) -> None:
        """Change the status; an illegal move is a bug of ours and fails an assertion."""
        assert status in TRANSITIONS[self.status], (self.request_id, self.status, status)
        self.status = status

    @property
    def is_solo(self) -> bool:
        """Whether its steps must have no other request in them."""
        return self.solo_tokens > 0

    def grant(self, credit: int | None) -> None:
        """Raise the credit; a smaller value than before is ignored, None means to the end."""
        self.credit = max(self.credit, CREDIT_UNLIMITED if credit is None else credit)
        self._note_credit()

    def _note_credit(self) -> None:
        self.tokens_max = min(self.length_max, self.prompt_tokens + self.credit)
        unlimited = self.credit >= CREDIT_UNLIMITED
        low = self.prompt_tokens + self.credit - CREDIT_LOW_TOKENS
        self.delayed_until = NEVER if unlimited else low

    def note_logprobs(self, rows: RowLogprobs) -> None:
        """Keep a step's logprobs of its tokens, to be sent with them."""
        log, first = self.prompt_logprobs, rows.first
        if first >= self.prompt_tokens:
            log, first = self.logprobs, first - self.prompt_tokens
        if log is not None:
            log.append(rows, first)

    def take_unsent(self, index: int) -> int:
        """Output index to send from, if `index` alone is new. Nothing is held then."""
        first = self.unsent_from
        if first is None:
            return index
        self.unsent_from = None
        return first

    def note_loss(self) -> int:
        """Note a loss of workers in flight; returns how many came without a new token between
        them."""
        tokens = len(self.token_ids)
        self.losses = self.losses + 1 if self.lost_at == tokens else 1
        self.lost_at = tokens
        return self.losses

    def output_from(self, index: int) -> RequestOutput:
        """Tokens from output index `index` on, and what is sent with them."""
        logs = (self.logprobs, self.prompt_logprobs)
        logprobs = prompt_logprobs = None
        if logs != (None, None):
            logprobs, prompt_logprobs = logprobs_from(logs, index)
        return RequestOutput(
            request_id=self.request_id,
            attempt=self.attempt,
            first_index=index,
            token_ids=self.token_ids[self.prompt_tokens + index :],
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            cached_tokens=self.cached_tokens if index <= self.replayed_tokens else 0,
            prefill_s=self.prefill_s if index <= self.replayed_tokens else 0.0,
        )

    def row_sampling(self) -> RowSampling:
        """Parameters for the worker's sampler, sent once with each `NewRow`."""
        sampling = self.sampling
        assert sampling.seed is not None, "validated when the request came in"
        suppressed: list[int] = []
        if sampling.min_tokens > 0:
            suppressed = sorted(self.ending_ids)
        return RowSampling(
            **sampling.for_rows(),
            seed=sampling.seed,
            choice=self.choice,
            min_tokens=sampling.min_tokens,
            suppressed_until_min=suppressed,
            logit_bias=list(sampling.logit_bias),
            allowed_token_ids=list(sampling.allowed_token_ids or ()),
            bad_words=self.bad_words,
            logprobs=sampling.logprobs,
            prompt_logprobs=None if self.has_prompt_logprobs else sampling.prompt_logprobs,
        )

    def check_invariants(self) -> None:
        """Fails an assertion if fields contradict each other."""
        for log in (self.logprobs, self.prompt_logprobs):
            if log is not None:
                log.check_invariants()
        assert 0 < self.prompt_tokens <= len(self.token_ids)
        assert self.prompt_tokens < self.length_max
        assert self.unsent_from is None or self.unsent_from < self.output_count
        # A request that ended in flight may have computed tokens that it never got.
        assert self.is_finished or 0 <= self.computed_tokens <= len(self.token_ids)
        holds = self.status is RequestStatus.RUNNING or (self.is_finished and self.row != NO_ROW)
        assert (self.row != NO_ROW) == holds, (self.request_id, self.row, self.status)
        assert bool(self.block_ids) == holds, (self.request_id, self.block_ids, self.status)
        if not self.is_finished:
            assert self.computed_tokens < len(self.token_ids) < self.length_max
        if holds:
            assert self.computed_tokens <= self.scheduled_tokens <= self.total_tokens
            assert self.total_tokens >= len(self.token_ids)
            # Nothing is computed beyond its end or its credit; a replay may bring more than that.
            assert self.total_tokens <= max(self.tokens_max, len(self.token_ids))
        if self.status is RequestStatus.RUNNING and not self.in_flight:
            assert self.total_tokens == len(self.token_ids)


def make_request(
    home: Home,
    add: AddRequest,
    *,
    arrival: int,
    max_model_len: int,
    cache_root: bytes = b"",
) -> Request:
    """The state for a validated ADD (`checks.check_request`); lists are copied."""
    prompt_tokens = len(add.prompt_token_ids)
    sampling = add.sampling
    length_max = max_model_len
    if sampling.max_tokens is not None:
        length_max = min(length_max, prompt_tokens + sampling.max_tokens)
    status = RequestStatus.WAITING
    if sampling.structured_outputs is not None:
        status = RequestStatus.WAITING_FOR_GRAMMAR
    return Request(
        home=home,
        request_id=add.request_id,
        attempt=add.attempt,
        arrival=arrival,
        sampling=sampling,
        choice=add.choice,
        principal=add.principal,
        token_ids=add.prompt_token_ids + add.output_token_ids,
        prompt_tokens=prompt_tokens,
        replayed_tokens=len(add.output_token_ids),
        length_max=length_max,
        length_min=prompt_tokens + sampling.min_tokens,
        eos_token_ids=_NO_IDS if sampling.ignore_eos else frozenset(add.eos_token_ids),
        stop_token_ids=frozenset(sampling.stop_token_ids),
        credit=CREDIT_UNLIMITED if add.credit is None else add.credit,
        status=status,
        admitted_ns=add.admitted_ns,
        has_run=add.replayed,
        in_columns=add.in_columns,
        bad_words=add.bad_words,
        prompt_embeds=add.prompt_embeds,
        parent=add.parent,
        logprobs=None if sampling.logprobs is None else LogprobLog(len(add.output_token_ids)),
        prompt_logprobs=None if sampling.prompt_logprobs is None else LogprobLog(1),
        cache_root=cache_root,
        content=content_hash(add),
        form_content=form_hash(add),
        solo_tokens=add.solo_tokens,
        **add.sent(),
    )
