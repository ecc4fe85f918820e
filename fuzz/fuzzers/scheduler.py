"""Fuzzes the engine core and its scheduler on the worker that checks every step.

Invariant: each request gets exactly its tokens and one end, whatever is aborted, paused, preempted,
replayed or lost with a worker; and with credit for all of them all end, and every block is free.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence

import attrs

from ...engine.config import EngineSettings
from ...engine.core.engine_core import EngineCore
from ...engine.messages import (
    AddRequest,
    FinishReason,
    Grant,
    LiveRequest,
    RequestKey,
    RequestOutput,
    StepOutputs,
)
from ...engine.sampling_params import SamplingParams
from ...engine.step_messages import Step, StepResult, WorkerReady
from ..doubles.checking_worker import (
    HIDDEN_SIZE,
    CheckingWorker,
    WantedRequest,
    embedded,
    make_wanted,
)
from ..doubles.scheduler_events import (
    VOCAB,
    Act,
    Add,
    Event,
    Forget,
    Lose,
    Resync,
    Run,
    Sizes,
    draw,
)
from ..fuzzer import Fuzzer
from .scheduler_faults import FAULTS, MakeCore

MODEL_LEN = 20
BLOCK_TOKENS = 3
# Far more than a request's tokens times the requests that one round can add.
STEPS_TO_THE_END_MAX = 5000
# Time from one call to the next, and what a token takes, so that some steps are waited for.
HALF_STEP_S = 0.35
TOKEN_S = 0.1


@attrs.define(eq=False)
class _World:
    """Engine core with its worker, and what each frontend wants of it."""

    core: EngineCore
    worker: CheckingWorker
    # The newest attempt of each request, in the order in which they came.
    wanted: dict[str, WantedRequest] = attrs.field(factory=dict)
    # Every attempt by its number, of which none comes twice.
    by_attempt: dict[int, WantedRequest] = attrs.field(factory=dict)
    # In flight, the oldest first; bounded by the core.
    steps: deque[Step] = attrs.field(factory=deque)
    # Seconds; each half step takes some.
    now: float = 0.0
    # Requests, by id, whose rows are to fail.
    failing: set[str] = attrs.field(factory=set)
    reached: Counter[str] = attrs.field(factory=Counter)

    def apply(self, event: Event) -> None:
        match event:
            case Add():
                self.add(event)
            case Act() if self.wanted:
                self.act(event, list(self.wanted.values())[event.which % len(self.wanted)])
            case Resync():
                self.resync(event)
            case Forget(frontend=frontend):
                self.core.forget_home(frontend)
                for wanted in self.wanted.values():
                    wanted.aborted |= wanted.frontend == frontend
                self.reached["forgotten"] += 1
            case Lose():
                self.lose()
            case Run(halves=halves, bits=bits):
                for number in range(halves):
                    self.half_step(ahead=bool(bits >> number & 1))
        self.hear_all(self.core.take_outputs())
        self.core.check_invariants()

    def add(self, event: Add) -> None:
        parent = f"p{len(self.wanted)}" if event.choices > 1 else ""
        self.reached["embedded"] += event.is_embedded
        for choice in range(event.choices):
            number = len(self.wanted) + 1
            add = AddRequest(
                request_id=f"r{number}",
                attempt=1,
                prompt_token_ids=list(event.prompt[: self.core.limits.max_model_len - 1]),
                sampling=SamplingParams(
                    max_tokens=event.max_tokens,
                    min_tokens=event.min_tokens,
                    seed=number,
                    stop_token_ids=event.stops,
                    ignore_eos=event.ignore_eos,
                ),
                eos_token_ids=list(event.eos),
                credit=event.credit,
                priority=event.priority,
                principal=event.frontend,
                choice=choice,
                parent=parent,
                merge_s=event.merge_s,
                in_columns=event.in_columns,
                admitted_ns=7 * number % 5,  # not the order in which they arrive
            )
            self.send(event.frontend, embedded(add) if event.is_embedded else add)

    def send(self, frontend: str, add: AddRequest) -> None:
        add = attrs.evolve(add, attempt=len(self.by_attempt) + 1)
        wanted = self.by_attempt[add.attempt] = make_wanted(
            frontend, add, model_len=self.core.limits.max_model_len, vocab_size=VOCAB
        )
        wanted.received, wanted.credit = len(add.output_token_ids), add.credit
        self.wanted[add.request_id] = wanted
        self.core.add(frontend, add)

    def act(self, event: Act, wanted: WantedRequest) -> None:
        key = wanted.key
        stale = RequestKey(key.request_id, key.attempt - 1)
        self.core.abort(wanted.frontend, [stale])
        self.core.grant(wanted.frontend, [Grant(stale.request_id, stale.attempt, None)])
        match event.what:
            case "abort":
                self.reached["aborted in a step"] += bool(self.steps) and wanted.is_live
                self.core.abort(wanted.frontend, [key])
                wanted.aborted = True
            case "grant":
                credit = None if event.number == 0 else event.number
                self.grant(wanted, credit)
            case "fail":
                self.failing.add(key.request_id)
            case "replay":
                self.failing.discard(key.request_id)
                self.replay(wanted, event.number)

    def replay(self, wanted: WantedRequest, count: int) -> None:
        """Send it again, with so many of its tokens."""
        wanted.aborted = True
        kept = wanted.tokens[:count]
        self.send(wanted.frontend, attrs.evolve(wanted.add, output_token_ids=kept))
        self.reached["replayed"] += 1

    def grant(self, wanted: WantedRequest, credit: int | None) -> None:
        if credit is None or wanted.credit is None:
            wanted.credit = None
        else:
            wanted.credit = max(wanted.credit, credit)
        key = wanted.key
        self.core.grant(wanted.frontend, [Grant(key.request_id, key.attempt, credit)])

    def resync(self, event: Resync) -> None:
        live, bits = [], event.bits
        for wanted in self.wanted.values():
            if wanted.frontend != event.frontend or wanted.aborted:
                continue
            bits, is_wanted, is_behind = bits >> 2, bits & 1, bits >> 1 & 1
            if not is_wanted:
                wanted.aborted = True
                continue
            wanted.received, wanted.ended = wanted.received // (1 + is_behind), False
            key = wanted.key
            live.append(LiveRequest(key.request_id, key.attempt, wanted.received, wanted.credit))
        outputs, unknown = self.core.resync(event.frontend, live)
        for wanted in [each for each in self.wanted.values() if each.key in unknown]:
            came_with = len(wanted.add.output_token_ids)
            assert wanted.received < came_with, "so few are always remembered"
            self.replay(wanted, wanted.received)
        for output in outputs:
            self.hear(output)
            self.reached["sent again"] += 1
        for wanted in self.wanted.values():
            if wanted.frontend == event.frontend:
                self.compare(wanted)

    def compare(self, wanted: WantedRequest) -> None:
        """Nothing is on its way to the frontend: both sides have the same."""
        key = wanted.key
        request = self.core._store.find_attempt(wanted.frontend, key.request_id, key.attempt)
        assert wanted.is_live == (request is not None)
        assert request is None or request.output_count == wanted.received

    def lose(self) -> None:
        """The next worker knows no row; each second one has no KV either."""
        live = any(
            not one.is_finished for s in self.core._scheduler.in_flight for one in s.requests
        )
        self.reached[f"lost {len(self.steps)} steps"] += 1
        self.steps.clear()
        assert bool(self.core.undo_steps()) == live
        is_kept = self.core.statistics().worker_restarts % 2 == 0
        if not is_kept:
            self.core.forget_blocks()
        self.worker = self.worker.successor(self.core.statistics().step, is_kept=is_kept)

    def half_step(self, *, ahead: bool) -> None:
        """Schedule a step or finish the oldest; `ahead` prefers the first."""
        if (ahead or not self.steps) and self.schedule():
            return
        if self.steps:
            step = self.steps.popleft()
            seconds = 0.0
            if self.core.settings.step_time_target_s:  # with a pause now and then
                seconds = TOKEN_S * (sum(step.token_counts) + 60.0 * (step.number % 7 == 0))
            result = attrs.evolve(self.worker.execute(step), compute_s=seconds)
            self.finish(self.fail_rows(result) if self.failing else result)
            self.core.check_invariants()

    def schedule(self) -> bool:
        has_work = self.core.has_work()
        scheduler = self.core._scheduler
        runnable = [one for one in scheduler.running if one.total_tokens < one.tokens_max]
        preemptions = scheduler.preemptions
        self.now += HALF_STEP_S
        step = self.core.schedule(self.now)
        self.core.check_invariants()
        if self.core.schedule_at() < math.inf:
            assert step is None
            assert self.steps
            assert self.core.schedule_at() > self.now
            self.reached["held back"] += 1
        waiting = scheduler.waiting.requests()
        self.reached["waited for a sibling"] += any(one.waits_for_sibling for one in waiting)
        if step is None:
            assert self.steps or not has_work
            return False
        assert has_work
        if not self.steps:
            assert not runnable or runnable[0].row in step.rows, "the oldest that can run does not"
            if scheduler.preemptions == preemptions:
                assert {one.row for one in runnable} <= set(step.rows), "one is left out"
        self.check_order(step)
        self.steps.append(step)
        self.reached["overlapped"] += len(self.steps) > 1
        return True

    def check_order(self, step: Step) -> None:
        """Requests of each principal were admitted in the queue's order, but for short ones."""
        scheduler = self.core._scheduler
        step_tokens = scheduler.max_num_batched_tokens
        rows, turn = {new.row for new in step.new}, scheduler.waiting.turn
        waiting = [one for one in scheduler.waiting.requests() if one.is_schedulable]
        for one in scheduler.running:
            if one.row in rows:
                is_short = len(one.token_ids) <= step_tokens
                rivals = [
                    other
                    for other in waiting
                    if other.principal == one.principal
                    and not (is_short and other.total_tokens > step_tokens)
                ]
                assert all(turn(one) < turn(other) for other in rivals), "overtaken"

    def fail_rows(self, result: StepResult) -> StepResult:
        """The same without the tokens of those that are to fail."""
        names = {r.row: r.request_id for r in self.core._scheduler.in_flight[0].sampling}
        failed = [row for row in result.rows if names[row] in self.failing]
        kept = [
            (row, token_id)
            for row, token_id in zip(result.rows, result.token_ids, strict=True)
            if row not in failed
        ]
        return attrs.evolve(
            result,
            rows=[row for row, _ in kept],
            token_ids=[token_id for _, token_id in kept],
            failed_rows=[(row, "it has to") for row in failed],
        )

    def finish(self, result: StepResult) -> None:
        self.hear_all(self.core.finish_step(result, self.now))
        windows = self.core._windows._windows.values()
        assert all(window.due_s > self.now for window in windows), "waits beyond its window"

    def hear_all(self, messages: dict[object, StepOutputs]) -> None:
        for frontend, message in messages.items():
            columns = zip(message.attempts, message.indices, message.token_ids, strict=True)
            for attempt, index, token_id in columns:
                wanted = self.by_attempt[attempt]
                assert wanted.add.in_columns
                output = RequestOutput(
                    request_id=wanted.add.request_id,
                    attempt=attempt,
                    first_index=index,
                    token_ids=[token_id],
                )
                self.hear(output)
                self.reached["in columns"] += 1
            for output in message.outputs:
                assert self.wanted[output.request_id].frontend == frontend
                self.hear(output)

    def hear(self, output: RequestOutput) -> None:
        wanted = self.wanted[output.request_id]
        assert wanted.add.attempt == output.attempt
        if output.finish_reason is FinishReason.ERROR:
            assert output.request_id in self.failing
            assert "it has to" in output.error
            output = attrs.evolve(output, finish_reason=None)
            wanted.hear(output)
            wanted.aborted = True
            self.reached["failed alone"] += 1
            return
        wanted.hear(output)
        self.reached["merged"] += len(output.token_ids) > 1
        if output.finish_reason is not None:
            self.reached[f"ended: {output.finish_reason}"] += 1

    def end(self) -> None:
        """End all, with credit for all; then nothing is held."""
        self.failing.clear()
        for wanted in self.wanted.values():
            if wanted.is_live:
                self.grant(wanted, None)
        for _ in range(STEPS_TO_THE_END_MAX):
            if not self.core.has_work():
                break
            self.half_step(ahead=True)
        assert all(not wanted.is_live for wanted in self.wanted.values()), "a request waits on"
        statistics = self.core.statistics()
        assert statistics.kv_blocks_free == statistics.kv_blocks
        assert self.core.unfinished_count() == 0
        assert statistics.requests_aborted == sum(statistics.aborts_after)
        self.reached["aborted within two steps"] += sum(statistics.aborts_after[1:])
        self.reached["preempted"] += statistics.preemptions
        self.reached["tokens hit"] += statistics.prefix_hits
        self.reached["shared a block"] += self.worker.shared_most > 1


def check(events: Sequence[Event], make_core: MakeCore) -> Counter[str]:
    """Run all events, then the end of all requests."""
    sizes = events[0] if events and isinstance(events[0], Sizes) else Sizes()
    given = attrs.asdict(sizes)
    kv_blocks = given.pop("kv_blocks")
    settings = EngineSettings(model="none", block_tokens=BLOCK_TOKENS, **given)
    ready = WorkerReady(
        kv_blocks=kv_blocks,
        max_model_len=MODEL_LEN,
        vocab_size=VOCAB,
        numerics_id="none",
        bitwise=True,
        hidden_size=HIDDEN_SIZE,
    )
    worker = CheckingWorker(kv_blocks, BLOCK_TOKENS, sizes.max_num_seqs, VOCAB)
    world = _World(make_core(settings, ready), worker)
    for event in events:
        world.apply(event)
    world.end()
    return world.reached


FUZZER = Fuzzer[Event, MakeCore](
    name="scheduler",
    invariant="each request gets exactly its tokens and one end, and every block comes back",
    draw=draw,
    check=check,
    target=EngineCore,
    faults=FAULTS,
    round_events=60,
    smoke_rounds=100,
    reaches=frozenset(
        {
            *("ended: stop", "ended: length", "preempted", "replayed"),
            *("sent again", "aborted in a step"),
            *("tokens hit", "shared a block", "overlapped", "aborted within two steps"),
            *("waited for a sibling", "failed alone", "held back", "embedded"),
            *("merged", "in columns", "forgotten"),
            *("lost 0 steps", "lost 1 steps", "lost 2 steps"),
        }
    ),
)
