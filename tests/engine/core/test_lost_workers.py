"""Workers that are lost: what was in flight is undone, and no request is another for it."""

import struct

import attrs
import pytest

from triolet.engine.core.checks import UnexpectedResult
from triolet.engine.messages import AddRequest, FinishReason, Grant, RequestKey
from triolet.engine.step_messages import RowLogprobs, Step
from triolet.tests.engine.core.driver import (
    VOCAB,
    CountingGrammar,
    Driver,
    add_request,
    add_structured,
    make_core,
    tokens_alone,
)
from triolet.tests.engine.core.test_engine_core import Overlapped


@attrs.define(eq=False)
class Engine(Overlapped):
    """Two steps in flight, over workers that come and go."""

    def lose(self, *, is_kept: bool = False) -> int:
        self.steps.clear()
        losses = self.core.undo_steps()
        if not is_kept:
            self.core.forget_blocks()
        step = self.core.statistics().step
        self.driver.worker = self.driver.worker.successor(step, is_kept=is_kept)
        self.driver.take()
        return losses


@pytest.fixture
def engine() -> Engine:
    return Engine(Driver(make_core(steps_in_flight=2)))


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("finished", range(6))
def test_a_loss_between_any_two_steps_changes_no_token(finished: int, is_kept: bool) -> None:
    engine = Engine(Driver(make_core(kv_blocks=16, steps_in_flight=2)))
    sizes = {"a": 3, "b": 9, "c": 5}
    requests = [add_request(name, prompt=size, max_tokens=8) for name, size in sizes.items()]
    for request in requests:
        engine.core.add("f0", request)
    engine.fill()
    for _ in range(finished):
        engine.finish()
        engine.fill()
    assert len(engine.steps) == 2
    assert engine.lose(is_kept=is_kept) == 1
    assert engine.core.statistics().kv_blocks_free == engine.core.statistics().kv_blocks
    engine.run()
    for request in requests:
        assert engine.driver.tokens(request.request_id) == tokens_alone(request)
    counts = engine.core.statistics()
    assert (counts.worker_restarts, counts.preemptions, counts.requests_finished) == (1, 0, 3)


def test_what_ran_comes_before_what_waited(engine: Engine) -> None:
    for name in "abcdef":  # two more than there are rows
        engine.core.add("f0", add_request(name, max_tokens=8))
    engine.fill()
    engine.lose()
    engine.run()
    ends = [o.request_id for _, o in engine.driver.heard if o.finish_reason is not None]
    assert ends == list("abcdef")


def test_a_result_of_the_dead_is_refused(engine: Engine) -> None:
    engine.core.add("f0", add_request("a"))
    engine.fill()
    old = engine.driver.worker.execute(engine.steps[0])
    engine.lose()
    with pytest.raises(UnexpectedResult, match="no such step"):
        engine.core.finish_step(old, 0.0)
    engine.fill()
    assert [step.number for step in engine.steps] == [3, 4]
    with pytest.raises(UnexpectedResult, match="no such step"):
        engine.core.finish_step(old, 0.0)
    engine.run()
    assert engine.driver.tokens("a") == tokens_alone(add_request("a"))


def test_one_that_was_aborted_in_flight_gives_its_blocks_back(engine: Engine) -> None:
    engine.core.add("f0", add_request("a", max_tokens=8))
    engine.fill()
    engine.core.abort("f0", [RequestKey("a", 1)])
    assert engine.core.statistics().kv_blocks_free == 7
    assert engine.lose() == 0, "nothing of it goes on"
    assert engine.core.statistics().kv_blocks_free == 8
    assert engine.core.statistics().aborts_after == [1, 0, 0]
    assert not engine.core.has_work()


def test_a_paused_request_waits_for_its_credit_and_goes_on(engine: Engine) -> None:
    request = add_request("a", max_tokens=8, credit=2)
    engine.core.add("f0", request)
    engine.run()
    assert engine.lose() == 0, "it was in no step"
    assert not engine.core.has_work()
    engine.core.grant("f0", [Grant("a", 1, None)])
    engine.run()
    assert engine.driver.tokens("a") == tokens_alone(attrs.evolve(request, credit=None))


def test_no_block_is_found_and_what_the_first_admission_found_is_still_said(
    engine: Engine,
) -> None:
    first = add_request("a", prompt=9)
    engine.core.add("f0", first)
    engine.run()
    again = add_request("b", prompt=9, max_tokens=6)
    engine.core.add("f0", again)
    engine.fill()
    assert engine.steps[0].new[0].computed_tokens == 8
    engine.lose()
    engine.fill()
    assert engine.steps[0].new[0].computed_tokens == 0
    engine.run()
    assert engine.driver.tokens("b") == tokens_alone(again)
    first_of_b = next(o for _, o in engine.driver.heard if o.request_id == "b" and o.token_ids)
    assert first_of_b.cached_tokens == 8
    assert engine.core.statistics().prefix_queries == 18


def test_memory_that_is_kept_is_computed_again_but_for_the_last_block(engine: Engine) -> None:
    request = add_request("a", prompt=9, max_tokens=12)
    engine.core.add("f0", request)
    engine.fill()
    for _ in range(5):
        engine.finish()
        engine.fill()
    has = len(engine.driver.tokens("a"))
    engine.lose(is_kept=True)
    engine.fill()
    (row,) = engine.steps[0].new
    assert row.computed_tokens == (9 + has - 1) // 4 * 4 > 9
    engine.run()
    assert engine.driver.tokens("a") == tokens_alone(request)


def test_events_say_that_it_waited_before_others_are_ready(engine: Engine) -> None:
    engine.core.add("f0", add_request("a", events=True))
    engine.fill()
    engine.lose()
    engine.run()
    engine.driver.take()
    kinds = [event.kind.value for _, o in engine.driver.heard for event in o.events]
    assert kinds == ["scheduled", "preempted", "resumed"]


def test_choices_share_their_prompt_once_more(engine: Engine) -> None:
    both = [
        attrs.evolve(add_request(f"a{choice}", prompt=9), parent="a", choice=choice)
        for choice in (0, 1)
    ]
    for request in both:
        engine.core.add("f0", request)
    engine.fill()
    engine.lose()  # one computed the prompt, the other one waited for it
    engine.run()
    for request in both:
        assert engine.driver.tokens(request.request_id) == tokens_alone(request)
    assert engine.computed == 9 + 1 + 2 * 3, "the prompt's two full blocks once"


def test_a_grammar_stands_where_its_tokens_do(engine: Engine) -> None:
    core = engine.core
    core.add("f0", add_structured("a"))
    [order] = core.take_grammar_orders()
    grammar = CountingGrammar([set(range(VOCAB))], 9, VOCAB)
    core.grammar_compiled(order, grammar)
    engine.fill()
    assert core.take_mask() is not None
    engine.finish()
    engine.fill()
    assert core.take_mask() is not None
    engine.lose()
    assert core.take_mask() is None
    engine.fill()
    mask = core.take_mask()
    assert mask is not None
    assert mask.number == engine.steps[0].number
    assert engine.steps[0].masked == [0]
    assert grammar.accepted == engine.driver.tokens("a")
    while engine.steps:
        engine.finish()
        core.take_mask()
        engine.fill()
    assert grammar.accepted == engine.driver.tokens("a")
    assert engine.driver.last("a").finish_reason is FinishReason.LENGTH


def test_prompt_logprobs_under_way_are_kept_once(engine: Engine) -> None:
    add = add_request("a", prompt=12, max_tokens=1)
    add.sampling = attrs.evolve(add.sampling, prompt_logprobs=0)
    engine.core.add("f0", add)
    engine.fill()
    finish_scored(engine, first=1, count=8)
    engine.lose()
    engine.fill()
    assert engine.steps[0].new[0].sampling.prompt_logprobs == 0, "not all of them were there"
    finish_scored(engine, first=1, count=8)
    engine.fill()
    finish_scored(engine, first=9, count=3)
    arrays = engine.driver.last("a").prompt_logprobs
    assert arrays is not None
    assert struct.unpack("<11i", arrays.token_ids) == tuple(range(1, 12))


def finish_scored(engine: Engine, *, first: int, count: int) -> None:
    """As a worker that scores positions of the prompt, each with its number for a token."""
    step: Step = engine.steps.popleft()
    ids = struct.pack(f"<{count}i", *range(first, first + count))
    scored = RowLogprobs(row=0, first=first, width=1, token_ids=ids, logprobs=ids, ranks=ids)
    result = attrs.evolve(engine.driver.worker.execute(step), logprobs=[scored])
    engine.driver.finish(result)


def test_tokens_that_are_held_stay_and_come_later() -> None:
    engine = Engine(Driver(make_core(steps_in_flight=2)))
    request = attrs.evolve(add_request("a", max_tokens=6), merge_s=5.0)
    engine.core.add("f0", request)
    engine.fill()
    for _ in range(3):
        engine.finish()
        engine.fill()
    assert len(engine.driver.tokens("a")) == 1, "the first; two more are held"
    engine.lose()
    assert len(engine.driver.tokens("a")) == 1
    engine.run()
    assert engine.driver.tokens("a") == tokens_alone(attrs.evolve(request, merge_s=0.0))
    assert [len(o.token_ids) for _, o in engine.driver.heard] == [1, 5]


def test_losses_of_one_request_are_counted_until_it_has_a_token(engine: Engine) -> None:
    engine.core.add("f0", add_request("a", max_tokens=8))
    counted = []
    for finished in (0, 0, 0, 1, 0):
        engine.fill()
        for _ in range(finished):
            engine.finish()
        counted.append(engine.lose())
    assert counted == [1, 2, 3, 1, 2]
    engine.core.add("f0", add_request("b"))
    engine.fill()
    assert engine.lose() == 3, "whoever else is there"
    engine.core.abort("f0", [RequestKey("a", 1)])
    engine.fill()
    assert engine.lose() == 2


def test_twice_in_a_row_is_as_once(engine: Engine) -> None:
    request: AddRequest = add_request("a", max_tokens=8)
    engine.core.add("f0", request)
    engine.fill()
    engine.finish()
    engine.lose()
    assert engine.lose() == 0
    engine.run()
    assert engine.driver.tokens("a") == tokens_alone(request)
