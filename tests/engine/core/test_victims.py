"""Who yields: paused ones first, the last in order first, and for admission only if it helps."""

import pytest

from triolet.engine.core.block_pool import BlockPool
from triolet.engine.core.kv_cache_manager import KVCacheManager
from triolet.engine.core.request import Request, make_request
from triolet.engine.core.victims import next_victim, victims_for_admission
from triolet.engine.messages import AddRequest
from triolet.engine.sampling_params import SamplingParams


def make(arrival: int, *, paused: bool = False, prompt: int = 4) -> Request:
    add = AddRequest(
        request_id=f"r{arrival}",
        attempt=1,
        prompt_token_ids=[1] * prompt,
        sampling=SamplingParams(seed=1),
        credit=0 if paused else None,
    )
    return make_request("f0", add, arrival=arrival, max_model_len=30)


def test_the_last_paused_one_yields_first_then_the_last_that_could_run() -> None:
    first, second, third, fourth = make(1, paused=True), make(2, paused=True), make(3), make(4)
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
    running = [make(1), make(2, paused=True, prompt=5), make(3), make(4, paused=True)]
    for request in running:
        kv_cache.admit(request, [])
    victims = victims_for_admission(running, kv_cache, [], blocks=blocks, places=places)
    named = None if victims is None else [victim.request_id for victim in victims]
    assert named == expected


def test_a_block_that_the_newcomer_hits_does_not_become_free() -> None:
    kv_cache = KVCacheManager(4, BlockPool(8))
    paused = make(1, paused=True, prompt=8)
    kv_cache.admit(paused, [])
    hit = paused.block_ids[:1]
    assert victims_for_admission([paused], kv_cache, hit, blocks=1, places=0) == [paused]
    assert victims_for_admission([paused], kv_cache, hit, blocks=2, places=0) is None
