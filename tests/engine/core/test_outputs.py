"""Tokens, ends and events become messages: in columns, pending, or held until a window ends."""

from typing import Any

import attrs
import pytest

from triolet.engine.config import EngineSettings
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.core.outputs import PendingOutputs
from triolet.engine.core.request import CREDIT_LOW_TOKENS, Request, RequestStatus
from triolet.engine.messages import (
    AddRequest,
    FinishReason,
    Grant,
    LiveRequest,
    RequestEventKind,
    RequestKey,
    StepOutputs,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import StepResult
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.fuzz.doubles.checking_worker import CheckingWorker
from triolet.tests.engine.core.driver import (
    READY,
    VOCAB,
    Driver,
    add_request,
    make_core,
    make_scheduler,
    new_request,
)
from triolet.tests.engine.core.grammars import CountingGrammar


def test_columns_hold_what_needs_no_more_words() -> None:
    driver = Driver(make_core())
    driver.core.add("f0", attrs.evolve(add_request("a"), in_columns=True, attempt=5))
    driver.core.add("f0", add_request("b"))
    step = driver.core.schedule(0.0)
    assert step is not None
    message = driver.core.finish_step(StepResult(1, step.rows, [7, 8]), 0.0)["f0"]
    assert (message.attempts, message.indices, message.token_ids) == ([5], [0], [7])
    assert [(o.request_id, o.first_index, o.token_ids) for o in message.outputs] == [("b", 0, [8])]


def test_a_token_of_what_has_ended_is_dropped() -> None:
    driver = Driver(make_core())
    driver.core.add("f0", add_request("a"))
    driver.core.add("f1", add_request("b"))
    step = driver.core.schedule(0.0)
    assert step is not None
    driver.core.abort("f0", [RequestKey("a", 1)])
    assert set(driver.core.finish_step(StepResult(1, step.rows, [7, 8]), 0.0)) == {"f1"}
    assert driver.core.statistics().output_tokens == 1


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
    [order] = driver.core.grammars.take()
    grammar = CountingGrammar([{7}], 4, VOCAB)
    driver.core.grammar_compiled(order, grammar)
    while step := driver.core.schedule(0.0):
        messages = driver.core.finish_step(StepResult(step.number, step.rows, [7]), 0.0)
    assert grammar.accepted == [7, 7, 7, 7]
    assert messages["f0"].outputs[0].finish_reason is FinishReason.STOP


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
    assert [message and message.indices for message in messages] == [[0], [1], [2]]


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
    engine.core.forget_frontend("f0")
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


def test_what_is_dropped_is_not_sent() -> None:
    pending = PendingOutputs()
    request = make("a", 1)
    scheduler = make_scheduler(
        max_num_seqs=1, max_num_batched_tokens=4, kv_blocks=4, block_tokens=4
    )
    scheduler.add(request)
    pending.note_arrival(request)
    pending.put_events(scheduler)
    pending.drop("f0")
    pending.drop("f1")
    assert pending.take() == {}
