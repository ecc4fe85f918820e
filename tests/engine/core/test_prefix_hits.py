"""The prefix cache as requests see it: what is not computed, reported, or ever shared."""

from typing import Any

import attrs
import pytest

from triolet.engine.messages import LiveRequest
from triolet.engine.sampling_params import SamplingParams
from triolet.tests.engine.core.driver import Driver, add_request, make_core


@pytest.fixture
def driver() -> Driver:
    return Driver(make_core())


@pytest.mark.parametrize("in_columns", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 4])
def test_a_prompt_seen_before_is_not_computed_again(
    in_columns: bool, max_tokens: int, driver: Driver
) -> None:
    first = add_request("a", prompt=9, max_tokens=max_tokens)
    driver.core.add("f0", first)
    driver.run()
    again = attrs.evolve(first, request_id="b", in_columns=in_columns)
    driver.core.add("f0", again)
    step = driver.core.schedule(0.0)
    assert step is not None
    assert (step.new[0].computed_tokens, step.token_counts) == (8, [1])
    driver.core.finish_step(driver.worker.execute(step), 0.0)
    outputs, _ = driver.core.resync("f0", [LiveRequest("b", 1, 0, None)])
    assert [output.cached_tokens for output in outputs] == [8], "also when it is sent again"
    driver.run()
    statistics = driver.core.statistics()
    assert (statistics.prefix_queries, statistics.prefix_hits) == (18, 8)


def test_cached_tokens_are_sent_once_and_with_the_first_token(driver: Driver) -> None:
    for name in "ab":
        driver.core.add("f0", attrs.evolve(add_request(name, prompt=5), in_columns=name == "b"))
        driver.run()
    sent = {
        name: [output.cached_tokens for _, output in driver.heard if output.request_id == name]
        for name in "ab"
    }
    # Of b, tokens 1 and 2 were columns.
    assert sent == {"a": [0, 0, 0, 0], "b": [4, 4]}


@pytest.mark.parametrize(
    "other",
    [
        {"principal": "p"},
        {"cache_salt": "s"},
        {"prompt_token_ids": [9, 1, 2, 3, 4, 5, 6, 7, 8]},
    ],
)
def test_nothing_is_shared_across_principals_salts_and_prompts(
    other: dict[str, Any], driver: Driver
) -> None:
    first = add_request("a", prompt=9)
    driver.core.add("f0", first)
    driver.run()
    driver.core.add("f0", attrs.evolve(first, request_id="b", **other))
    driver.run()
    assert driver.core.statistics().prefix_hits == 0
    driver.core.add("f1", attrs.evolve(first, request_id="c", **other))
    driver.run()
    assert driver.core.statistics().prefix_hits == 8, "another frontend is no other client"


def test_without_a_prefix_cache_everything_is_computed() -> None:
    driver = Driver(make_core(prefix_cache=False))
    for name in "ab":
        driver.core.add("f0", add_request(name, prompt=9))
        driver.run()
    statistics = driver.core.statistics()
    assert (statistics.prefix_queries, statistics.prefix_hits) == (0, 0)
    assert driver.last("b").cached_tokens == 0


def test_a_preempted_request_finds_what_is_left_of_it() -> None:
    driver = Driver(make_core(kv_blocks=6, max_num_seqs=2))
    requests = [add_request(name, prompt=[seed] * 7, seed=seed) for seed, name in enumerate("ab")]
    for request in requests:
        driver.core.add("f0", attrs.evolve(request, sampling=SamplingParams(seed=7, max_tokens=12)))
    preempted_at = resumed_from = 0
    while driver.core.has_work():
        step = driver.core.schedule(0.0)
        assert step is not None
        if driver.core.statistics().preemptions and not preempted_at:
            preempted_at = step.number
        elif preempted_at and step.new:
            resumed_from = step.new[0].computed_tokens
        driver.core.finish_step(driver.worker.execute(step), 0.0)
    assert preempted_at
    assert resumed_from > 0
    assert driver.core.statistics().prefix_hits == 0, "a request finds itself: no news to count"


def test_a_request_for_its_prompts_logprobs_takes_no_hit_and_leaves_some(driver: Driver) -> None:
    for name in "ab":
        plain = add_request(name, prompt=9)
        asks = attrs.evolve(plain.sampling, prompt_logprobs=1)
        driver.core.add("f0", attrs.evolve(plain, sampling=asks))
        driver.run()
    assert driver.core.statistics().prefix_queries == 0
    driver.core.add("f0", add_request("c", prompt=9))
    driver.run()
    assert driver.core.statistics().prefix_hits == 8
