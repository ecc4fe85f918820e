"""Engine core: requests in, steps out; sampled tokens in, outputs out.

Sans-IO: no clock, links, workers or tasks. The shell (`process.step_loop`) calls, in its loop:

    while core.has_work():
        while step := core.schedule(now): ...        # -> workers; one computes, one waits
        mask = core.take_mask()                      # -> workers, if the oldest step has one
        ... every message that arrives meanwhile: add, abort, grant, resync
        for home, outputs in core.finish_step(result, now).items(): ...   # -> frontends
    for home, outputs in core.take_outputs().items(): ...     # refused or ended without a step

A *home* (`homes`) is any hashable name that the shell gives a frontend and its successors.

A message about a request that is unknown, or about another attempt of it, changes nothing. No
input from a frontend raises: a bad request gets an ERROR output, alone. What a worker says must be
right, as all workers are ours: `UnexpectedResult` ends the engine.
"""

import math

import attrs

from ..block_names import BlockNames
from ..config import EngineSettings
from ..errors import EngineDraining, EngineError, RequestRecalled
from ..messages import (
    AddRequest,
    EngineStatistics,
    Grant,
    LiveRequest,
    RequestKey,
    RequestOutput,
    StepOutputs,
)
from ..step_messages import Mask, Step, StepResult, WorkerReady
from .checks import RequestLimits, check_request, match_logprobs, match_result
from .endings import COMPLETE, Endings, Statistics, check_stop
from .grammar import RequestGrammar, fill_masks
from .kv_cache_manager import BlockPool, KVCacheManager, root_hash
from .kv_events import KVEventLog
from .outputs import FrontendOutputs, OutputWindows, PendingOutputs, TokenApplier
from .queue import ORDERS, WaitingQueue
from .request import WAITING, Home, Request, RequestStatus, make_request
from .request_store import FinishedRequest, RequestStore, is_continued
from .scheduler import Scheduler
from .step_builder import ScheduledStep
from .step_time import StepPace
from .suspects import Suspects


@attrs.define(eq=False)
class EngineCore:
    """See the module's first paragraph; `settings` and the workers' `ready` fix its limits.

    At most `EngineSettings.steps_in_flight` steps are in flight (scheduled and not finished).
    Raises `InvalidParameter` if the workers have no room for a single block.
    """

    settings: EngineSettings
    ready: WorkerReady
    names: BlockNames | None = None
    kv_events: KVEventLog | None = None  # for routers, if they may read them
    # READY must bring frontends its `max_model_len`, so that they refuse what this engine refuses.
    limits: RequestLimits = attrs.field(init=False)
    # Suspects of engines' deaths; the shell tells the root who has passed.
    suspects: Suspects = attrs.field(factory=Suspects, init=False)
    _scheduler: Scheduler = attrs.field(init=False)
    _store: RequestStore = attrs.field(factory=RequestStore, init=False)
    # Outputs that no step brings; the shell takes them.
    _pending: PendingOutputs = attrs.field(factory=PendingOutputs, init=False)
    # Requests that wait for a grammar and that the shell has not taken yet.
    grammar_orders: list[Request] = attrs.field(factory=list, init=False)
    _statistics: Statistics = attrs.field(factory=Statistics, init=False)
    _endings: Endings = attrs.field(init=False)
    _applier: TokenApplier = attrs.field(init=False)
    # Tokens that need not be sent at once.
    _windows: OutputWindows = attrs.field(factory=OutputWindows, init=False)
    _arrivals: int = attrs.field(default=0, init=False)
    # When the last step was finished: the next one began to compute then, or was scheduled later.
    _finished_at_s: float = attrs.field(default=0.0, init=False)
    _pace: StepPace = attrs.field(factory=StepPace, init=False)
    _draining: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        settings, ready = self.settings, self.ready
        self.limits = RequestLimits.of(settings, ready)
        pool = BlockPool(ready.kv_blocks, self.names, self.kv_events)
        self._scheduler = Scheduler(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            kv_cache=KVCacheManager(settings.block_tokens, pool),
            steps_in_flight_max=settings.steps_in_flight,
            step_time_target_s=settings.step_time_target_s,
            large_step_tokens=settings.step_tokens_max,
            waiting=WaitingQueue(ORDERS[settings.scheduling_policy]),
            suspects=self.suspects,
        )
        self._endings = Endings(self._scheduler, self._store, self._statistics)
        self._applier = TokenApplier(self._endings, self._statistics, self._windows)

    # ---- frontend -> engine

    def add(self, home: Home, request: AddRequest) -> None:
        """Take a request in. One that cannot be served gets an ERROR output (`take_outputs`).

        A newer attempt ends the one that lives; the same or an older one is dropped and counted. A
        replay that already meets a stop rule finishes at once.
        """
        if not self._takes_place(home, request.request_id, request.attempt):
            return
        try:
            if self._draining:
                raise EngineDraining()
            check_request(request, self.limits)
        except EngineError as error:
            key = RequestKey(request.request_id, request.attempt)
            self._put_end(self._endings.refuse(home, key, error, request.output_token_ids))
            return
        self._arrivals += 1
        added = make_request(
            home,
            request,
            arrival=self._arrivals,
            max_model_len=self.limits.max_model_len,
            cache_root=self._cache_root(home, request),
        )
        self._statistics.requests_added += 1
        self._statistics.prompt_tokens += added.prompt_tokens
        self._store.insert(added)
        self._scheduler.add(added)
        stop = check_stop(added)
        if stop is not None:
            self._put_end(self._endings.finish(added, stop))
            return
        if added.status is RequestStatus.WAITING_FOR_GRAMMAR:
            self.grammar_orders.append(added)
        if added.events:
            self._pending.note_arrival(added)

    def refuse(self, home: Home, key: RequestKey, error: EngineError) -> None:
        """Refuse a request of which no more than this could be read."""
        if self._takes_place(home, key.request_id, key.attempt):
            self._put_end(self._endings.refuse(home, key, error))

    def _takes_place(self, home: Home, request_id: str, attempt: int) -> bool:
        """Whether it is newer than the live attempt of this name, if any, which ends then."""
        known = self._store.find(home, request_id)
        if known is None:
            return True
        if attempt <= known.attempt:
            self._statistics.messages_dropped += 1
            return False
        self._endings.abort(known)
        return True

    def abort(self, home: Home, keys: list[RequestKey]) -> None:
        """End these now, without an output: the frontend knows. Unknown ones are counted.

        Blocks are free at once, or after the step in flight, whose token for them is dropped.
        """
        for key in keys:
            request = self._store.find_attempt(home, key.request_id, key.attempt)
            if request is None:
                self._statistics.aborts_unknown += 1
            else:
                self._endings.abort(request)

    def recall(self, home: Home, keys: list[RequestKey]) -> None:
        """Give back those of these that were never scheduled, and may so be computed elsewhere."""
        for key in keys:
            request = self._store.find_attempt(home, key.request_id, key.attempt)
            if request is not None and request.status in WAITING:
                self._put_end(self._endings.fail(request, RequestRecalled()))

    def grant(self, home: Home, grants: list[Grant]) -> None:
        """Raise credits; smaller ones than before and those of unknown requests do nothing."""
        for grant in grants:
            request = self._store.find_attempt(home, grant.request_id, grant.attempt)
            if request is not None:
                self._grant(request, grant.credit)

    def resync(
        self, home: Home, live: list[LiveRequest]
    ) -> tuple[list[RequestOutput], list[RequestKey]]:
        """Answer with the tokens to send again, and the requests that are unknown here.

        All else that runs for it is aborted, what has ended and is not asked for is forgotten. A
        request of which the frontend has more tokens than we is another: ended here, and unknown;
        so is one of which something is asked that is not here (`request_store.is_whole`).
        """
        self._drop_outputs(home)
        wanted = {entry.request_id: entry for entry in live}
        for request in self._store.live(home):
            entry = wanted.get(request.request_id)
            if entry is None or not is_continued(request, entry):
                self._endings.abort(request)
        self._store.forget_finished(home, keep=set(wanted))

        outputs: list[RequestOutput] = []
        unknown: list[RequestKey] = []
        for entry in wanted.values():
            key = RequestKey(entry.request_id, entry.attempt)
            running = self._store.find_attempt(home, key.request_id, key.attempt)
            if running is not None:
                self._grant(running, entry.credit)
                if entry.next_index < running.output_count:
                    outputs.append(running.output_from(entry.next_index))
                continue
            record = self._store.find_finished(home, key)
            if record is not None and record.has_from(entry.next_index):
                outputs.append(record.output_from(entry.next_index))
            else:
                unknown.append(key)
        return outputs, unknown

    def forget_home(self, home: Home) -> None:
        """Abort everything of a home that has been given up, and keep nothing for it."""
        for request in self._store.live(home):
            self._endings.abort(request)
        self._store.forget_finished(home, keep=set())
        self._drop_outputs(home)

    def take_grammar_orders(self) -> list[Request]:
        """Requests whose grammar the shell compiles, each once; see the next two methods."""
        orders, self.grammar_orders = self.grammar_orders, []
        return orders

    def grammar_compiled(self, request: Request, grammar: RequestGrammar) -> None:
        """The request may run, or has ended if the tokens of a replay are all that it allows."""
        if request.status is not RequestStatus.WAITING_FOR_GRAMMAR:
            return
        request.grammar = grammar
        request.move_to(RequestStatus.WAITING)
        self._scheduler.update(request)
        if request.output_count and grammar.is_terminated:
            self._put_end(self._endings.finish(request, COMPLETE))

    def grammar_refused(self, request: Request, error: EngineError) -> None:
        """The request ends with this error, alone."""
        if request.status is RequestStatus.WAITING_FOR_GRAMMAR:
            self._put_end(self._endings.fail(request, error))

    def start_drain(self) -> None:
        """Serve what is here and refuse every ADD from now on, with a retryable error."""
        self._draining = True

    # ---- steps

    def has_work(self) -> bool:
        """Whether a step is in flight, or `schedule` would return one."""
        return self._scheduler.has_work()

    def schedule(self, now: float) -> Step | None:
        """The next step, to be given to the workers and answered with `finish_step`, in order.

        None while enough are in flight, for want of work, and before `schedule_at`, as long as a
        step is in flight. What it does to requests that want events is in `take_outputs`, to be
        sent before the step brings them tokens.
        """
        in_flight = self._scheduler.in_flight
        if in_flight and self._pace.is_early(now):
            return None
        scheduled = self._scheduler.schedule()
        self._pending.put_events(self._scheduler)
        if scheduled is None:
            return None
        scheduled.begin(now)
        if len(in_flight) == 1:
            self._pace.begin(self._scheduler.step_times.predict(scheduled.chunk_tokens), now)
        return scheduled.step

    def schedule_at(self) -> float:
        """When to call `schedule` again if no result comes before; inf: not without one."""
        return self._pace.next_deadline()

    @property
    def newest_step(self) -> ScheduledStep:
        """The step that `schedule` returned last, with its requests."""
        return self._scheduler.in_flight[-1]

    @property
    def predicted_s(self) -> float:
        """Seconds that the oldest step in flight takes; 0: not known."""
        return self._pace.predicted_s

    def take_mask(self) -> Mask | None:
        """The mask of the oldest step in flight, once, if it has masked rows.

        What came before that step has been applied, so that its grammars stand where it samples.
        """
        in_flight = self._scheduler.in_flight
        if not in_flight or not in_flight[0].masked or in_flight[0].mask_taken:
            return None
        step = in_flight[0]
        step.mask_taken = True
        grammars = [None if request.is_finished else request.grammar for request in step.masked]
        return Mask(step.step.number, fill_masks(grammars, self.limits.vocab_size))

    def finish_step(self, result: StepResult, now: float) -> dict[Home, StepOutputs]:
        """Apply the sampled tokens: one message for each frontend that has any outputs.

        Raises `UnexpectedResult`; then nothing has changed.
        """
        in_flight = self._scheduler.in_flight
        step = in_flight[0] if in_flight else None  # every step is answered in order
        token_ids = match_result(step, result, vocab_size=self.limits.vocab_size)
        logprobs = match_logprobs(step, result)
        scheduled = self._scheduler.complete()
        times = self._scheduler.step_times
        times.learn(scheduled.chunk_tokens, result.compute_s)
        self._statistics.step_s_last = now - max(scheduled.began_s, self._finished_at_s)
        self._finished_at_s = now
        self._pace.begin(times.predict(in_flight[0].chunk_tokens) if in_flight else 0.0, now)
        outputs = self._applier.apply(scheduled, token_ids, logprobs, result.failed_rows, now=now)
        if self._windows:  # what is due before the next result comes must not wait for it
            self._applier.add_due(outputs, now + self._statistics.step_s_last)
        return self._messages(outputs)

    def undo_steps(self, times: int = 1) -> int:
        """The workers were lost, so many times; others take their place, which know no request.

        Steps in flight were never scheduled, what ran waits with all its tokens. Returns in how
        many losses a request was without a new token between.
        """
        undone = self._scheduler.undo_steps()
        self._pace = StepPace()
        self._statistics.worker_restarts += times
        self._pending.put_events(self._scheduler)
        return max((request.note_loss() for request in undone), default=0)

    def forget_blocks(self) -> None:
        """After `undo_steps`: the KV memory of the new workers is empty."""
        self._scheduler.kv_cache.pool.clear()

    def take_outputs(self) -> dict[Home, StepOutputs]:
        """Outputs that no step has brought: refusals, replays that had already ended, events.

        Without work, tokens that were held for later steps, too: there may be none.
        """
        outputs = self._pending.take()
        if self._windows and not self.has_work():
            self._applier.add_due(outputs, math.inf)
        return self._messages(outputs)

    # ---- for observers

    def unfinished_count(self) -> int:
        """Requests that have not ended; 0 means that a drain is complete."""
        return self._store.live_count()

    def statistics(self) -> EngineStatistics:
        """Counts as of now."""
        return self._statistics.snapshot(self._scheduler)

    def check_invariants(self) -> None:
        """Fails an assertion if any part contradicts itself or another one."""
        self._scheduler.check_invariants()
        self._store.check_invariants()
        requests = self._scheduler.running + self._scheduler.waiting.requests()
        assert len(requests) == self._store.live_count()
        for request in requests:
            assert self._store.find(request.home, request.request_id) is request
        self._statistics.check_invariants(len(requests))
        self._windows.check_invariants()

    # ---- inside

    def _cache_root(self, home: Home, request: AddRequest) -> bytes:
        """Prefixes are shared within a principal and a salt; the numerics id names the weights.

        Without a prefix cache only by the choices of one request. A prompt of embeddings has no ids
        that its blocks could be found by: it shares none.
        """
        if request.prompt_embeds is not None:
            return b""
        group = ""
        if not self.settings.prefix_cache:
            if not request.parent:
                return b""
            group = f"{home!r} {request.parent}"
        return root_hash(self.ready.numerics_id, request.principal, request.cache_salt, group)

    def _put_end(self, record: FinishedRequest) -> None:
        """How it ended, without the tokens that its frontend has."""
        self._pending.put(record.home, record.output_from(len(record.output_token_ids)))

    def _drop_outputs(self, home: Home) -> None:
        """Drop unsent outputs, and windows: the link may have lost what was sent."""
        self._pending.drop(home)
        self._windows.drop(home)

    def _messages(self, outputs: dict[Home, FrontendOutputs]) -> dict[Home, StepOutputs]:
        """A message for each frontend."""
        number = self._scheduler.step_number
        return {home: each.message(number) for home, each in outputs.items()}

    def _grant(self, request: Request, credit: int | None) -> None:
        request.grant(credit)
        self._scheduler.update(request)
