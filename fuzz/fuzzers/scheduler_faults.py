"""Engine cores with one rule broken each, for the canary of the scheduler's fuzzer."""

from collections.abc import Callable

import attrs

from ...engine.config import EngineSettings
from ...engine.core.endings import Endings
from ...engine.core.engine_core import EngineCore
from ...engine.core.kv_cache_manager import BlockPool, KVCacheManager
from ...engine.core.outputs import OutputWindows
from ...engine.core.prompt_share import PromptShare
from ...engine.core.queue import WaitingQueue
from ...engine.core.request import Home, Request, RequestStatus
from ...engine.core.request_store import FinishedRequest
from ...engine.core.scheduler import Scheduler
from ...engine.core.step_builder import StepBuilder
from ...engine.core.step_time import TimeBudget
from ...engine.messages import AddRequest, FinishReason, RequestKey
from ...engine.step_messages import WorkerReady

MakeCore = Callable[[EngineSettings, WorkerReady], EngineCore]


def _core_with(
    scheduler_type: type[Scheduler] = Scheduler,
    cache_type: type[KVCacheManager] = KVCacheManager,
    pool_type: type[BlockPool] = BlockPool,
) -> MakeCore:
    def make(settings: EngineSettings, ready: WorkerReady) -> EngineCore:
        core = EngineCore(settings, ready)
        old = core._scheduler
        cache = cache_type(old.kv_cache.block_tokens, pool_type(ready.kv_blocks))
        core._scheduler = core._endings.scheduler = scheduler_type(
            old.max_num_seqs,
            old.max_num_batched_tokens,
            cache,
            old.steps_in_flight_max,
            old.step_time_target_s,
            old.large_step_tokens,
            waiting=old.waiting,
            suspects=old.suspects,
        )
        return core

    return make


class _Rash(Scheduler):
    """Planted: an abort frees the blocks that the step in flight still writes to."""

    def end(self, request: Request, reason: FinishReason) -> None:
        """Ends it as if no step were under way."""
        request.computed_tokens = request.scheduled_tokens
        super().end(request, reason)

    def check_invariants(self) -> None:
        """Says nothing, so that the worker must find it."""


class _Remembering(Scheduler):
    """Planted: a preempted request believes that its tokens are still computed."""

    def _preempt(self, request: Request) -> None:
        computed = request.computed_tokens
        super()._preempt(request)
        request.computed_tokens = computed

    def _admit(self, request: Request, hit: list[int]) -> None:
        computed = request.computed_tokens
        super()._admit(request, hit)
        request.computed_tokens = request.scheduled_tokens = max(computed, request.computed_tokens)


class _Tight(KVCacheManager):
    """Planted: a full block is taken to have room for one more token."""

    def blocks_missing(self, request: Request, tokens: int) -> int:
        """Counts a token too few."""
        return super().blocks_missing(request, max(1, tokens - 1))

    def check_invariants(self, holders: object) -> None:
        """Says nothing."""


class _Leaky(KVCacheManager):
    """Planted: one block of each request is never given back."""

    def free(self, request: Request) -> None:
        """Gives all but the first back."""
        self.pool.release(request.block_ids[1:])
        request.block_ids = []

    def check_invariants(self, holders: object) -> None:
        """Says nothing."""


class _Greedy(KVCacheManager):
    """Planted: a hit covers the last token, of which nothing is computed then."""

    def find_hit(self, request: Request) -> list[int]:
        """Finds a block more than it may, if it is there."""
        hit = super().find_hit(request)
        if request.takes_hits and len(request.token_ids) == (len(hit) + 1) * self.block_tokens:
            last = self.pool.find(self._hash(request, len(hit)))
            hit += [] if last is None else [last]
        return hit


class _Hasty(KVCacheManager):
    """Planted: blocks can be found as soon as they are to be computed."""

    def admit(self, request: Request, hit: list[int]) -> None:
        """Names all full blocks at once."""
        super().admit(request, hit)
        for index in range(len(request.token_ids) // self.block_tokens):
            self.pool.register(request.block_ids[index], self._hash(request, index))


class _Forgetful(BlockPool):
    """Planted: a block that is given away can still be found."""

    def _evict(self) -> int:
        block_id, _ = self._evictable.popitem(last=False)
        del self._hashes[block_id]
        return block_id

    def check_invariants(self) -> None:
        """Says nothing."""


class _Lasting(BlockPool):
    """Planted: blocks of a worker that died can still be found."""

    def clear(self) -> None:
        """Frees them, and leaves them in the index."""


class _HalfUndone(Scheduler):
    """Planted: of two steps that are lost in flight one is taken back."""

    def undo_steps(self) -> list[Request]:
        """Leaves the older one as it is: what it sampled seems to be there."""
        older = list(self.in_flight)[:-1]
        requests = [request for step in older for request in step.requests]
        totals = [(request, len(request.token_ids) + 1) for request in requests]
        undone = super().undo_steps()
        for request, total in totals:
            request.total_tokens = total
        return undone


class _Held(Scheduler):
    """Planted: one that ended in a step that was lost keeps its blocks."""

    def undo_steps(self) -> list[Request]:
        """Forgets who has ended."""
        for step in self.in_flight:
            step.requests = [one for one in step.requests if not one.is_finished]
        return super().undo_steps()


class _Waiting(Scheduler):
    """Planted: a request that waits for a sibling goes on waiting when that has lost its place."""

    def _release_siblings(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING and request.in_flight:
            super()._release_siblings(request)

    def check_invariants(self) -> None:
        """Says nothing, so that a request waits for ever."""


class _Overdrawn(Scheduler):
    """Planted: what steps in flight sample does not count against credit and length."""

    def _schedule_running(
        self, step: StepBuilder, runnable: list[Request], time: TimeBudget, share: PromptShare
    ) -> bool:
        runnable = [one for one in self.running if one.has_credit]
        return super()._schedule_running(step, runnable, time, share)

    def check_invariants(self) -> None:
        """Says nothing, so that it must be noticed from outside."""


class _Indifferent(Endings):
    """Planted: a row that the worker could not sample for lives on."""

    def fail_row(self, request: Request, reason: str) -> FinishedRequest:
        """Tells its end, and leaves it where it is."""
        return FinishedRequest(
            home=request.home,
            request_id=request.request_id,
            attempt=request.attempt,
            output_token_ids=request.token_ids[request.prompt_tokens :],
            finish_reason=FinishReason.ERROR,
            error=reason,
        )


def _indifferent_core(settings: EngineSettings, ready: WorkerReady) -> EngineCore:
    core = EngineCore(settings, ready)
    old = core._endings
    core._endings = core._applier.endings = _Indifferent(old.scheduler, old.store, old.statistics)
    return core


class _Unfair(WaitingQueue):
    """Planted: the last to come is the first to be admitted."""

    def first(self) -> Request | None:
        """The ready request whose turn comes last."""
        return self._ready[-1] if self._ready else None


def _unfair_core(settings: EngineSettings, ready: WorkerReady) -> EngineCore:
    core = EngineCore(settings, ready)
    core._scheduler.waiting = _Unfair(core._scheduler.waiting.order)
    return core


class _Slow(OutputWindows):
    """Planted: windows are closed too late."""

    def take_due(self, until_s: float) -> list[Request]:
        """Closes those that ended some seconds ago."""
        return super().take_due(until_s - 4.0)


def _slow_core(settings: EngineSettings, ready: WorkerReady) -> EngineCore:
    core = EngineCore(settings, ready)
    core._windows = core._applier.windows = _Slow()
    return core


class _Deaf(EngineCore):
    """Planted: credit that comes later is not heard."""

    def _grant(self, request: Request, credit: int | None) -> None:
        pass


class _Talkative(EngineCore):
    """Planted: an abort is taken note of when the step is over, and the token still comes."""

    def abort(self, frontend: object, keys: list[RequestKey]) -> None:
        """Does nothing while a step is in flight."""
        if not self._scheduler.in_flight:
            super().abort(frontend, keys)


class _Sharing(EngineCore):
    """Planted: prompts of embeddings are distinguished by their placeholders."""

    def _cache_root(self, home: Home, request: AddRequest) -> bytes:
        return super()._cache_root(home, attrs.evolve(request, prompt_embeds=None))


FAULTS: dict[str, MakeCore] = {
    "an abort frees blocks of the step in flight": _core_with(_Rash),
    "a preempted request keeps what it computed": _core_with(_Remembering),
    "a block has room for one more": _core_with(cache_type=_Tight),
    "a block leaks": _core_with(cache_type=_Leaky),
    "a hit covers the last token": _core_with(cache_type=_Greedy),
    "a block is found before it is computed": _core_with(cache_type=_Hasty),
    "an evicted block is found": _core_with(pool_type=_Forgetful),
    "a block outlives its worker": _core_with(pool_type=_Lasting),
    "a step is not undone": _core_with(_HalfUndone),
    "one that ended in a lost step keeps its blocks": _core_with(_Held),
    "a sibling waits for one that is gone": _core_with(_Waiting),
    "tokens in flight do not count against credit": _core_with(_Overdrawn),
    "a row that failed lives on": _indifferent_core,
    "a younger request overtakes": _unfair_core,
    "a token waits beyond its window": _slow_core,
    "credit is not heard": _Deaf,
    "an abort comes too late": _Talkative,
    "placeholders of embeddings name blocks": _Sharing,
}
