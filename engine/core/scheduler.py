"""Scheduler: what each step computes, which requests get blocks and rows, which are preempted.

Sans-IO: `schedule()` returns a `Step`, `complete()` takes it as computed; the engine core applies
the tokens in between, so that stop rules and outputs are nothing to it.

One step mixes prompts and decodes: every running request computes as many of its uncomputed tokens
as the budget allows, in order; then waiting ones are admitted in order.

- *Blocks* for all tokens that a request has now are taken at its admission, so a prompt never stops
  half-way for want of blocks; afterwards its table grows by a block at a time.
- *Budget*: each running request behind the one served keeps a token of it, so a long prompt delays
  no decode by a whole step; and no more run than it has tokens. Larger while none is interactive. A
  prompt that does not fit into a step leaves a share of it to short ones (`PromptShare`).
- *Order* is the queue's: priority, then admission ("younger": later). Principals begin in turn.
- *Time*: chunks of prompts are cut so that a step is predicted to take no longer than it should.
- *Preemption* is by recompute. Victims: paused requests (at their credit), then the others, each
  the youngest first. One that runs takes from both; one that waits from the paused only.
- *Choices* of one prompt: the first to be admitted computes it, the others wait for its blocks.
- *Overlap*: while a step computes, the next one is scheduled as if it had been applied. What is in
  flight holds row and blocks until its last step is complete, so it cannot be a victim: a request
  that needs its blocks waits, and none after it is served, until the victim has no step in flight.
- *Lost workers*: steps in flight are taken back; all that ran is computed again, in order.
- *Suspects* of a death run alone, with no other step in flight, until past it (`Suspects`).
- *Progress*: checks let in only requests that fit when alone, none but a paused one is preempted
  for a younger, none overtakes the first of those ready to run, but for short prompts while a long
  one that runs is computed, if there is room for both. So the oldest with credit computes in every
  step (or the one after the next, if it waits for blocks in flight), or is admitted next.
"""

from collections import deque

import attrs

from ..messages import FinishReason, RequestEventKind
from .kv_cache_manager import KVCacheManager
from .prompt_share import PromptShare
from .queue import (
    SharedPrompts,
    WaitingQueue,
    insert_ordered,
    next_victim,
    remove_ordered,
    shares_prompt,
    victims_for_admission,
)
from .request import NEVER, NO_ROW, Request, RequestStatus
from .step_builder import RowPool, ScheduledStep, StepBuilder
from .step_time import StepTimes, TimeBudget
from .suspects import Suspects, holds_suspect


@attrs.define(eq=False)
class Scheduler:
    """`schedule` while it returns a step, `complete` for each of them, in order."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache: KVCacheManager
    # Steps that may be scheduled and not complete.
    steps_in_flight_max: int = 1
    # Seconds that a step should take at most; 0: as long as its tokens take.
    step_time_target_s: float = 0.0
    # The budget while none that runs is interactive, where it is the larger one.
    large_step_tokens: int = 0
    waiting: WaitingQueue = attrs.field(factory=WaitingQueue)
    step_times: StepTimes = attrs.field(factory=StepTimes)
    suspects: Suspects = attrs.field(factory=Suspects)

    # Ordered as the waiting queue is; each holds a row and blocks.
    running: list[Request] = attrs.field(factory=list, init=False)
    # Scheduled and not complete, the oldest first; bounded by `steps_in_flight_max`.
    in_flight: deque[ScheduledStep] = attrs.field(factory=deque, init=False)
    # Number of the last step scheduled; the first is 1.
    step_number: int = attrs.field(default=0, init=False)
    # `aborts_after[n]` requests that were aborted had their blocks back n steps later.
    aborts_after: list[int] = attrs.field(init=False)
    preemptions: int = attrs.field(default=0, init=False)
    # Prompt tokens that were looked up in the prefix cache, and those of them that it had.
    prefix_queries: int = attrs.field(default=0, init=False)
    prefix_hits: int = attrs.field(default=0, init=False)
    # Events of requests that want them; taken after each `schedule`.
    _events: list[tuple[Request, RequestEventKind]] = attrs.field(factory=list, init=False)
    # How many of those that run are interactive.
    _interactive: int = attrs.field(default=0, init=False)
    # Steps that are complete.
    _completed: int = attrs.field(default=0, init=False)
    _rows: RowPool = attrs.field(init=False)
    _shared_prompts: SharedPrompts = attrs.field(factory=SharedPrompts, init=False)
    # How many may run: each needs a row, and a token of the budget in every step.
    _running_max: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._rows = RowPool(self.max_num_seqs)
        self._running_max = min(self.max_num_seqs, self.max_num_batched_tokens)
        self.aborts_after = [0] * (self.steps_in_flight_max + 1)

    # ---- requests come and go

    def add(self, request: Request) -> None:
        """Take in a new request that fits the KV cache when alone."""
        self.waiting.add(request)
        self.suspects.add(request)

    def update(self, request: Request) -> None:
        """Note that a request's credit has grown or its grammar has come."""
        if request.status is not RequestStatus.RUNNING:
            self.waiting.update(request)

    def end(self, request: Request, reason: FinishReason) -> None:
        """End a request now. Row and blocks return at once, or when no step in flight holds it."""
        self.suspects.remove(request)
        self._release_siblings(request)
        self.waiting.charge(request, request.output_count - request.replayed_tokens)
        if request.status is RequestStatus.RUNNING:
            self._leave_running(request)
        else:
            self.waiting.remove(request)
        request.move_to(RequestStatus.FINISHED)
        if reason is FinishReason.ABORT:
            request.aborted_at = self._completed
        if request.row == NO_ROW:
            self._note_abort(request)
        elif not request.in_flight:
            self._end_release(request)

    def take_events(self) -> list[tuple[Request, RequestEventKind]]:
        """Take the last `schedule`'s events of requests that want them, in order."""
        events, self._events = self._events, []
        return events

    # ---- steps

    def has_work(self) -> bool:
        """Whether a step is in flight, or `schedule` would return one."""
        # If none is runnable, all blocks and rows are the paused ones', which yield to the first.
        return bool(self.in_flight or self.waiting.first() or self._runnable())

    def schedule(self) -> ScheduledStep | None:
        """The next step, which is in flight from now on; None if nothing can be computed.

        None also while enough steps are in flight, and where only what they hold is wanted.
        """
        if len(self.in_flight) >= self.steps_in_flight_max or holds_suspect(self.in_flight):
            return None
        runnable = self._runnable()
        solo = self._next_solo(runnable) if self.suspects else None
        if solo is not None and self.in_flight:
            return None
        is_alone = solo is not None and solo.row >= 0
        runnable = runnable if solo is None else [solo] if is_alone else []
        time = TimeBudget(self.step_times, self.step_time_target_s)
        share = PromptShare(self.max_num_batched_tokens, self.waiting, self.kv_cache, self._places)
        budget = self.max_num_batched_tokens
        if not (self._interactive or time.is_unmeasured(self._completed) or share.is_awaited()):
            budget = max(budget, self.large_step_tokens)
        step = StepBuilder(budget)
        # A request preempted in this step does not come back in the same one, and no other takes
        # the blocks before the running requests have had theirs in the next.
        if self._schedule_running(step, runnable, time, share) and (solo is None or not runnable):
            self._admit_waiting(step, time, share)
        if not step.requests:
            return self.schedule() if is_alone else None  # it gave way to those with the blocks
        step.finished += self._rows.free_released()
        self.step_number += 1
        scheduled = step.build(self.step_number)
        self.in_flight.append(scheduled)
        return scheduled

    def complete(self) -> ScheduledStep:
        """The oldest step in flight has been computed: count its tokens, free what waited for it.

        Returns it; those of its requests that have ended meanwhile get no token.
        """
        scheduled = self.in_flight.popleft()
        ended = []
        for request, count in zip(scheduled.requests, scheduled.step.token_counts, strict=True):
            request.computed_tokens += count
            if request.computed_tokens >= request.register_at:
                self.kv_cache.register_hashes(request)
                if request.registered_blocks >= self.kv_cache.shareable_blocks(request):
                    self._release_siblings(request)
            if request.status is not RequestStatus.RUNNING:
                ended.append(request)
        self.suspects.handle_computed(scheduled.requests[0])
        self._completed += 1
        for request in ended:
            if not request.in_flight:
                self._end_release(request)
        return scheduled

    def undo_steps(self) -> list[Request]:
        """The workers are gone with their rows: take back what is in flight and what runs.

        Blocks of steps that are complete can still be found. Returns the requests that were in
        flight and go on.
        """
        undone = list(dict.fromkeys(one for step in self.in_flight for one in step.requests))
        self.in_flight.clear()
        for request in undone:
            request.scheduled_tokens = request.computed_tokens
            request.total_tokens = len(request.token_ids)
            if request.is_finished:
                self._end_release(request)
        for request in self.running.copy():
            self._take_back(request)
        self._rows = RowPool(self.max_num_seqs)
        return [request for request in undone if not request.is_finished]

    def _runnable(self) -> list[Request]:
        """Running requests with a token to compute that is in no step yet, in order."""
        return [each for each in self.running if each.total_tokens < each.tokens_max]

    def _schedule_running(
        self, step: StepBuilder, runnable: list[Request], time: TimeBudget, share: PromptShare
    ) -> bool:
        """Serve those that run, in order; False if one was preempted or has to wait for blocks."""
        preemptions = self.preemptions
        block_tokens = self.kv_cache.block_tokens
        decoding: list[Request] = []  # those that come next: most do nothing else
        index = 0
        while index < len(runnable):
            request, index = runnable[index], index + 1
            scheduled = request.scheduled_tokens
            count = request.total_tokens - scheduled
            if count == 1 and scheduled < len(request.block_ids) * block_tokens:
                decoding.append(request)
                continue
            step.decode(decoding)
            decoding.clear()
            if count > 1:
                behind = runnable[index:]
                kept = share.kept(count, behind)
                count = time.cut(min(count, max(1, step.budget - len(behind) - kept)), kept)
            if (tokens := scheduled + count) > len(request.block_ids) * block_tokens:
                appended = self._take_blocks(request, tokens, runnable)
                if appended is None:
                    return False
                step.grown.append((request.row, appended))
            step.compute(request, count)
        step.decode(decoding)
        return self.preemptions == preemptions

    def _take_blocks(
        self, request: Request, tokens: int, runnable: list[Request]
    ) -> list[int] | None:
        """Blocks for so many tokens of it, at the expense of victims.

        None: it was the youngest itself and those before it have been served, or it waits for
        blocks of a step in flight.
        """
        while (appended := self.kv_cache.grow(request, tokens)) is None:
            victim = next_victim(self.running, runnable)
            if victim.in_flight or (victim is request and self.in_flight):
                return None
            self._preempt(victim)
            if victim is request:
                return None
        return appended

    def _admit_waiting(self, step: StepBuilder, time: TimeBudget, share: PromptShare) -> None:
        while step.budget > 0 and time.has_time():
            request = share.next_to_begin()
            if request is None:
                return
            is_larger = request.is_interactive and step.tokens >= self.max_num_batched_tokens
            if is_larger or (request.is_solo and (step.requests or self.in_flight)):
                return  # a larger step than it may be in, or it runs alone, when there is room
            hit = self.kv_cache.find_hit(request)
            shares = shares_prompt(request, hit, self.kv_cache)
            if shares and self._shared_prompts.wait_for_sibling(request):
                self.waiting.park(request)
                continue
            if not self._make_room(request, hit):
                return
            step.finished += self._rows.free_released()
            self._admit(request, hit)
            if request.is_interactive:
                step.budget = min(step.budget, self.max_num_batched_tokens - step.tokens)
            if shares:
                self._shared_prompts.begin(request)
            step.begin_row(request)
            uncomputed = request.total_tokens - request.scheduled_tokens
            kept = share.kept(uncomputed)
            step.compute(request, time.cut(min(uncomputed, max(1, step.budget - kept)), kept))
            if request.is_solo:
                return

    def _next_solo(self, runnable: list[Request]) -> Request | None:
        solo = self.suspects.next(runnable, self.waiting.first())
        fits = solo and (solo.row >= 0 or self._make_room(solo, self.kv_cache.find_hit(solo)))
        return solo if fits else None

    def _admit(self, request: Request, hit: list[int]) -> None:
        """Admit a request, for which there is room: it runs from now on."""
        self.waiting.handle_admitted(request)
        self.kv_cache.admit(request, hit)
        request.scheduled_tokens = request.computed_tokens
        request.row = self._rows.take()
        self._note_admission(request)
        request.move_to(RequestStatus.RUNNING)
        insert_ordered(self.running, request, self.waiting.order)
        self._interactive += request.is_interactive

    def _leave_running(self, request: Request) -> None:
        remove_ordered(self.running, request, self.waiting.order)
        self._interactive -= request.is_interactive

    def _make_room(self, request: Request, hit: list[int]) -> bool:
        """Whether there is a row and blocks for all its tokens, if paused requests yield theirs.

        They yield only if that is enough.
        """
        blocks = self.kv_cache.blocks_to_admit(request, hit) - self.kv_cache.pool.free_count
        victims = victims_for_admission(
            self.running, self.kv_cache, hit, blocks=blocks, places=1 - self._places()
        )
        if victims is None:
            return False
        for victim in victims:
            self._preempt(victim)
        return True

    def _places(self) -> int:
        # Requests that have ended in flight still have their rows.
        return min(self._running_max - len(self.running), self._rows.available)

    def _release_siblings(self, request: Request) -> None:
        """Let its siblings go on, if any wait for it."""
        if not request.parent:
            return
        for sibling in self._shared_prompts.leave(request):
            self.waiting.update(sibling)

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        self._take_back(request)

    def _take_back(self, request: Request) -> None:
        """Take row and blocks away; all its tokens will be computed again."""
        assert not request.in_flight, request.request_id
        self._release_siblings(request)
        self._leave_running(request)
        self._release(request)
        request.computed_tokens = request.scheduled_tokens = 0
        request.move_to(RequestStatus.PREEMPTED)
        request.has_run = True
        self.waiting.add(request)
        self._note(request, RequestEventKind.PREEMPTED)

    def _note_admission(self, request: Request) -> None:
        """Note the event; the prefix cache's part in a request counts at its first admission."""
        if request.status is RequestStatus.PREEMPTED:
            self._note(request, RequestEventKind.RESUMED)
            return
        self._note(request, RequestEventKind.SCHEDULED)
        if request.takes_hits:
            request.cached_tokens = min(request.computed_tokens, request.prompt_tokens)
            self.prefix_queries += request.prompt_tokens
            self.prefix_hits += request.cached_tokens

    def _note(self, request: Request, event: RequestEventKind) -> None:
        if request.events:
            self._events.append((request, event))

    def _end_release(self, request: Request) -> None:
        """Release a request that has ended, and that no step in flight holds any more."""
        self._release(request)
        self._note_abort(request)

    def _note_abort(self, request: Request) -> None:
        if request.aborted_at != NEVER:
            self.aborts_after[self._completed - request.aborted_at] += 1

    def _release(self, request: Request) -> None:
        self.kv_cache.free(request)
        self._rows.release(request.row)
        request.row = NO_ROW

    def check_invariants(self) -> None:
        """Fails an assertion if a request, row or block is lost, or held where it must not be."""
        keys = [self.waiting.order(request) for request in self.running]
        assert keys == sorted(set(keys))
        assert len(self.running) <= self._running_max
        self.waiting.check_invariants()
        self.suspects.check_invariants(self.running + self.waiting.requests(), self.in_flight)
        self._shared_prompts.check_invariants(self.running)
        assert len(self.in_flight) <= self.steps_in_flight_max
        in_flight = {request for step in self.in_flight for request in step.requests}
        ended = [request for request in in_flight if request.is_finished]
        holders = self.running + ended
        for request in holders:
            request.check_invariants()
            assert request.in_flight == (request in in_flight)
            assert request.status is RequestStatus.RUNNING or request.is_finished
        self.kv_cache.check_invariants(holders)
        self._rows.check_invariants([request.row for request in holders])
        assert self._interactive == sum(request.is_interactive for request in self.running)
        for scheduled in self.in_flight:
            scheduled.check_invariants(self.max_num_batched_tokens, self.large_step_tokens)
