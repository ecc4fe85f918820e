"""Fuzzes the engine core and its scheduler on the worker that checks every step.

Invariant: each request gets exactly its tokens and one end, whatever is aborted, paused, preempted
or replayed; and with credit for everybody everybody ends, and every block is free.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from random import Random

import attrs

from ...engine.config import EngineSettings
from ...engine.core.engine_core import EngineCore
from ...engine.messages import (
    AddRequest,
    FinishReason,
    Grant,
    LiveRequest,
    RequestOutput,
    StepOutputs,
)
from ...engine.sampling_params import SamplingParams
from ...engine.step_messages import Step, StepResult, WorkerReady
from ..doubles.checking_worker import CheckingWorker
from ..doubles.wanted_request import HIDDEN_SIZE, WantedRequest, embedded, make_wanted
from ..fuzzer import Fuzzer
from .scheduler_faults import FAULTS, MakeCore

VOCAB = 9  # small, so that stop tokens are met often
MODEL_LEN = 20
BLOCK_TOKENS = 3
FRONTENDS = ("f0", "f1")
# Far more than a request's tokens times the requests that one round can add.
STEPS_TO_THE_END_MAX = 5000
# A token is told to take a second, so that some steps are waited for.
HALF_STEP_S = 5.0


@attrs.frozen
class Sizes:
    """The first event of a round: how little room there is."""

    kv_blocks: int = 4
    max_num_seqs: int = 3
    max_num_batched_tokens: int = 5
    steps_in_flight: int = 2
    prefix_cache: bool = True
    scheduling_policy: str = "priority"
    step_time_target_s: float = 0.0


@attrs.frozen
class Add:
    """A new request, or so many choices of one; `is_embedded`: its prompt is embeddings."""

    frontend: str
    prompt: tuple[int, ...]
    max_tokens: int | None
    min_tokens: int
    eos: tuple[int, ...]
    stops: tuple[int, ...]
    ignore_eos: bool
    credit: int | None
    priority: int = 0
    choices: int = 1
    merge_s: float = 0.0
    is_embedded: bool = False


@attrs.frozen
class Act:
    """`abort`, `grant`, `replay` or `fail` of whichever request.

    `number` is a credit or what is kept. What fails does so in the worker, at its next token.
    """

    what: str
    which: int
    number: int


@attrs.frozen
class Resync:
    """A link was cut: what is lost and what is no longer wanted, bit by bit."""

    frontend: str
    bits: int


@attrs.frozen
class Run:
    """So many half steps: one is scheduled where its bit is set, the oldest finished if not.

    Each is the other where the one is not possible.
    """

    halves: int
    bits: int = 0


Event = Sizes | Add | Act | Resync | Run


def draw(chance: Random, count: int) -> list[Event]:
    """A small room, and more requests than it holds."""
    sizes = Sizes(
        kv_blocks=chance.randint(2, 9),
        max_num_seqs=chance.randint(1, 4),
        max_num_batched_tokens=chance.randint(1, 9),
        steps_in_flight=chance.choice((1, 2, 2)),
        prefix_cache=chance.random() < 0.7,
        scheduling_policy=chance.choice(("priority", "fcfs")),
        step_time_target_s=chance.choice((0.0, 1.0, 5.0)),
    )
    return [sizes, *(_draw_event(chance) for _ in range(count - 1))]


def _draw_event(chance: Random) -> Event:
    what = chance.random()
    if what < 0.3:
        return Run(chance.randint(1, 12), chance.getrandbits(12))
    if what < 0.55:
        return _draw_add(chance)
    if what < 0.57:
        return Resync(chance.choice(FRONTENDS), chance.getrandbits(40))
    acts = ("abort", "grant", "grant", "replay", "replay", "fail")
    return Act(chance.choice(acts), chance.randrange(60), chance.randrange(20))


def _draw_add(chance: Random) -> Add:
    def tokens(least: int, most: int) -> tuple[int, ...]:
        return tuple(chance.randrange(VOCAB) for _ in range(chance.randint(least, most)))

    # Prompts are the same for some tokens, so that there is something to share.
    common = tuple(range(chance.choice((0, 0, 3, 6, 8))))
    max_tokens = chance.choice((None, 1, 4, 12))
    min_tokens = chance.randrange(5) if chance.random() < 0.3 else 0
    return Add(
        frontend=chance.choice(FRONTENDS),
        prompt=common + tokens(not common, 9 - len(common)),
        max_tokens=max_tokens,
        min_tokens=min_tokens if max_tokens is None else min(min_tokens, max_tokens),
        eos=tokens(0, 1),
        stops=tokens(0, 1) if chance.random() < 0.3 else (),
        ignore_eos=chance.random() < 0.5,
        credit=chance.choice((None, None, 0, 2, 6)),
        priority=chance.choice((0, 0, 0, -1, 1)),
        choices=chance.choice((1, 1, 1, 1, 2, 3)),
        merge_s=chance.choice((0.0, 0.0, 0.5, 2.0)),
        is_embedded=chance.random() < 0.2,
    )


@attrs.define(eq=False)
class _World:
    """One engine core, its worker, and what each frontend wants of it."""

    core: EngineCore
    worker: CheckingWorker
    # The newest attempt of each request, in the order in which they came.
    wanted: dict[str, WantedRequest] = attrs.field(factory=dict)
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
                prompt_token_ids=list(event.prompt[: self.core.max_model_len - 1]),
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
                choice=choice,
                parent=parent,
                merge_s=event.merge_s,
            )
            self.send(event.frontend, embedded(add) if event.is_embedded else add)

    def send(self, frontend: str, add: AddRequest) -> None:
        wanted = make_wanted(frontend, add, model_len=self.core.max_model_len, vocab_size=VOCAB)
        wanted.received, wanted.credit = len(add.output_token_ids), add.credit
        self.wanted[add.request_id] = wanted
        self.core.add(frontend, add)

    def act(self, event: Act, wanted: WantedRequest) -> None:
        key = wanted.key
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
                wanted.aborted = True
                self.failing.discard(key.request_id)
                kept = wanted.tokens[: event.number]
                attempt = key.attempt + 1
                again = attrs.evolve(wanted.add, attempt=attempt, output_token_ids=kept)
                self.send(wanted.frontend, again)
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
        assert not unknown, "so few are always remembered"
        for output in outputs:
            self.hear(output)
            self.reached["sent again"] += 1

    def half_step(self, *, ahead: bool) -> None:
        """Schedule a step or finish the oldest; `ahead` prefers the first."""
        if (ahead or not self.steps) and self.schedule():
            return
        if self.steps:
            step = self.steps.popleft()
            seconds = 0.0
            if self.core.settings.step_time_target_s:  # with a pause now and then
                seconds = sum(step.token_counts) + 60.0 * (step.number % 7 == 0)
            result = attrs.evolve(self.worker.execute(step), compute_s=seconds)
            self.finish(self.fail_rows(result) if self.failing else result)
            self.core.check_invariants()

    def schedule(self) -> bool:
        has_work = self.core.has_work()
        self.now += HALF_STEP_S
        step = self.core.schedule(self.now)
        self.core.check_invariants()
        if self.core.schedule_at() < math.inf:
            assert step is None
            assert self.steps
            assert self.core.schedule_at() > self.now
            self.reached["held back"] += 1
        waiting = self.core._scheduler.waiting.requests()
        self.reached["waited for a sibling"] += any(one.waits_for_sibling for one in waiting)
        if step is None:
            assert self.steps or not has_work
            return False
        assert has_work
        self.steps.append(step)
        self.reached["overlapped"] += len(self.steps) > 1
        return True

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

    def hear_all(self, messages: dict[object, StepOutputs]) -> None:
        for message in messages.values():
            for output in message.outputs:
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
        self.reached["told together"] += len(output.token_ids) > 1
        if output.finish_reason is not None:
            self.reached[f"ended: {output.finish_reason}"] += 1

    def end(self) -> None:
        """With credit for everybody, everybody ends; then nothing is held."""
        self.failing.clear()
        for wanted in self.wanted.values():
            if wanted.is_live:
                self.grant(wanted, None)
        for _ in range(STEPS_TO_THE_END_MAX):
            if not self.core.has_work():
                break
            self.half_step(ahead=True)
        assert all(not wanted.is_live for wanted in self.wanted.values()), "somebody waits on"
        statistics = self.core.statistics()
        assert statistics.kv_blocks_free == statistics.kv_blocks
        assert self.core.unfinished_count() == 0
        assert statistics.requests_aborted == sum(statistics.aborts_after)
        self.reached["aborted within two steps"] += sum(statistics.aborts_after[1:])
        self.reached["preempted"] += statistics.preemptions
        self.reached["tokens hit"] += statistics.prefix_hits
        self.reached["shared a block"] += self.worker.shared_most > 1


def check(events: Sequence[Event], make_core: MakeCore) -> Counter[str]:
    """All of it, then everybody's end."""
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
        }
    ),
)
