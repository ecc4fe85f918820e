"""The choices of one prompt compute it once, whatever becomes of the one that does."""

import attrs
import pytest

from triolet.engine.core.engine_core import EngineCore
from triolet.engine.core.request import Request
from triolet.engine.core.shared_prompts import SharedPrompts
from triolet.engine.messages import AddRequest, RequestKey
from triolet.tests.engine.core.driver import (
    Driver,
    add_request,
    make_core,
    new_request,
    tokens_alone,
)


def choices(count: int, *, prompt: int = 14, credit: int | None = None) -> list[AddRequest]:
    request = add_request("a", prompt=prompt, max_tokens=3, credit=credit)
    return [
        attrs.evolve(request, request_id=f"a{choice}", choice=choice, parent="a")
        for choice in range(count)
    ]


def make(prefix_cache: bool, budget: int = 8) -> Driver:
    core = make_core(kv_blocks=16, prefix_cache=prefix_cache, max_num_batched_tokens=budget)
    return Driver(core)


def computed_tokens(driver: Driver) -> int:
    """Steps until nothing is left to do; how many tokens they computed."""
    computed = 0
    while (step := driver.core.schedule(0.0)) is not None:
        driver.core.check_invariants()
        computed += sum(step.token_counts)
        for frontend, message in driver.core.finish_step(driver.worker.execute(step), 0.0).items():
            driver.heard += [(frontend, output) for output in message.outputs]
        driver.core.check_invariants()
    return computed


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_the_prompt_is_computed_once(prefix_cache: bool) -> None:
    driver = make(prefix_cache)
    for request in choices(3):
        driver.core.add("f0", request)
    # 14 tokens of prompt, of which the siblings compute the last two; two decodes of each.
    assert computed_tokens(driver) == 14 + 2 * 2 + 3 * 2
    for request in choices(3):
        assert driver.tokens(request.request_id) == tokens_alone(request)


def test_others_do_not_wait_with_them() -> None:
    driver = make(True, budget=16)
    for request in [*choices(2), add_request("b", prompt=[9, 9])]:
        driver.core.add("f0", request)
    step = driver.core.schedule(0.0)
    assert step is not None
    assert step.token_counts == [14, 2]


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_when_the_first_is_aborted_the_next_one_computes(prefix_cache: bool) -> None:
    driver = make(prefix_cache)
    for request in choices(3):
        driver.core.add("f0", request)
    step = driver.core.schedule(0.0)
    assert step is not None
    driver.core.abort("f0", [RequestKey("a0", 1)])
    driver.core.finish_step(driver.worker.execute(step), 0.0)
    # The first step computed two blocks, which the next one finds.
    assert computed_tokens(driver) == (14 - 8) + 2 + 2 * 2
    for request in choices(3)[1:]:
        assert driver.tokens(request.request_id) == tokens_alone(request)


def test_one_that_waits_may_be_aborted_and_one_without_credit_delays_no_other() -> None:
    driver = make(True)
    for index, request in enumerate(choices(4)):
        driver.core.add("f0", attrs.evolve(request, credit=0 if index == 0 else None))
    assert driver.step()
    driver.core.abort("f0", [RequestKey("a2", 1)])
    driver.run()
    assert driver.tokens("a0") == driver.tokens("a2") == []
    assert driver.tokens("a1") == tokens_alone(choices(2)[1])
    assert driver.tokens("a3") == tokens_alone(choices(4)[3])


def test_without_a_prefix_cache_no_other_finds_their_blocks() -> None:
    driver = make(False)
    for request in choices(2):
        driver.core.add("f0", request)
    driver.run()
    for alone in ("", "b"):
        other = attrs.evolve(choices(1)[0], request_id="other", attempt=2, parent=alone)
        driver.core.add("f0", other)
        driver.run()
        assert driver.last("other").cached_tokens == 0


def test_a_prompt_of_less_than_a_block_is_computed_by_each() -> None:
    driver = make(True)
    for request in choices(3, prompt=4):
        driver.core.add("f0", request)
    step = driver.core.schedule(0.0)
    assert step is not None
    assert step.token_counts == [4, 4], "as the budget allows"


def test_a_prompt_that_is_cached_delays_no_other() -> None:
    driver = make(True)
    driver.core.add("f0", add_request("b", prompt=14))
    driver.run()
    for request in choices(3):
        driver.core.add("f0", request)
    step = driver.core.schedule(0.0)
    assert step is not None
    assert step.token_counts == [2, 2, 2]


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


def test_siblings_wait_until_the_first_has_computed_the_prompt() -> None:
    prompts, first, second, third = SharedPrompts(), make_choice(0), make_choice(1), make_choice(2)
    assert not prompts.wait_for_sibling(first)
    prompts.begin(first)
    assert prompts.wait_for_sibling(second)
    assert prompts.wait_for_sibling(third)
    assert (second.waits_for_sibling, second.is_schedulable) == (True, False)
    prompts.check_invariants([first])
    assert prompts.leave(first) == [second, third]
    assert second.is_schedulable
    assert prompts.leave(first) == [], "twice is harmless"
    prompts.begin(second)
    assert prompts.wait_for_sibling(third)


def test_who_ends_while_it_waits_is_not_woken() -> None:
    prompts, first, second, third = SharedPrompts(), make_choice(0), make_choice(1), make_choice(2)
    prompts.begin(first)
    prompts.wait_for_sibling(second)
    prompts.wait_for_sibling(third)
    assert prompts.leave(second) == []
    assert prompts.leave(first) == [third]


def test_parents_of_two_frontends_are_two() -> None:
    prompts = SharedPrompts()
    prompts.begin(make_choice(0))
    assert not prompts.wait_for_sibling(make_choice(1, frontend="f1"))
    assert not prompts.wait_for_sibling(make_choice(1, parent="q"))
