"""Outputs of the engine core: columns, events, windows, and logprobs with their tokens."""

import struct
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.config import EngineSettings
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.core.logprob_log import LogprobLog
from triolet.engine.core.outputs import PendingOutputs
from triolet.engine.core.request import CREDIT_LOW_TOKENS, Request, RequestStatus
from triolet.engine.messages import (
    AddRequest,
    FinishReason,
    Grant,
    LiveRequest,
    RequestEventKind,
    RequestKey,
    RequestOutput,
    StepOutputs,
    TokenLogprobs,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import RowLogprobs, Step, StepResult
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.fuzz.doubles.checking_worker import CheckingWorker
from triolet.tests.engine.core.driver import (
    READY,
    VOCAB,
    CountingGrammar,
    Driver,
    add_request,
    make_core,
    make_scheduler,
    new_request,
)


def test_columns_hold_what_needs_no_more_words() -> None:
    driver = Driver(make_core())
    driver.core.add("f0", attrs.evolve(add_request("a"), in_columns=True, attempt=5))
    driver.core.add("f0", add_request("b"))
    for index, tokens in enumerate(([7, 8], [9, 10])):
        step = driver.schedule()
        result = StepResult(step.number, step.rows, tokens)
        message = driver.core.finish_step(result, 0.0)["f0"]
        outputs = [(o.request_id, o.first_index, o.token_ids) for o in message.outputs]
        if index == 0:  # what is sent with first tokens has no room in columns
            assert outputs == [("a", 0, [7]), ("b", 0, [8])]
            assert message.attempts == []
        else:
            assert outputs == [("b", 1, [10])]
            assert (message.attempts, message.indices, message.token_ids) == ([5], [1], [9])


def test_a_grammar_sees_every_token_of_columns_too() -> None:
    driver = Driver(make_core())
    structured = attrs.evolve(
        add_request("a"),
        in_columns=True,
        sampling=SamplingParams(
            max_tokens=9, seed=1, structured_outputs=StructuredOutputs.regex("a*")
        ),
    )
    driver.core.add("f0", structured)
    [order] = driver.core.take_grammar_orders()
    grammar = CountingGrammar([{7}], 4, VOCAB)
    driver.core.grammar_compiled(order, grammar)
    while step := driver.core.schedule(0.0):
        messages = driver.core.finish_step(StepResult(step.number, step.rows, [7]), 0.0)
    assert grammar.accepted == [7, 7, 7, 7]
    assert messages["f0"].outputs[0].finish_reason is FinishReason.STOP


# ---- windows

STEP_S = 0.1


class Clocked:
    """An engine core whose steps take a tenth of a second each."""

    def __init__(self) -> None:
        settings = EngineSettings(
            model="none", block_tokens=4, max_num_seqs=4, max_num_batched_tokens=16
        )
        self.core = EngineCore(settings, attrs.evolve(READY, kv_blocks=64, max_model_len=100))
        self.worker = CheckingWorker(kv_blocks=64, block_tokens=4, rows=4, vocab_size=VOCAB)
        self.now = 0.0

    def add(self, request_id: str, frontend: str = "f0", **changes: Any) -> None:
        add: AddRequest = add_request(request_id, max_tokens=60)
        self.core.add(frontend, attrs.evolve(add, **changes))

    def step(self, frontend: str = "f0") -> StepOutputs | None:
        step = self.core.schedule(self.now)
        assert step is not None
        assert not self.core.take_outputs(), "there is work: nothing is sent without a step"
        self.now = round(self.now + STEP_S, 3)
        found = self.core.finish_step(self.worker.execute(step), self.now)
        self.core.check_invariants()
        return found.get(frontend)

    def sent(self, steps: int) -> list[tuple[float, str, int, int]]:
        """When, of which request, the first token that was sent, and how many."""
        found = []
        for _ in range(steps):
            message = self.step()
            for output in message.outputs if message else ():
                row = (self.now, output.request_id, output.first_index, len(output.token_ids))
                found.append(row)
        return found


@pytest.fixture
def engine() -> Clocked:
    return Clocked()


def test_a_window_is_sent_before_the_step_that_would_be_too_late(engine: Clocked) -> None:
    engine.add("a", merge_s=0.5)
    engine.now = 0.05
    # The first at once; then all that came before 0.5 and 1.0, where a step ends next.
    assert engine.sent(10) == [(0.15, "a", 0, 1), (0.45, "a", 1, 3), (0.95, "a", 4, 5)]


def test_a_first_token_says_how_long_its_request_was_computed(engine: Clocked) -> None:
    engine.add("a", prompt_token_ids=list(range(1, 25)), in_columns=True)  # a step has 16 tokens
    engine.now = 5.0
    assert engine.step() is None
    message = engine.step()
    assert message is not None
    assert [output.prefill_s for output in message.outputs] == [pytest.approx(2 * STEP_S)]
    engine.add("b", in_columns=True, sampling=SamplingParams(seed=1, max_tokens=1))
    message = engine.step()  # its only one
    assert message is not None
    assert [output.prefill_s for output in message.outputs] == [pytest.approx(STEP_S)]


def test_requests_with_the_same_window_are_sent_together(engine: Clocked) -> None:
    engine.add("a", merge_s=0.5)
    engine.sent(2)
    engine.add("b", merge_s=0.5)
    assert engine.sent(3) == [(0.3, "b", 0, 1), (0.4, "a", 1, 3), (0.4, "b", 1, 1)]


def test_others_are_not_kept_waiting(engine: Clocked) -> None:
    engine.add("a", merge_s=10.0)
    engine.add("b", in_columns=True)
    engine.step()
    message = engine.step()
    assert message is not None
    assert (message.outputs, message.indices) == ([], [1])


def test_one_token_goes_in_columns_as_ever(engine: Clocked) -> None:
    engine.add("a", merge_s=0.001, in_columns=True)
    messages = [engine.step() for _ in range(3)]
    assert [message and message.indices for message in messages] == [[], [1], [2]]


def test_the_end_brings_what_waited(engine: Clocked) -> None:
    add = add_request("a", max_tokens=5)
    engine.core.add("f0", attrs.evolve(add, merge_s=10.0))
    assert engine.sent(5) == [(0.1, "a", 0, 1), (0.5, "a", 1, 4)]


def test_near_its_credit_a_request_does_not_wait(engine: Clocked) -> None:
    credit = CREDIT_LOW_TOKENS + 4
    engine.add("a", merge_s=10.0, credit=credit)
    sent = engine.sent(credit)
    assert [row[2:] for row in sent] == [(0, 1), (1, 4), *[(at, 1) for at in range(5, credit)]]


def test_of_what_was_aborted_nothing_is_sent(engine: Clocked) -> None:
    engine.add("a", merge_s=10.0)
    engine.sent(3)
    engine.core.abort("f0", [RequestKey("a", 1)])
    assert not engine.core.has_work()
    assert engine.core.take_outputs() == {}


def test_what_is_paused_is_sent_when_all_others_are_done(engine: Clocked) -> None:
    """Its last tokens were near the credit, so that only a shut window could hold them back."""
    engine.add("a", merge_s=10.0, credit=CREDIT_LOW_TOKENS + 8)
    request = engine.core._store.find("f0", "a")
    assert request is not None
    engine.sent(3)
    request.tokens_max = request.prompt_tokens + 3  # no more room, whatever for
    (message,) = engine.core.take_outputs().values()
    assert [(o.first_index, len(o.token_ids)) for o in message.outputs] == [(1, 2)]


def test_a_resync_sends_all_and_nothing_is_sent_twice(engine: Clocked) -> None:
    engine.add("a", merge_s=0.5)
    engine.sent(3)
    outputs, unknown = engine.core.resync("f0", [LiveRequest("a", 1, 1, None)])
    assert [(o.first_index, len(o.token_ids)) for o in outputs] == [(1, 2)]
    assert not unknown
    assert engine.sent(6)[0] == (0.4, "a", 3, 1)


def test_events_come_after_the_tokens_before_them(engine: Clocked) -> None:
    engine.add("a", merge_s=10.0)
    engine.sent(3)
    request = engine.core._store.find("f0", "a")
    assert request is not None
    pending = PendingOutputs()
    request.status = RequestStatus.WAITING  # as a preempted one, but for its name
    pending.note_arrival(request)
    pending.put_events(engine.core._scheduler)
    outputs = pending.take()["f0"].outputs
    assert [(o.first_index, len(o.token_ids), len(o.events)) for o in outputs] == [
        (1, 2, 0),
        (3, 0, 1),
    ]


def test_a_frontend_that_is_gone_is_sent_nothing(engine: Clocked) -> None:
    engine.add("a", merge_s=0.5)
    engine.add("b", "f1", merge_s=0.5)
    engine.sent(2)
    engine.core.forget_home("f0")
    assert [row[1] for row in engine.sent(4)] == []


def test_a_grant_lets_it_wait_again(engine: Clocked) -> None:
    engine.add("a", merge_s=10.0, credit=4)
    assert len(engine.sent(3)) == 3
    engine.core.grant("f0", [Grant("a", 1, None)])
    assert engine.sent(5) == []


def test_what_is_held_twice_in_one_window_is_sent_once(engine: Clocked) -> None:
    """Sent in between, near its credit: what was sent is not sent again."""
    engine.add("a", merge_s=1.0, credit=CREDIT_LOW_TOKENS + 4)
    assert [row[2:] for row in engine.sent(5)] == [(0, 1), (1, 4)]
    engine.core.grant("f0", [Grant("a", 1, None)])
    assert [row[2:] for row in engine.sent(5)] == [(5, 4)]


# ---- events


def make(name: str, arrival: int) -> Request:
    return new_request(name, arrival=arrival, events=True)


def test_events_of_requests_that_wait_and_that_are_scheduled() -> None:
    scheduler = make_scheduler(
        max_num_seqs=1, max_num_batched_tokens=4, kv_blocks=4, block_tokens=4
    )
    pending = PendingOutputs()
    requests = [make("a", 1), make("b", 2), make("c", 3)]
    for request in requests:
        scheduler.add(request)
        pending.note_arrival(request)
    scheduler.schedule()
    scheduler.end(requests[1], FinishReason.ABORT)
    pending.put_events(scheduler)
    [outputs] = [each.outputs for each in pending.take().values()]
    sent = [(o.request_id, event.kind, event.detail) for o in outputs for event in o.events]
    assert sent == [("c", RequestEventKind.QUEUED, 0), ("a", RequestEventKind.SCHEDULED, 0)]
    pending.put_events(scheduler)
    assert pending.take() == {}


# ---- logprobs


ADD = AddRequest(
    request_id="r",
    attempt=1,
    prompt_token_ids=[1, 2, 3, 4, 5],
    sampling=SamplingParams(seed=1, max_tokens=4, logprobs=1, prompt_logprobs=0),
)


def integers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def expected(first: int, count: int, width: int) -> TokenLogprobs:
    """What is said of tokens from `first` of the row on; all items differ."""
    positions = range(first, first + count)
    items = integers(*[100 * place + column for place in positions for column in range(width)])
    return TokenLogprobs(width, items, items, integers(*positions))


def of_row(row: int, first: int, count: int, width: int) -> RowLogprobs:
    arrays = expected(first, count, width)
    return RowLogprobs(row=row, first=first, **attrs.asdict(arrays))


@attrs.define
class Bed:
    """An engine core with one request, and a worker that only knows how long its rows are."""

    core: EngineCore
    lengths: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    wants_prompt: dict[int, bool] = attrs.field(factory=dict)
    outputs: list[RequestOutput] = attrs.field(factory=list)

    def step(self, failed: str = "") -> None:
        step = self.core.schedule(0.0)
        assert step is not None
        for message in self.core.finish_step(self.compute(step, failed), 0.0).values():
            self.outputs += message.outputs
            assert not message.attempts, "columns have no room for logprobs"
        self.core.check_invariants()

    def compute(self, step: Step, failed: str) -> StepResult:
        logprobs = []
        for new in step.new:
            self.lengths[new.row] = (new.computed_tokens, new.prompt_tokens)
            self.wants_prompt[new.row] = new.sampling.prompt_logprobs is not None
        rows = [row for row, samples in zip(step.rows, step.samples, strict=True) if samples]
        for row, count in zip(step.rows, step.token_counts, strict=True):
            done, prompt = self.lengths[row]
            self.lengths[row] = (done + count, prompt)
            of_prompt = min(done + count, prompt - 1) - done
            if of_prompt > 0 and self.wants_prompt[row]:
                logprobs.append(of_row(row, done + 1, of_prompt, 1))
            if row in rows and not failed:
                logprobs.append(of_row(row, done + count, 1, 2))
        if failed:
            return StepResult(step.number, [], [], failed_rows=[(row, failed) for row in rows])
        return StepResult(step.number, rows, [9] * len(rows), logprobs=logprobs)


def make_bed(add: AddRequest = ADD, *, step_tokens: int = 3) -> Bed:
    settings = EngineSettings(model="none", block_tokens=4, max_num_batched_tokens=step_tokens)
    core = EngineCore(settings, READY)
    core.add("f0", add)
    return Bed(core)


def test_those_of_the_prompt_come_with_the_first_token_however_it_was_cut() -> None:
    for step_tokens in (1, 3, 8):
        bed = make_bed(step_tokens=step_tokens)
        while not bed.outputs:
            bed.step()
        [first] = bed.outputs
        assert (first.first_index, first.token_ids) == (0, [9])
        assert first.prompt_logprobs == expected(1, 4, 1)
        assert first.logprobs == expected(5, 1, 2)
        bed.step()
        assert bed.outputs[1].prompt_logprobs is None
        assert bed.outputs[1].logprobs == expected(6, 1, 2)


def test_a_resync_brings_both_again_from_where_it_asks() -> None:
    bed = make_bed()
    for _ in range(4):
        bed.step()
    [again], _ = bed.core.resync("f0", [LiveRequest("r", 1, 0, None)])
    assert (again.prompt_logprobs, again.logprobs) == (expected(1, 4, 1), expected(5, 3, 2))
    [again], _ = bed.core.resync("f0", [LiveRequest("r", 1, 2, None)])
    assert (again.token_ids, again.prompt_logprobs) == ([9], None)
    assert again.logprobs == expected(7, 1, 2)


def test_an_end_is_sent_again_with_its_logprobs() -> None:
    bed = make_bed()
    while bed.core.has_work():
        bed.step()
    last = bed.outputs[-1]
    assert (last.finish_reason, last.logprobs) == (FinishReason.LENGTH, expected(8, 1, 2))
    [again], _ = bed.core.resync("f0", [LiveRequest("r", 1, 1, None)])
    assert (again.finish_reason, again.logprobs) == (FinishReason.LENGTH, expected(6, 3, 2))


def test_a_replay_brings_those_of_new_tokens_only() -> None:
    replay = attrs.evolve(ADD, output_token_ids=[9, 9])
    bed = make_bed(replay, step_tokens=8)
    bed.step()
    [first] = bed.outputs
    assert (first.first_index, first.token_ids) == (2, [9])
    assert (first.prompt_logprobs, first.logprobs) == (None, expected(7, 1, 2))


def test_from_any_index_to_the_end() -> None:
    log = LogprobLog(3)
    log.append(of_row(0, 3, 1, 2), 3)
    log.append(of_row(0, 4, 2, 2), 4)
    assert log.since(3) == expected(3, 3, 2)
    assert log.since(0) == expected(3, 3, 2), "what a replay brought is not ours to tell"
    assert log.since(5) == expected(5, 1, 2)
    assert log.since(6) is None
    assert log.size == 3 * (2 * 2 + 1) * 4


def test_a_gap_is_a_bug() -> None:
    log = LogprobLog(1)
    with pytest.raises(AssertionError, match="1 to 2"):
        log.append(of_row(0, 2, 1, 1), 2)


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_what_comes_again_is_kept_once(width: int, chunks: list[tuple[int, int]]) -> None:
    log = LogprobLog(1)
    for back, count in chunks:
        first = max(1, 1 + len(log) - back)
        log.append(of_row(0, first, count, width), first)
        log.check_invariants()
    assert log.since(1) == (expected(1, len(log), width) if len(log) else None)
