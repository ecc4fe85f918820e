"""Scheduler: chunks, order, preemption, credit, rows, queues, and choices that share a prompt."""

import attrs
import pytest

from triolet.engine.core.engine_core import EngineCore
from triolet.engine.core.kv_cache_manager import BlockPool, KVCacheManager
from triolet.engine.core.queue import (
    ORDERS,
    SharedPrompts,
    WaitingQueue,
    next_victim,
    victims_for_admission,
)
from triolet.engine.core.request import Request, RequestStatus
from triolet.engine.core.step_time import STEPS_MIN
from triolet.engine.messages import AddRequest, FinishReason, RequestKey
from triolet.tests.engine.core.driver import (
    Driver,
    add_request,
    make_core,
    make_scheduler,
    new_request,
    tokens_alone,
)

from .scheduler_bench import MODEL_LEN, Bench, bench


def test_long_prompt_leaves_a_token_to_all_behind() -> None:
    b = bench(max_num_batched_tokens=6)
    first = b.add(3, credit=0)
    b.add(3)
    b.step()
    b.scheduler.end(first, FinishReason.ABORT)
    # As after a preemption: an older request than the one that decodes has everything to do.
    decoding, recomputed = b.scheduler.running[0], b.add(20)
    decoding.arrival, recomputed.arrival = 3, 2
    assert b.step().token_counts == [1, 5]
    step = b.step()
    assert step.rows == [recomputed.row, decoding.row]
    assert step.token_counts == [5, 1]


def test_principals_take_turns_at_being_admitted() -> None:
    b = bench(max_num_seqs=1, kv_blocks=40)
    flood = [b.add(3, principal="flood") for _ in range(6)]
    other = [b.add(3, principal="other") for _ in range(2)]
    order = []
    while b.scheduler.has_work():
        b.step()
        for request in b.scheduler.running:
            if request not in order:
                order.append(request)
    assert order[:4] == [flood[0], other[0], flood[1], other[1]]
    assert order[4:] == flood[2:]


def test_steps_are_larger_while_none_is_interactive() -> None:
    b = bench(large_step_tokens=16)
    merged = [b.add(14, merge_s=1.0), b.add(14, merge_s=1.0)]
    assert b.step().token_counts == [14, 2]
    interactive = b.add(9)
    assert b.step().token_counts == [1, 12], "it may not be in a step so large"
    assert b.step().token_counts == [1, 1, 6], "nor does its coming make one"
    assert b.step().token_counts == [1, 1, 3]
    for request in (interactive, *merged):
        b.scheduler.end(request, FinishReason.ABORT)
    b.add(14, merge_s=1.0)
    assert b.step().token_counts == [14]


def test_steps_are_no_larger_before_their_time_is_known() -> None:
    def second_step(times_s: list[float]) -> int:
        b = bench(kv_blocks=40, large_step_tokens=16)
        b.scheduler.step_time_target_s = 1000.0
        for _ in range(3):
            b.add(20, merge_s=1.0)
        assert sum(b.step().token_counts) == 8, "nothing was computed yet"
        for seconds in times_s:
            b.scheduler.step_times.learn(8, seconds)
        return sum(b.step().token_counts)

    assert second_step([]) == 16, "an executor that tells no times"
    assert second_step([0.1]) == second_step([0.1] * (STEPS_MIN - 1)) == 8, "too few to know"
    assert second_step([0.1] * STEPS_MIN) == 16


def test_no_more_run_than_the_budget_has_tokens() -> None:
    b = bench(max_num_batched_tokens=2)
    for _ in range(4):
        b.add(1)
    b.run(2)
    assert len(b.scheduler.running) == 2


def test_request_that_is_alone_among_runnable_yields_nothing_to_itself() -> None:
    b = bench(kv_blocks=6)
    request = b.add(4)
    while not request.is_finished:
        b.step()
    assert len(request.token_ids) == MODEL_LEN
    assert b.scheduler.preemptions == 0


# ---- the queue and the victims


def make(arrival: int, *, credit: int | None = None, prompt: int = 4) -> Request:
    return new_request(f"r{arrival}", arrival=arrival, credit=credit, prompt=prompt)


def test_first_come_first_served_whenever_it_was_put_in() -> None:
    queue = WaitingQueue()
    requests = [make(arrival) for arrival in range(4)]
    for index in (2, 0, 3, 1):
        queue.add(requests[index])
    assert queue.requests() == requests
    assert queue.first() is requests[0]
    queue.remove(requests[0])
    queue.remove(requests[2])
    assert queue.requests() == [requests[1], requests[3]]
    assert len(queue) == 2
    assert requests[0] not in queue
    assert requests[1] in queue


def test_parked_request_delays_none_and_keeps_its_place() -> None:
    queue = WaitingQueue()
    paused, compiling, ready = make(0, credit=0), make(1), make(2)
    compiling.status = RequestStatus.WAITING_FOR_GRAMMAR
    for request in (paused, compiling, ready):
        queue.add(request)
    assert queue.first() is ready
    assert len(queue) == 3
    queue.update(paused)  # nothing has changed
    assert queue.first() is ready
    paused.grant(1)
    compiling.move_to(RequestStatus.WAITING)
    for request in (paused, compiling, ready):
        queue.update(request)
    assert queue.requests() == [paused, compiling, ready]
    queue.check_invariants()


def test_what_has_run_comes_before_what_is_new_and_then_counts_the_admission() -> None:
    queue = WaitingQueue(ORDERS["priority"])
    admitted = {"late": 9, "early": 1, "replayed": 8, "preempted": 7, "urgent": 10}
    for arrival, (name, admitted_ns) in enumerate(admitted.items()):
        has_run = name in ("replayed", "preempted")
        request = new_request(name, arrival=arrival, admitted_ns=admitted_ns, replayed=has_run)
        request.priority = -1 if name == "urgent" else 0
        queue.add(request)
        queue.check_invariants()
    order = ["urgent", "preempted", "replayed", "early", "late"]
    assert [request.request_id for request in queue.requests()] == order
    assert [queue.position(request) for request in queue.requests()] == [0, 1, 2, 3, 4]


def test_a_replay_preempts_none_that_runs_and_is_next_when_there_is_room() -> None:
    scheduler = make_scheduler(kv_blocks=4, max_num_seqs=2, max_num_batched_tokens=16)
    b = Bench(scheduler)
    first, second = b.add(4), b.add(4)
    b.step()
    waiting = b.add(4)
    replay = new_request("replay", arrival=9, replayed=True, prompt=4, max_model_len=MODEL_LEN)
    scheduler.add(replay)
    b.step()
    assert scheduler.running == [first, second]
    scheduler.end(second, FinishReason.ABORT)
    b.step()
    assert replay in scheduler.running
    assert waiting not in scheduler.running


def test_who_is_parked_comes_back_to_its_place() -> None:
    queue = WaitingQueue()
    requests = [make(arrival) for arrival in range(3)]
    for request in requests:
        queue.add(request)
    requests[0].waits_for_sibling = True
    queue.park(requests[0])
    queue.check_invariants()
    assert queue.first() is requests[1]
    requests[0].waits_for_sibling = False
    queue.update(requests[0])
    assert queue.first() is requests[0]


def test_the_last_paused_one_yields_first_then_the_last_that_could_run() -> None:
    first, second, third, fourth = make(1, credit=0), make(2, credit=0), make(3), make(4)
    runnable = [third, fourth]
    assert next_victim([first, second, third, fourth], runnable) is second
    assert next_victim([first, third, fourth], runnable) is first
    assert next_victim([third, fourth], runnable) is fourth
    assert runnable == [third]


@pytest.mark.parametrize(
    ("blocks", "places", "expected"),
    [
        (0, 0, []),
        (-3, 1, ["r4"]),
        (1, 0, ["r4"]),
        (2, 0, ["r4", "r2"]),
        (1, 2, ["r4", "r2"]),
        (4, 0, None),
        (0, 3, None),
    ],
)
def test_paused_ones_yield_if_they_are_enough(
    blocks: int, places: int, expected: list[str] | None
) -> None:
    kv_cache = KVCacheManager(4, BlockPool(8))
    running = [make(1), make(2, credit=0, prompt=5), make(3), make(4, credit=0)]
    for request in running:
        kv_cache.admit(request, [])
    victims = victims_for_admission(running, kv_cache, [], blocks=blocks, places=places)
    named = None if victims is None else [victim.request_id for victim in victims]
    assert named == expected


def test_a_block_that_the_newcomer_hits_does_not_become_free() -> None:
    kv_cache = KVCacheManager(4, BlockPool(8))
    paused = make(1, credit=0, prompt=8)
    kv_cache.admit(paused, [])
    hit = paused.block_ids[:1]
    assert victims_for_admission([paused], kv_cache, hit, blocks=1, places=0) == [paused]
    assert victims_for_admission([paused], kv_cache, hit, blocks=2, places=0) is None


# ---- choices that share a prompt


def choices(count: int, *, prompt: int = 14, credit: int | None = None) -> list[AddRequest]:
    request = add_request("a", prompt=prompt, max_tokens=3, credit=credit)
    return [
        attrs.evolve(request, request_id=f"a{choice}", choice=choice, parent="a")
        for choice in range(count)
    ]


def driver_of_choices(prefix_cache: bool, budget: int = 8) -> Driver:
    core = make_core(kv_blocks=16, prefix_cache=prefix_cache, max_num_batched_tokens=budget)
    return Driver(core)


def computed_tokens(driver: Driver) -> int:
    """Steps until nothing is left to do; how many tokens they computed."""
    computed = 0
    while (step := driver.core.schedule(0.0)) is not None:
        computed += sum(step.token_counts)
        driver.finish(driver.worker.execute(step))
    return computed


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_the_prompt_is_computed_once(prefix_cache: bool) -> None:
    driver = driver_of_choices(prefix_cache)
    for request in choices(3):
        driver.core.add("f0", request)
    # 14 tokens of prompt, of which the siblings compute the last two; two decodes of each.
    assert computed_tokens(driver) == 14 + 2 * 2 + 3 * 2
    for request in choices(3):
        assert driver.tokens(request.request_id) == tokens_alone(request)


@pytest.mark.parametrize(
    ("computed_before", "requests", "token_counts"),
    [
        pytest.param(0, [*choices(2), add_request("b", prompt=[9, 9])], [14, 2], id="others"),
        pytest.param(0, choices(3, prompt=4), [4, 4, 4], id="less than a block"),
        pytest.param(14, choices(3), [2, 2, 2], id="a cached prompt"),
    ],
)
def test_who_need_not_wait_for_a_prompt_is_in_the_first_step(
    computed_before: int, requests: list[AddRequest], token_counts: list[int]
) -> None:
    driver = driver_of_choices(True, budget=16)
    if computed_before:
        driver.core.add("f0", add_request("before", prompt=computed_before))
        driver.run()
    for request in requests:
        driver.core.add("f0", request)
    assert driver.schedule().token_counts == token_counts


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_when_the_first_is_aborted_the_next_one_computes(prefix_cache: bool) -> None:
    driver = driver_of_choices(prefix_cache)
    for request in choices(3):
        driver.core.add("f0", request)
    step = driver.schedule()
    driver.core.abort("f0", [RequestKey("a0", 1)])
    driver.core.finish_step(driver.worker.execute(step), 0.0)
    # The first step computed two blocks, which the next one finds.
    assert computed_tokens(driver) == (14 - 8) + 2 + 2 * 2
    for request in choices(3)[1:]:
        assert driver.tokens(request.request_id) == tokens_alone(request)


def test_one_that_waits_may_be_aborted_and_one_without_credit_delays_no_other() -> None:
    driver = driver_of_choices(True)
    for index, request in enumerate(choices(4)):
        driver.core.add("f0", attrs.evolve(request, credit=0 if index == 0 else None))
    assert driver.step()
    driver.core.abort("f0", [RequestKey("a2", 1)])
    driver.run()
    assert driver.tokens("a0") == driver.tokens("a2") == []
    assert driver.tokens("a1") == tokens_alone(choices(2)[1])
    assert driver.tokens("a3") == tokens_alone(choices(4)[3])


def test_without_a_prefix_cache_no_other_finds_their_blocks() -> None:
    driver = driver_of_choices(False)
    for request in choices(2):
        driver.core.add("f0", request)
    driver.run()
    for alone in ("", "b"):
        other = attrs.evolve(choices(1)[0], request_id="other", attempt=2, parent=alone)
        driver.core.add("f0", other)
        driver.run()
        assert driver.last("other").cached_tokens == 0


def waits(core: EngineCore, request_id: str) -> bool:
    request = core._store.find("f0", request_id)
    assert request is not None
    return request.waits_for_sibling


def test_a_preempted_one_lets_the_others_go_on() -> None:
    """An older request needs the blocks of the one that computes the prompt."""
    core = make_core(kv_blocks=6, max_num_batched_tokens=4, max_num_seqs=3)
    driver = Driver(core)
    core.add("f0", add_request("old", prompt=[7] * 7, max_tokens=8))
    for request in choices(2):
        core.add("f0", request)
    preempted = False
    while driver.step():
        preempted |= bool(core.statistics().preemptions)
        if "a0" in core._store._live.get("f0", {}) and "a1" in core._store._live["f0"]:
            assert not (preempted and waits(core, "a0") and waits(core, "a1"))
    assert preempted
    for request in choices(2):
        assert driver.tokens(request.request_id) == tokens_alone(request)


def make_choice(choice: int, *, parent: str = "p", frontend: str = "f0") -> Request:
    return new_request(
        f"r{choice}", frontend=frontend, arrival=choice, choice=choice, parent=parent
    )


def test_parents_of_two_frontends_are_two() -> None:
    prompts = SharedPrompts()
    prompts.begin(make_choice(0))
    assert not prompts.wait_for_sibling(make_choice(1, frontend="f1"))
    assert not prompts.wait_for_sibling(make_choice(1, parent="q"))
