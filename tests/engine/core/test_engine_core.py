"""Engine core: attempts, aborts, replays, credit, events, resync, and two steps in flight."""

import math
from collections import deque

import attrs
import pytest

from triolet.engine.core.checks import UnexpectedResult
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.errors import InvalidParameter
from triolet.engine.messages import AddRequest, FinishReason, Grant, LiveRequest, RequestKey
from triolet.engine.step_messages import Step, StepResult
from triolet.tests.engine.core.driver import (
    VOCAB,
    CountingGrammar,
    Driver,
    add_request,
    add_structured,
    make_core,
    tokens_alone,
)


@pytest.fixture
def driver() -> Driver:
    return Driver(make_core())


def test_each_frontend_hears_of_its_own_requests_only(driver: Driver) -> None:
    driver.core.add("f0", add_request("same"))
    driver.core.add("f1", add_request("same", prompt=5))
    step = driver.schedule()
    messages = driver.core.finish_step(driver.worker.execute(step), 0.0)
    assert {frontend: len(message.outputs) for frontend, message in messages.items()} == {
        "f0": 1,
        "f1": 1,
    }
    assert messages["f0"].step == 1


def test_kv_cache_bounds_the_length() -> None:
    driver = Driver(make_core(kv_blocks=3))
    assert driver.core.limits.max_model_len == 12
    driver.core.add("f0", add_request("long", prompt=12))
    driver.core.add("f0", add_request("fits", prompt=11, max_tokens=None))
    driver.run()
    assert driver.last("long").error_code == "context_length_exceeded"
    assert driver.last("fits").finish_reason is FinishReason.LENGTH
    assert len(driver.tokens("fits")) == 1


def test_no_kv_cache_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="kv_blocks"):
        make_core(kv_blocks=0)


def test_drain_refuses_new_requests_and_serves_the_rest(driver: Driver) -> None:
    driver.core.add("f0", add_request("a"))
    driver.core.start_drain()
    driver.core.add("f0", add_request("b"))
    assert driver.core.unfinished_count() == 1
    driver.run()
    assert driver.core.unfinished_count() == 0
    assert driver.last("a").finish_reason is FinishReason.LENGTH
    assert driver.last("b").error_code == "engine_draining"


# ---- attempts and aborts


def test_newer_attempt_takes_the_place_of_the_older(driver: Driver) -> None:
    driver.core.add("f0", add_request("a", attempt=1))
    driver.step()
    driver.core.add("f0", add_request("a", attempt=1))
    driver.core.add("f0", add_request("a", attempt=0))
    assert driver.core.statistics().messages_dropped == 2
    driver.core.add("f0", add_request("a", attempt=2))
    driver.run()
    assert [output.attempt for _, output in driver.heard] == [1, 2, 2, 2, 2]
    assert driver.core.statistics().requests_aborted == 1


def test_abort_of_another_attempt_or_frontend_is_a_counted_no_op(driver: Driver) -> None:
    driver.core.add("f0", add_request("a", attempt=2))
    driver.core.abort("f0", [RequestKey("a", 1), RequestKey("b", 2)])
    driver.core.abort("f1", [RequestKey("a", 2)])
    driver.run()
    assert driver.last("a").finish_reason is FinishReason.LENGTH
    assert driver.core.statistics().aborts_unknown == 3


def test_only_what_no_step_had_yet_is_given_back(driver: Driver) -> None:
    driver.core.add("f0", add_request("begun"))
    driver.step()
    driver.core.add("f0", add_request("queued"))
    keys = [RequestKey("begun", 1), RequestKey("queued", 1), RequestKey("unknown", 1)]
    for _ in range(2):
        driver.core.recall("f0", keys)
    assert driver.core.unfinished_count() == 1
    driver.run()
    assert driver.last("begun").finish_reason is FinishReason.LENGTH
    assert [output.error_code for _, output in driver.heard if output.request_id == "queued"] == [
        "request_recalled"
    ]
    again, unknown = driver.core.resync("f0", [LiveRequest("queued", 1, 0, None)])
    assert ([each.error_code for each in again], unknown) == (["request_recalled"], [])


def test_forgotten_frontend_leaves_nothing(driver: Driver) -> None:
    driver.core.add("f0", add_request("a"))
    driver.core.add("f0", add_request("bad", prompt=[]))
    driver.core.add("f1", add_request("a", max_tokens=8))
    driver.core.forget_home("f0")
    driver.run()
    assert {frontend for frontend, _ in driver.heard} == {"f1"}
    _, unknown = driver.core.resync("f0", [LiveRequest("bad", 1, 0, None)])
    assert unknown == [RequestKey("bad", 1)]


# ---- replay


@pytest.mark.parametrize(
    ("request_", "reason", "stop_token_id"),
    [
        (add_request("a", max_tokens=2, output=[5, 6]), FinishReason.LENGTH, None),
        (add_request("a", prompt=20, max_tokens=None, output=[5] * 4), FinishReason.LENGTH, None),
        (add_request("a", prompt=20, max_tokens=None, output=[5] * 9), FinishReason.LENGTH, None),
        (add_request("a", output=[5, 6], eos=[6]), FinishReason.STOP, None),
        (add_request("a", output=[5, 6], stop_token_ids=(6,)), FinishReason.STOP, 6),
        (
            add_request("a", output=[5, 6], eos=[6], stop_token_ids=(6,), credit=0),
            FinishReason.STOP,
            None,
        ),
    ],
)
def test_replay_that_meets_a_stop_rule_finishes_at_once(
    request_: AddRequest, reason: FinishReason, stop_token_id: int | None, driver: Driver
) -> None:
    driver.core.add("f0", request_)
    assert not driver.core.has_work()
    driver.take()
    output = driver.last("a")
    assert output.first_index == len(request_.output_token_ids)
    assert output.token_ids == []
    assert (output.finish_reason, output.stop_token_id) == (reason, stop_token_id)


# ---- events


def events_of(driver: Driver, request_id: str) -> list[tuple[str, int, int]]:
    """Kind, detail, and how many of its tokens its frontend had heard by then."""
    found, tokens = [], 0
    for _, output in driver.heard:
        if output.request_id == request_id:
            assert output.first_index == tokens
            found += [(str(event.kind), event.detail, tokens) for event in output.events]
            tokens += len(output.token_ids)
    return found


def test_events_say_what_happens_and_when() -> None:
    driver = Driver(make_core(kv_blocks=4, max_num_seqs=2))
    for name in "abcd":
        driver.core.add("f0", add_request(name, max_tokens=8, events=name != "c"))
    driver.step()
    assert events_of(driver, "a") == [("scheduled", 0, 0)]
    assert events_of(driver, "d") == [("queued", 1, 0)]
    driver.run()
    # Each needs three blocks in the end; of the four there are, the older one takes its third.
    assert events_of(driver, "b")[:1] == [("scheduled", 0, 0)]
    assert [kind for kind, _, _ in events_of(driver, "b")[1:]] == ["preempted", "resumed"]
    assert events_of(driver, "d")[:2] == [("queued", 1, 0), ("scheduled", 0, 0)]
    assert events_of(driver, "c") == []
    assert len(driver.tokens("b")) == 8


def test_a_request_without_credit_waits_in_no_line(driver: Driver) -> None:
    driver.core.add("f0", add_request("a", credit=0, events=True))
    assert not driver.step()
    assert events_of(driver, "a") == [("queued", 0, 0)]
    driver.core.grant("f0", [Grant("a", 1, None)])
    driver.run()
    assert events_of(driver, "a") == [("queued", 0, 0), ("scheduled", 0, 0)]


# ---- priority


def finish_order(driver: Driver) -> list[str]:
    return [output.request_id for _, output in driver.heard if output.finish_reason is not None]


@pytest.mark.parametrize(("policy", "order"), [("priority", "acb"), ("fcfs", "abc")])
def test_lower_numbers_are_served_first_if_the_policy_is_priority(policy: str, order: str) -> None:
    driver = Driver(make_core(max_num_seqs=1, scheduling_policy=policy))
    for name, priority in (("a", 0), ("b", 0), ("c", -1)):
        driver.core.add("f0", attrs.evolve(add_request(name), priority=priority))
        driver.step()
    driver.run()
    assert "".join(finish_order(driver)) == order, "who runs is not put out for a place"


def test_the_lowest_priority_yields_its_blocks() -> None:
    driver = Driver(make_core(kv_blocks=4, max_num_seqs=2))
    for name, priority in (("a", 1), ("b", 0)):
        driver.core.add(
            "f0", attrs.evolve(add_request(name, max_tokens=8, events=True), priority=priority)
        )
    driver.run()
    assert [kind for kind, _, _ in events_of(driver, "b")] == ["scheduled"]
    sent = [kind for kind, _, _ in events_of(driver, "a")]
    assert sent == ["scheduled", "preempted", "resumed"]


# ---- resync


@pytest.mark.parametrize("next_index", [0, 1, 2, 3])
def test_resync_sends_exactly_what_is_missing(next_index: int, driver: Driver) -> None:
    driver.core.add("f0", add_request("a", max_tokens=8, credit=3))
    driver.run()
    outputs, unknown = driver.core.resync("f0", [LiveRequest("a", 1, next_index, 3)])
    assert not unknown
    resent = [token_id for output in outputs for token_id in output.token_ids]
    assert resent == driver.tokens("a")[next_index:]
    assert [output.first_index for output in outputs] == [next_index][: len(resent)]


def test_resync_answers_instead_of_outputs_not_taken(driver: Driver) -> None:
    driver.core.add("f0", add_request("bad", prompt=[]))
    outputs, _ = driver.core.resync("f0", [LiveRequest("bad", 1, 0, None)])
    assert len(outputs) == 1
    assert driver.core.take_outputs() == {}


@pytest.mark.parametrize("credit", [5, None])
@pytest.mark.parametrize(
    ("next_index", "logprobs", "is_known"),
    [(1, None, True), (0, None, False), (2, 1, False), (3, 1, True)],
)
def test_who_takes_over_may_know_of_fewer_tokens_than_a_replay_came_with(
    credit: int | None, next_index: int, logprobs: int | None, is_known: bool, driver: Driver
) -> None:
    """Logprobs of those are not here, nor what came with the first: it has to be sent again."""
    tokens = tokens_alone(add_request("a", max_tokens=8))
    replay = add_request("a", max_tokens=8, output=tokens[:3], credit=credit)
    sampling = attrs.evolve(replay.sampling, logprobs=logprobs)
    driver.core.add("f0", attrs.evolve(replay, sampling=sampling))
    driver.run()
    entry = LiveRequest("a", 1, next_index, credit)
    outputs, unknown = driver.core.resync("f0", [entry])
    driver.core.check_invariants()
    if is_known:
        (output,) = outputs
        assert (output.first_index, output.token_ids) == (next_index, tokens[next_index:credit])
        assert not unknown
        return
    assert (outputs, unknown) == ([], [RequestKey("a", 1)])
    assert driver.core.unfinished_count() == 0
    driver.core.add("f0", attrs.evolve(replay, attempt=2, output_token_ids=tokens[:next_index]))
    driver.run()
    missing = tokens[next_index:credit]
    assert driver.tokens("a")[-len(missing) :] == missing


@pytest.mark.parametrize(
    "entry",
    [LiveRequest("a", 2, 0, None), LiveRequest("a", 1, 4, None), LiveRequest("a", 1, -1, None)],
)
def test_resync_of_what_cannot_be_the_same_request_ends_it(
    entry: LiveRequest, driver: Driver
) -> None:
    driver.core.add("f0", add_request("a", max_tokens=8, credit=3))
    driver.run()
    outputs, unknown = driver.core.resync("f0", [entry])
    assert not outputs
    assert unknown == [RequestKey("a", entry.attempt)]
    assert driver.core.unfinished_count() == 0


def test_resync_in_flight_drops_the_token_of_what_is_not_listed(driver: Driver) -> None:
    driver.core.add("f0", add_request("a"))
    step = driver.schedule()
    driver.core.resync("f0", [])
    assert driver.core.finish_step(driver.worker.execute(step), 0.0) == {}
    driver.core.check_invariants()
    assert driver.core.statistics().kv_blocks_free == 8


def test_unexpected_result_changes_nothing(driver: Driver) -> None:
    driver.core.add("f0", add_request("a"))
    step = driver.schedule()
    assert driver.core.schedule(0.0) is None
    with pytest.raises(UnexpectedResult):
        driver.core.finish_step(StepResult(2, [0], [1]), 0.0)
    driver.core.check_invariants()
    messages = driver.core.finish_step(driver.worker.execute(step), 0.0)
    assert len(messages["f0"].outputs) == 1


# ---- two steps in flight


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
        self.driver.finish(self.driver.worker.execute(step))

    def run(self) -> None:
        self.fill()
        while self.steps:
            self.finish()
            self.fill()


@pytest.fixture
def engine() -> Overlapped:
    return Overlapped(Driver(make_core(steps_in_flight=2)))


def test_nothing_is_computed_beyond_the_credit(engine: Overlapped) -> None:
    engine.core.add("f0", add_request("a", max_tokens=8, credit=2))
    engine.run()
    assert engine.computed == 4
    engine.core.grant("f0", [Grant("a", 1, 3)])
    engine.run()
    assert engine.computed == 5
    assert len(engine.driver.tokens("a")) == 3


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
    engine.driver.finish(failed)
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
    core.add("f0", add_structured("a"))
    [order] = core.take_grammar_orders()
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
