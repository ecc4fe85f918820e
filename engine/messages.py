"""Messages between frontends and engine cores.

Plain frozen attrs classes, decoded with their types checked (`transports.codec`). A field is only
ever appended, with a default. Links number them; those of the root are `control_messages`.

A request on the wire is (request_id, attempt), its id and which sending it is: older are dropped.

Frontends and engines of two machines may be of neighbouring versions while these are upgraded; so a
new kind of message goes to nobody before its version is that of all who can be there.
"""

import enum
from typing import ClassVar

import attrs

from ..transports.array import Array
from .request_options import SentOptions
from .sampling_params import SamplingParams

# Version of these messages: a head serves engines of its own, and of the ones beside it.
ENGINE_WIRE = 1


class FinishReason(enum.StrEnum):
    """Why a request ended, in vLLM's words. `ERROR` comes with `RequestOutput.error`."""

    STOP = "stop"  # end of sequence, a stop token, or a stop string
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    DEADLINE = "deadline"  # said by frontends alone; to the engine it is an abort


# ---- frontend -> engine, on the link


@attrs.frozen
class RequestKey:
    """Names one attempt of one request."""

    request_id: str
    attempt: int


# Like `RequestOutput` not frozen, though never changed once sent: that takes three times as long.
@attrs.define(kw_only=True)
class AddRequest(SentOptions):
    """Attempt at a request. `sampling.seed` is always set here: admission chose one.

    `output_token_ids` are tokens that the client was already offered (a replay): they count as
    output, not as prompt, for every stop rule and for the sampling position. `credit` is the
    absolute output index up to which the engine may schedule (exclusive); None: to the end.

    A request for several choices is one of these for each, of which `parent` is the common name and
    `choice` the number; all have the same prompt. `bad_words` are `sampling.bad_words`, as tokens.

    Merging is the engine's (`core.outputs`): it lets most tokens wait for up to `merge_s`, so that
    one message brings several. A frontend merges what its reader has not taken yet, and no more.
    `prompt_embeds`, one row for each token of the prompt, takes the place of looking them up; the
    ids are then `embeddings.PLACEHOLDER_ID`.
    """

    # A malformed one is answered: its client would wait for ever.
    known_when_malformed: ClassVar[type] = RequestKey

    request_id: str
    attempt: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    eos_token_ids: list[int] = attrs.field(factory=list)
    output_token_ids: list[int] = attrs.field(factory=list)
    credit: int | None = None
    choice: int = 0
    principal: str = ""
    # No other request of this frontend ever has this attempt: columns may name it by that alone.
    in_columns: bool = False
    bad_words: list[list[int]] = attrs.field(factory=list)
    parent: str = ""
    prompt_embeds: Array | None = None
    # When it was taken, by the clock of whoever holds this: engines, which order requests by it,
    # set it anew from `age_ns`.
    admitted_ns: int = 0
    replayed: bool = False  # sent before, here or elsewhere: it goes before those that are new
    solo_tokens: int = 0  # suspected of an engine's death there: up to it, it runs alone
    trace: str = ""  # for the frontend alone: ids of its trace, see `runtime.frontend.tracing`
    # Time since it was taken, as it is sent: clocks of two machines have nothing in common.
    age_ns: int = 0


@attrs.frozen
class AbortRequests:
    """End these early; an unknown one is a counted no-op. `if_queued`: only what no step had yet,
    each with an output that says so, as another engine has less to do: no two may compute it.
    """

    requests: list[RequestKey]
    if_queued: bool = False


@attrs.frozen
class Grant:
    """Credit of one request: the absolute output index up to which it may be scheduled."""

    request_id: str
    attempt: int
    credit: int | None


@attrs.frozen
class GrantCredit:
    """Credit is absolute, so this is idempotent and a smaller value than before is ignored."""

    grants: list[Grant]


@attrs.frozen
class LiveRequest:
    """Request that the frontend still wants, and the next output index it needs."""

    request_id: str
    attempt: int
    next_index: int
    credit: int | None


@attrs.frozen
class Resync:
    """First message of every link generation: all that the frontend still wants from this engine.

    The engine sends tokens again from `next_index`, aborts whatever it runs for this frontend that
    is not listed, and answers `ResyncReply` with what it does not know.
    """

    live: list[LiveRequest]


class Utility(enum.StrEnum):
    """The closed list of calls an engine answers; nothing is looked up by a name from the wire."""

    STATISTICS = "statistics"
    TASK_TREE = "task_tree"


@attrs.frozen
class UtilityCall:
    """Asks for one utility. The caller has a deadline and fails the call when the engine dies."""

    call_id: int
    utility: Utility


# ---- engine -> frontend, on the link


class RequestEventKind(enum.StrEnum):
    """Event in a request's life; sent only to those that asked for it."""

    QUEUED = "queued"  # it must wait, also for an engine; `detail`: how many are before it
    SCHEDULED = "scheduled"  # its prompt is computed from now on
    PREEMPTED = "preempted"  # it gave its place to others and waits
    RESUMED = "resumed"  # scheduled again after a preemption; what it had is computed once more
    MIGRATED = "migrated"  # said by frontends alone: another engine goes on with it


@attrs.frozen
class RequestEvent:
    """Event of one request. Sent at most once: what a broken link loses is not repeated."""

    kind: RequestEventKind
    detail: int = 0
    exact: bool = True  # of MIGRATED: the tokens are those that the first engine would have given


@attrs.frozen
class TokenLogprobs:
    """Logprobs of successive tokens, as the model gave them: little endian, position-major.

    Each position has `width` columns of `token_ids` (int32) and `logprobs` (float32): the token of
    that position first, then the most likely ones in order. `ranks` (int32) is one a position: the
    token's place in that order, 1 for the most likely one. The reader checks the lengths.
    """

    width: int
    token_ids: bytes
    logprobs: bytes
    ranks: bytes


@attrs.define(kw_only=True)
class RequestOutput:
    """New tokens of one request: `token_ids[0]` has output index `first_index`.

    `events` happened before these tokens; there may be events and no token. `logprobs`, if asked
    for, are of these tokens; `prompt_logprobs`, with index 0, of the prompt's but its first.
    """

    request_id: str
    attempt: int
    first_index: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str = ""
    cached_tokens: int = 0  # prompt tokens that needed no computing; set with the first token
    error_code: str = ""  # `EngineError.code` of what `error` says in words
    events: tuple[RequestEvent, ...] = ()
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: TokenLogprobs | None = None
    # Ended because its grammar allows no more: the last token is text, and not what ended it.
    complete: bool = False
    # Seconds since its first step, with the first token. Outputs that differ in it alone are equal.
    prefill_s: float = attrs.field(default=0.0, eq=False)


@attrs.frozen(kw_only=True)
class EngineStatistics:
    """Counts of one engine at one moment; the load balancer and /metrics read them."""

    step: int = 0
    waiting: int = 0
    running: int = 0
    paused: int = 0  # running without credit
    kv_blocks: int = 0
    kv_blocks_free: int = 0
    requests_added: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    aborts_unknown: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    messages_dropped: int = 0
    step_s_last: float = 0.0
    aborts_after: list[int] = attrs.field(factory=list)  # by steps until their blocks were free
    worker_restarts: int = 0  # losses of workers that others took the place of
    block_tokens: int = 0  # of each KV block

    @property
    def kv_usage(self) -> float:
        """Which part of the KV blocks is in use."""
        return 1 - self.kv_blocks_free / self.kv_blocks if self.kv_blocks else 0.0


@attrs.frozen
class StepOutputs:
    """Output of one step for one frontend; one message for each step and frontend.

    Nearly all news is one more token of a request that goes on. Where the request allows it that is
    a row of three columns: attempt `attempts[i]` has `token_ids[i]` at output index `indices[i]`.
    Everything else is in `outputs`; one message has a request in one of both. A column of integers
    costs a thirtieth of a map of fields, on both sides.
    """

    step: int
    outputs: list[RequestOutput]
    attempts: list[int] = attrs.field(factory=list)
    indices: list[int] = attrs.field(factory=list)
    token_ids: list[int] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        if not len(self.attempts) == len(self.indices) == len(self.token_ids):
            raise ValueError("columns differ in length")


@attrs.frozen
class StatisticsReport:
    """Counts of an engine, sent to each frontend when they have changed, at a steady pace.

    They count the frontend's attempts up to `last_attempt`: what it has sent since is in none.
    """

    statistics: EngineStatistics
    last_attempt: int


@attrs.frozen
class ResyncReply:
    """The requests of a `Resync` that this engine does not know; the frontend sends them again."""

    unknown: list[RequestKey]


@attrs.frozen
class UtilityReply:
    """The answer, JSON text, or `error`."""

    call_id: int
    result: str = ""
    error: str = ""


FRONTEND_TO_ENGINE = (AddRequest, AbortRequests, GrantCredit, Resync, UtilityCall)
ENGINE_TO_FRONTEND = (StepOutputs, StatisticsReport, ResyncReply, UtilityReply)
