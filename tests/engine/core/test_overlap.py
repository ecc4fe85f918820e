"""Two steps in flight: what is dropped, what is never computed, masks, blocks that wait."""

import math
from collections import deque

import attrs
import pytest

from triolet.engine.core.engine_core import EngineCore
from triolet.engine.messages import AddRequest, FinishReason, Grant, RequestKey
from triolet.engine.step_messages import Step, StepResult
from triolet.engine.structured_outputs import StructuredOutputs

from .driver import VOCAB, Driver, add_request, make_core, tokens_alone
from .grammars import CountingGrammar


@attrs.define(eq=False)
class Overlapped:
    """A core that always has two steps in flight if it can."""

    driver: Driver
    steps: deque[Step] = attrs.field(factory=deque)
    computed: int = 0

    @property
    def core(self) -> EngineCore:
        return self.driver.core

    def fill(self) -> None:
        while (step := self.core.schedule(0.0)) is not None:
            self.steps.append(step)
            self.core.check_invariants()

    def finish(self) -> None:
        step = self.steps.popleft()
        self.computed += sum(step.token_counts)
        result = self.driver.worker.execute(step)
        for frontend, message in self.core.finish_step(result, 0.0).items():
            self.driver.heard += [(frontend, output) for output in message.outputs]
        self.core.check_invariants()

    def run(self) -> None:
        self.fill()
        while self.steps:
            self.finish()
            self.fill()


def add_structured() -> AddRequest:
    request = add_request("a", max_tokens=4)
    form = StructuredOutputs.regex("[a-z]*")
    return attrs.evolve(request, sampling=attrs.evolve(request.sampling, structured_outputs=form))


@pytest.fixture
def engine() -> Overlapped:
    return Overlapped(Driver(make_core(steps_in_flight=2)))


def test_two_steps_are_in_flight_and_no_more(engine: Overlapped) -> None:
    engine.core.add("f0", add_request("a"))
    engine.fill()
    assert [(step.number, step.token_counts) for step in engine.steps] == [(1, [3]), (2, [1])]
    engine.run()
    assert engine.driver.tokens("a") == tokens_alone(add_request("a"))


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_nothing_is_computed_beyond_the_length(max_tokens: int, engine: Overlapped) -> None:
    engine.core.add("f0", add_request("a", max_tokens=max_tokens))
    engine.run()
    assert engine.computed == 3 + max_tokens - 1
    assert engine.driver.last("a").finish_reason is FinishReason.LENGTH


def test_nothing_is_computed_beyond_the_credit(engine: Overlapped) -> None:
    engine.core.add("f0", add_request("a", max_tokens=8, credit=2))
    engine.run()
    assert engine.computed == 4
    engine.core.grant("f0", [Grant("a", 1, 3)])
    engine.run()
    assert engine.computed == 5
    assert len(engine.driver.tokens("a")) == 3


def test_the_token_after_a_stop_is_dropped(engine: Overlapped) -> None:
    free = tokens_alone(add_request("a", max_tokens=8))
    engine.core.add("f0", add_request("a", max_tokens=8, eos=[free[1]]))
    engine.run()
    assert engine.driver.tokens("a") == free[: free.index(free[1]) + 1]
    assert engine.core.statistics().output_tokens == len(engine.driver.tokens("a"))


def test_an_abort_frees_when_the_last_step_that_holds_it_is_applied(engine: Overlapped) -> None:
    engine.core.add("f0", add_request("a", max_tokens=8))
    engine.fill()
    engine.core.abort("f0", [RequestKey("a", 1)])
    # The same name again, beside its former row.
    engine.core.add("f0", add_request("a", attempt=2, max_tokens=8))
    free = [engine.core.statistics().kv_blocks_free]
    while engine.steps:
        engine.finish()
        free.append(engine.core.statistics().kv_blocks_free)
    assert free == [7, 7, 8]
    assert engine.core.statistics().aborts_after == [0, 0, 1]
    engine.run()
    assert engine.driver.tokens("a") == tokens_alone(add_request("a", max_tokens=8))


def test_blocks_in_flight_are_waited_for_not_taken() -> None:
    core = make_core(kv_blocks=4, max_num_seqs=2, steps_in_flight=2)
    engine = Overlapped(Driver(core))
    older, younger = add_request("a", max_tokens=8), add_request("b", prompt=7, max_tokens=8)
    core.add("f0", older)
    core.add("f0", younger)
    engine.run()
    assert core.statistics().preemptions == 1
    for request in (older, younger):
        assert engine.driver.tokens(request.request_id) == tokens_alone(request)


def test_a_row_that_fails_ends_its_request_alone_also_in_the_step_after(
    engine: Overlapped,
) -> None:
    engine.core.add("f0", add_request("a", prompt=[1] * 5))
    engine.core.add("f0", add_request("b"))
    engine.fill()
    step = engine.steps[0]
    result = engine.driver.worker.execute(engine.steps.popleft())
    failed = StepResult(1, step.rows[1:], result.token_ids[1:], failed_rows=[(0, "no numbers")])
    for _, message in engine.core.finish_step(failed, 0.0).items():
        engine.driver.heard += [("f0", output) for output in message.outputs]
    engine.core.check_invariants()
    assert "no numbers" in engine.driver.last("a").error
    engine.run()
    assert engine.driver.tokens("b") == tokens_alone(add_request("b"))
    statistics = engine.core.statistics()
    assert statistics.kv_blocks_free == statistics.kv_blocks
    # What it had computed is found by nobody.
    engine.core.add("f0", add_request("c", prompt=[1] * 5))
    engine.run()
    assert engine.core.statistics().prefix_hits == 0


def test_a_mask_is_of_the_oldest_step_and_knows_all_tokens_before_it(engine: Overlapped) -> None:
    core = engine.core
    core.add("f0", add_structured())
    [order] = core.grammars.take()
    grammar = CountingGrammar([set(range(VOCAB))], 9, VOCAB)
    core.grammar_compiled(order, grammar)
    engine.fill()
    assert [step.masked for step in engine.steps] == [[0], [0]]
    for number in (1, 2, 3, 4):
        mask = core.take_mask()
        assert mask is not None
        assert mask.number == number
        assert core.take_mask() is None, "once"
        assert len(engine.driver.tokens("a")) == number - 1
        engine.finish()
        engine.fill()
    assert core.take_mask() is None
    assert engine.driver.last("a").finish_reason is FinishReason.LENGTH


def test_the_mask_of_a_row_that_has_ended_allows_everything(engine: Overlapped) -> None:
    core = engine.core
    core.add("f0", add_structured())
    [order] = core.grammars.take()
    core.grammar_compiled(order, CountingGrammar([{1}], 9, VOCAB))
    engine.fill()
    core.abort("f0", [RequestKey("a", 1)])
    mask = core.take_mask()
    assert mask is not None
    assert set(mask.words) == {0xFF}


def test_a_long_step_is_followed_late_so_that_who_comes_meanwhile_need_not_wait() -> None:
    driver = Driver(make_core(steps_in_flight=2))
    core, now = driver.core, 0.0
    core.add("f0", add_request("a", prompt=1, max_tokens=20))
    for _ in range(12):
        step = core.schedule(now)
        assert step is not None
        now += 1.0
        result = attrs.evolve(driver.worker.execute(step), compute_s=1.0)
        core.finish_step(result, now)
    step = core.schedule(now)
    assert step is not None
    assert core.schedule(now) is None
    due = core.schedule_at()
    assert now + 0.5 < due < now + 1.0
    core.add("f0", add_request("b"))
    assert core.schedule(due - 0.01) is None
    late = core.schedule(due)
    assert late is not None
    assert len(late.new) == 1
    assert core.schedule_at() == math.inf
