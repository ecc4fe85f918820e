"""Ends of requests: stop rules, errors, aborts, refusals, and the totals of the engine core.

Sans-IO: the one place from which requests leave. `scheduler` gives back what they held,
`request_store` remembers how they ended, as long as that may have to be sent again.

*Stop rules* are a pure function of the request's tokens, so that a replay stops where the first
attempt would have. Their order is vLLM's: end of sequence, stop tokens, length. While fewer than
`min_tokens` are out the first two do not count (the worker gives those ids probability 0, so they
are not even sampled); length always does, or a request could outgrow the model. Stop strings are
the frontend's, which then aborts.
"""

from collections.abc import Sequence

import attrs

from ..errors import EngineError, InvalidParameter, InvalidRequest, OutputFailed
from ..messages import EngineStatistics, FinishReason, RequestKey
from ..step_messages import ALL_FORBIDDEN
from .queue import paused_count
from .request import Home, Request
from .request_store import FinishedRequest, RequestStore
from .scheduler import Scheduler


@attrs.frozen
class Stop:
    """Why a request ends. `token_id` is the stop token; None for end of sequence and length."""

    reason: FinishReason
    token_id: int | None = None
    # The last token is text like any other: nothing but the end may follow it.
    complete: bool = False


_END_OF_SEQUENCE = Stop(FinishReason.STOP)
# The output is all that its grammar allows: nothing can follow but the end of sequence.
COMPLETE = Stop(FinishReason.STOP, complete=True)
_LENGTH = Stop(FinishReason.LENGTH)


def check_stop(request: Request) -> Stop | None:
    """The first rule that the last output token meets; None to go on, also without any output.

    Without a token of `ending_ids`, and below `length_max`, that is None: most tokens are not
    checked any further.
    """
    length = len(request.token_ids)
    if length <= request.prompt_tokens:
        return None
    if length >= request.length_min:
        last = request.token_ids[-1]
        if last in request.eos_token_ids:
            return _END_OF_SEQUENCE
        if last in request.stop_token_ids:
            return Stop(FinishReason.STOP, last)
    if length >= request.length_max:
        return _LENGTH
    return None


@attrs.define(eq=False)
class Statistics:
    """Totals since the start, each under its name in `EngineStatistics`."""

    requests_added: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    aborts_unknown: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    messages_dropped: int = 0
    worker_restarts: int = 0
    step_s_last: float = 0.0

    def snapshot(self, scheduler: Scheduler) -> EngineStatistics:
        """Counts as of now."""
        return EngineStatistics(
            step=scheduler.step_number,
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            paused=paused_count(scheduler.running),
            kv_blocks=scheduler.kv_cache.pool.blocks,
            kv_blocks_free=scheduler.kv_cache.pool.free_count,
            block_tokens=scheduler.kv_cache.block_tokens,
            preemptions=scheduler.preemptions,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            aborts_after=list(scheduler.aborts_after),
            **attrs.asdict(self),
        )

    def check_invariants(self, unfinished: int) -> None:
        """`unfinished`: requests that live. Fails if one has ended twice, or without a trace."""
        ended = self.requests_finished + self.requests_aborted
        assert self.requests_added == ended + unfinished


@attrs.define(eq=False)
class Endings:
    """Ends requests of one engine core."""

    scheduler: Scheduler
    store: RequestStore
    statistics: Statistics

    def finish(
        self, request: Request, stop: Stop, error: EngineError | None = None
    ) -> FinishedRequest:
        """End it by a stop rule or an error, and remember how; the caller sends the output."""
        self.scheduler.end(request, stop.reason)
        self.store.remove(request)
        self.statistics.requests_finished += 1
        record = FinishedRequest(
            home=request.home,
            request_id=request.request_id,
            attempt=request.attempt,
            output_token_ids=request.token_ids[request.prompt_tokens :],
            finish_reason=stop.reason,
            stop_token_id=stop.token_id,
            complete=stop.complete,
            cached_tokens=request.cached_tokens,
            prefill_s=request.prefill_s,
            error="" if error is None else str(error),
            error_code="" if error is None else error.code,
            logs=(request.logprobs, request.prompt_logprobs),
            replayed_tokens=request.replayed_tokens,
        )
        self.store.keep_finished(record)
        return record

    def fail(self, request: Request, error: EngineError) -> FinishedRequest:
        """End it by an error of its own; others are unharmed."""
        return self.finish(request, Stop(FinishReason.ERROR), error)

    def fail_row(self, request: Request, reason: str) -> FinishedRequest:
        """The worker could not sample for it; what it has computed is not to be trusted.

        That every token is forbidden is what the request itself asks for, as by a form that the
        tokens which it allows cannot write.
        """
        self.scheduler.kv_cache.forget_hashes(request)
        if request.grammar is not None and request.grammar.failure:  # why nothing was allowed
            return self.fail_form(request, request.grammar.failure)
        error = OutputFailed(reason)
        return self.fail(request, InvalidRequest(str(error)) if reason == ALL_FORBIDDEN else error)

    def fail_form(self, request: Request, reason: str) -> FinishedRequest:
        """The form costs more than admission could see, as by many ways to read the same text.

        The client has to ask for another one: the same would end at the same place again.
        """
        error = OutputFailed(reason)
        return self.fail(request, InvalidParameter("structured_outputs", f"fails: {error}"))

    def abort(self, request: Request) -> None:
        """End it without an output: its frontend knows."""
        self.scheduler.end(request, FinishReason.ABORT)
        self.store.remove(request)
        self.statistics.requests_aborted += 1

    def refuse(
        self, home: Home, key: RequestKey, error: EngineError, replayed: Sequence[int] = ()
    ) -> FinishedRequest:
        """Record the end of a request that never began."""
        record = FinishedRequest(
            home=home,
            request_id=key.request_id,
            attempt=key.attempt,
            output_token_ids=list(replayed),
            replayed_tokens=len(replayed),
            finish_reason=FinishReason.ERROR,
            error=str(error),
            error_code=error.code,
        )
        self.store.keep_finished(record)
        return record
