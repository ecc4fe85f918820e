"""The engine's brain: requests in, steps out, sampled tokens in, outputs out.

Sans-IO: no clock, links, workers or tasks. The shell (`engine.step_loop`) calls, in its loop:

    while core.has_work():
        while step := core.schedule(now): ...        # -> workers; one computes, one waits
        mask = core.take_mask()                      # -> workers, if the oldest step has one
        ... every message that arrives meanwhile: add, abort, grant, resync
        for frontend, outputs in core.finish_step(result, now).items(): ...   # -> frontends
    for frontend, outputs in core.take_outputs().items(): ...     # refused or ended without a step

A *frontend* is any hashable name the shell gives. It is the frontend's place (its rank), not its
incarnation, where a successor shall be able to adopt the requests with a RESYNC.

A message about a request that is unknown, or about another attempt of it, changes nothing. No
input from a frontend raises: a bad request gets an ERROR output, alone. What a worker says must be
right, as all workers are ours: `UnexpectedResult` ends the engine.
"""

import math

import attrs

from ..config import EngineSettings
from ..embeddings import EmbeddingLimits
from ..errors import EngineDraining, EngineError, InvalidParameter
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
from .announcements import Announcements
from .block_hash import root_digest
from .endings import Endings
from .grammar import RequestGrammar, fill_masks
from .grammar_orders import GrammarOrder, GrammarOrders
from .output_windows import OutputWindows
from .queue import ORDERS
from .request import Frontend, Request, RequestStatus, make_request, status_without_kv
from .request_store import RequestStore
from .result_check import match_logprobs, match_result
from .scheduler import Scheduler, make_scheduler
from .statistics import Statistics
from .step_pace import StepPace
from .stop_check import COMPLETE, check_stop
from .token_applier import TokenApplier
from .validation import RequestLimits, check_request


@attrs.define(eq=False)
class EngineCore:
    """See the module's first paragraph; `settings` and the workers' `ready` fix its limits.

    At most one step is in flight (scheduled and not finished). Raises `InvalidParameter` if the
    workers have no room for a single block.
    """

    settings: EngineSettings
    ready: WorkerReady

    limits: RequestLimits = attrs.field(init=False)
    _scheduler: Scheduler = attrs.field(init=False)
    _store: RequestStore = attrs.field(factory=RequestStore, init=False)
    # Outputs that no step brings; the shell takes them.
    _announcements: Announcements = attrs.field(factory=Announcements, init=False)
    # What the shell compiles, and answers by `grammar_compiled` or `grammar_refused`.
    grammars: GrammarOrders = attrs.field(init=False)
    _statistics: Statistics = attrs.field(factory=Statistics, init=False)
    _endings: Endings = attrs.field(init=False)
    _applier: TokenApplier = attrs.field(init=False)
    # Tokens that need not be told at once.
    _windows: OutputWindows = attrs.field(factory=OutputWindows, init=False)
    _arrivals: int = attrs.field(default=0, init=False)
    # When the last step was finished: the next one began to compute then, or was scheduled later.
    _finished_at_s: float = attrs.field(default=0.0, init=False)
    _pace: StepPace = attrs.field(factory=StepPace, init=False)
    _draining: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        settings, ready = self.settings, self.ready
        self.grammars = GrammarOrders(self._store)
        if ready.kv_blocks < 1:
            raise InvalidParameter("kv_blocks", "must be at least 1: there is no memory for any")
        lengths = [ready.max_model_len, ready.kv_blocks * settings.block_tokens]
        if settings.max_model_len:
            lengths.append(settings.max_model_len)
        self.limits = RequestLimits(
            max_model_len=min(lengths),
            vocab_size=ready.vocab_size,
            max_logprobs=settings.max_logprobs,
            embeddings=EmbeddingLimits(ready.hidden_size, settings.max_num_batched_tokens),
        )
        self._scheduler = make_scheduler(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            unwatched_tokens=settings.step_tokens_max,
            kv_blocks=ready.kv_blocks,
            block_tokens=settings.block_tokens,
            steps_in_flight_max=settings.steps_in_flight,
            step_time_target_s=settings.step_time_target_s,
            order=ORDERS[settings.scheduling_policy],
        )
        self._endings = Endings(self._scheduler, self._store, self._statistics, self._announcements)
        self._applier = TokenApplier(self._endings, self._statistics, self._windows)

    @property
    def max_model_len(self) -> int:
        """Tokens, prompt and output, of the longest request: the model's, or less for want of KV.

        READY must tell frontends this one, so that they refuse what this engine would refuse.
        """
        return self.limits.max_model_len

    # ---- frontend -> engine

    def add(self, frontend: Frontend, request: AddRequest) -> None:
        """Take a request in. One that cannot be served gets an ERROR output (`take_outputs`).

        A newer attempt ends the one that lives; the same or an older one is dropped and counted.
        A replay that already meets a stop rule finishes at once (`take_outputs`).
        """
        if not self._takes_place(frontend, request.request_id, request.attempt):
            return
        try:
            if self._draining:
                raise EngineDraining()
            check_request(request, self.limits)
        except EngineError as error:
            key = RequestKey(request.request_id, request.attempt)
            self._endings.refuse(frontend, key, error, request.output_token_ids)
            return
        self._arrivals += 1
        added = make_request(
            frontend,
            request,
            arrival=self._arrivals,
            max_model_len=self.max_model_len,
            cache_root=self._cache_root(frontend, request),
        )
        self._statistics.requests_added += 1
        self._statistics.prompt_tokens += added.prompt_tokens
        self._store.insert(added)
        self._scheduler.add(added)
        stop = check_stop(added)
        if stop is not None:
            record = self._endings.finish(added, stop)
            self._announcements.put(frontend, record.output_from(added.output_count))
            return
        self.grammars.order(added)
        if added.events:
            self._announcements.note_arrival(added)

    def refuse(self, frontend: Frontend, key: RequestKey, error: EngineError) -> None:
        """As `add`, of one of which no more than this could be read."""
        if self._takes_place(frontend, key.request_id, key.attempt):
            self._endings.refuse(frontend, key, error)

    def _takes_place(self, frontend: Frontend, request_id: str, attempt: int) -> bool:
        """Whether it is no attempt of old; then one that lives under its name is ended."""
        known = self._store.find(frontend, request_id)
        if known is None:
            return True
        if attempt <= known.attempt:
            self._statistics.messages_dropped += 1
            return False
        self._endings.abort(known)
        return True

    def abort(self, frontend: Frontend, keys: list[RequestKey]) -> None:
        """End these now, without an output: who aborts knows. Unknown ones are counted.

        Blocks are free at once, or after the step in flight, whose token for them is dropped.
        """
        for key in keys:
            request = self._store.find_attempt(frontend, key.request_id, key.attempt)
            if request is None:
                self._statistics.aborts_unknown += 1
            else:
                self._endings.abort(request)

    def grant(self, frontend: Frontend, grants: list[Grant]) -> None:
        """Raise credits; smaller ones than before and those of unknown requests do nothing."""
        for grant in grants:
            request = self._store.find_attempt(frontend, grant.request_id, grant.attempt)
            if request is not None:
                self._grant(request, grant.credit)

    def resync(
        self, frontend: Frontend, live: list[LiveRequest]
    ) -> tuple[list[RequestOutput], list[RequestKey]]:
        """All that this frontend still wants: tokens to send again, and what is unknown here.

        Whatever else runs for it is aborted, and what has ended and is not asked for is forgotten.
        Outputs that `take_outputs` still holds for it are in the answer instead. A request of
        which the frontend has more tokens than we is not the same one: ended here, and unknown.
        """
        self._announcements.drop(frontend)
        self._windows.drop(frontend)
        wanted = {entry.request_id: entry for entry in live}
        for request in self._store.live(frontend):
            entry = wanted.get(request.request_id)
            if entry is None or not _is_continued(request, entry):
                self._endings.abort(request)
        self._store.forget_finished(frontend, keep=set(wanted))

        outputs: list[RequestOutput] = []
        unknown: list[RequestKey] = []
        for entry in wanted.values():
            key = RequestKey(entry.request_id, entry.attempt)
            running = self._store.find_attempt(frontend, key.request_id, key.attempt)
            if running is not None:
                self._grant(running, entry.credit)
                if entry.next_index < running.output_count:
                    outputs.append(running.output_from(entry.next_index))
                continue
            record = self._store.find_finished(frontend, key)
            if record is not None and 0 <= entry.next_index <= len(record.output_token_ids):
                outputs.append(record.output_from(entry.next_index))
            else:
                unknown.append(key)
        return outputs, unknown

    def forget_frontend(self, frontend: Frontend) -> None:
        """The frontend has been given up: abort all it has here, keep nothing for it."""
        for request in self._store.live(frontend):
            self._endings.abort(request)
        self._store.forget_finished(frontend, keep=set())
        self._announcements.drop(frontend)
        self._windows.drop(frontend)

    def remote_kv_arrived(self, frontend: Frontend, key: RequestKey, computed_tokens: int) -> None:
        """The KV of the request's first `computed_tokens` tokens is at the workers: it may run.

        It holds no blocks while it waits: the transfer keeps what has come until the request's
        `NewRow` names blocks and `computed_tokens`. At least one token is always computed here.
        A no-op for a request that is unknown or does not wait for it (it may have been aborted).
        """
        request = self._store.find_attempt(frontend, key.request_id, key.attempt)
        if request is None or request.status is not RequestStatus.WAITING_FOR_REMOTE_KV:
            return
        request.computed_tokens = max(0, min(computed_tokens, len(request.token_ids) - 1))
        request.move_to(status_without_kv(request.sampling))
        self._scheduler.update(request)
        self.grammars.order(request)

    def remote_kv_failed(self, frontend: Frontend, key: RequestKey) -> None:
        """The KV will not come: the request is computed here from its first token."""
        self.remote_kv_arrived(frontend, key, 0)

    def grammar_compiled(self, order: GrammarOrder, grammar: RequestGrammar) -> None:
        """The request may run, or has ended if the tokens of a replay are all that it allows."""
        request = self.grammars.waiting(order)
        if request is None:
            return
        request.grammar = grammar
        request.move_to(RequestStatus.WAITING)
        self._scheduler.update(request)
        if request.output_count and grammar.is_terminated:
            record = self._endings.finish(request, COMPLETE)
            self._announcements.put(request.frontend, record.output_from(request.output_count))

    def grammar_refused(self, order: GrammarOrder, error: EngineError) -> None:
        """The request ends with this error, alone."""
        request = self.grammars.waiting(order)
        if request is not None:
            record = self._endings.fail(request, error)
            self._announcements.put(request.frontend, record.output_from(request.output_count))

    def start_drain(self) -> None:
        """Serve what is here and refuse every ADD from now on, with a retryable error."""
        self._draining = True

    # ---- steps

    def has_work(self) -> bool:
        """Whether a step is in flight, or `schedule` would return one."""
        return self._scheduler.has_work()

    def schedule(self, now: float) -> Step | None:
        """The next step, to be given to the workers and answered with `finish_step`, in order.

        None while enough are in flight (`EngineSettings.steps_in_flight`), for want of work, and
        before `schedule_at`, as long as a step is in flight.
        What it does to requests that want events is in `take_outputs`, to be told before the step
        brings them tokens.
        """
        in_flight = self._scheduler.in_flight
        if in_flight and self._pace.holds(now):
            return None
        scheduled = self._scheduler.schedule()
        self._announcements.put_events(self._scheduler)
        if scheduled is None:
            return None
        scheduled.began_s = now
        if len(in_flight) == 1:
            self._pace.begin(self._scheduler.predict(scheduled), now)
        return scheduled.step

    def schedule_at(self) -> float:
        """When to call `schedule` again if no result comes before; inf: not without one."""
        return self._pace.next_deadline()

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

    def finish_step(self, result: StepResult, now: float) -> dict[Frontend, StepOutputs]:
        """Apply the sampled tokens: one message for each frontend that has any news.

        Raises `UnexpectedResult`; then nothing has changed.
        """
        in_flight = self._scheduler.in_flight
        step = in_flight[0] if in_flight else None  # every step is answered in order
        token_ids = match_result(step, result, vocab_size=self.limits.vocab_size)
        logprobs = match_logprobs(step, result)
        scheduled = self._scheduler.complete()
        self._scheduler.learn(scheduled, result.compute_s)
        self._statistics.step_s_last = now - max(scheduled.began_s, self._finished_at_s)
        self._finished_at_s = now
        self._pace.begin(self._scheduler.predict(in_flight[0]) if in_flight else 0.0, now)
        news = self._applier.apply(scheduled, token_ids, logprobs, result.failed_rows, now=now)
        if self._windows:  # what is due before the next result comes must not wait for it
            self._applier.tell_due(news, now + self._statistics.step_s_last)
        return self._statistics.messages(news, self._scheduler)

    def take_outputs(self) -> dict[Frontend, StepOutputs]:
        """Outputs that no step has brought: refusals, replays that had already ended, events.

        Without work, what was to wait for later steps, too: there may be none.
        """
        news = self._announcements.take()
        if self._windows and not self.has_work():
            self._applier.tell_due(news, math.inf)
        return self._statistics.messages(news, self._scheduler) if news else {}

    # ---- looking on

    def unfinished_count(self) -> int:
        """Requests that have not ended; 0 means that a drain is complete."""
        return self._store.live_count()

    def statistics(self) -> EngineStatistics:
        """All counts, as of now."""
        return self._statistics.snapshot(self._scheduler)

    def check_invariants(self) -> None:
        """Fails an assertion if any part contradicts itself or another one."""
        self._scheduler.check_invariants()
        self._store.check_invariants()
        requests = self._scheduler.running + self._scheduler.waiting.requests()
        assert len(requests) == self._store.live_count()
        for request in requests:
            assert self._store.find(request.frontend, request.request_id) is request
        self._statistics.check_invariants(len(requests))
        self._windows.check_invariants()

    # ---- inside

    def _cache_root(self, frontend: Frontend, request: AddRequest) -> bytes:
        """Prefixes are shared within a principal and a salt; the numerics id names the weights.

        Without a prefix cache only by the choices of one request. Of a prompt of embeddings there
        are no ids that could name its blocks: it shares none.
        """
        if request.prompt_embeds is not None:
            return b""
        group = ""
        if not self.settings.prefix_cache:
            if not request.parent:
                return b""
            group = f"{frontend!r} {request.parent}"
        return root_digest(self.ready.numerics_id, request.principal, request.cache_salt, group)

    def _grant(self, request: Request, credit: int | None) -> None:
        request.grant(credit)
        self._scheduler.update(request)


def _is_continued(request: Request, entry: LiveRequest) -> bool:
    """Whether what the frontend wants is what we run, as far as it can be told."""
    return request.attempt == entry.attempt and 0 <= entry.next_index <= request.output_count
