"""Block pool, block tables and prefix cache: all or nothing, shared, found, evicted, reported."""

from collections import Counter
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from triolet.engine.core.kv_cache_manager import (
    HASH_BYTES,
    BlockPool,
    KVCacheManager,
    block_hash,
    root_hash,
)
from triolet.engine.core.request import Request
from triolet.engine.messages import LiveRequest
from triolet.tests.engine.core.driver import Driver, add_request, make_core, new_request


def make(name: str = "a", *, prompt: int = 1, root: bytes = b"") -> Request:
    return new_request(name, prompt=prompt, cache_root=root)


def compute(manager: KVCacheManager, request: Request) -> None:
    """As a scheduler does when a step has completed that computed all it has."""
    request.computed_tokens = len(request.token_ids)
    if request.computed_tokens >= request.register_at:
        manager.register_hashes(request)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (12, 3)]
)
def test_table_covers_the_tokens(tokens: int, blocks: int) -> None:
    manager, request = KVCacheManager(4, BlockPool(3)), make()
    assert manager.blocks_missing(request, tokens) == blocks
    appended = manager.grow(request, tokens)
    assert appended is not None
    assert len(appended) == blocks
    assert request.block_ids == appended
    assert manager.grow(request, tokens) == []
    manager.check_invariants([request])


def test_growth_that_does_not_fit_changes_nothing() -> None:
    manager, request, other = KVCacheManager(4, BlockPool(3)), make("a"), make("b")
    assert manager.grow(request, 8) == [0, 1]
    assert manager.grow(other, 5) is None
    assert other.block_ids == []
    assert manager.grow(other, 4) == [2]
    manager.free(request)
    assert manager.grow(other, 12) is not None
    manager.check_invariants([request, other])


def test_leak_fails_the_invariants() -> None:
    manager, request = KVCacheManager(4, BlockPool(3)), make()
    manager.grow(request, 8)
    with pytest.raises(AssertionError):
        manager.check_invariants([])
    request.scheduled_tokens = 9
    with pytest.raises(AssertionError):
        manager.check_invariants([request])


@pytest.mark.parametrize(("prompt", "blocks"), [(3, 0), (4, 0), (5, 1), (8, 1), (9, 2), (10, 2)])
def test_hit_is_of_full_blocks_and_never_covers_the_last_token(prompt: int, blocks: int) -> None:
    manager = KVCacheManager(4, BlockPool(10))
    first, second = make("a", prompt=prompt, root=b"r"), make("b", prompt=prompt, root=b"r")
    assert manager.find_hit(first) == []
    manager.admit(first, [])
    assert manager.find_hit(second) == [], "what is not computed is not found"
    compute(manager, first)
    hit = manager.find_hit(second)
    assert hit == first.block_ids[:blocks]
    assert manager.blocks_to_admit(second, hit) == -(-prompt // 4) - blocks
    manager.admit(second, hit)
    assert second.computed_tokens == 4 * blocks
    assert second.block_ids[:blocks] == hit
    assert not set(second.block_ids[blocks:]) & set(first.block_ids)
    manager.check_invariants([first, second])


def test_what_is_released_is_found_until_it_is_evicted() -> None:
    manager = KVCacheManager(4, BlockPool(4))
    first, second = make("a", prompt=9, root=b"r"), make("b", prompt=9, root=b"r")
    manager.admit(first, [])
    compute(manager, first)
    manager.free(first)
    hit = manager.find_hit(second)
    assert manager.blocks_to_admit(second, hit) == 3, "none is referenced: they are free ones"
    other = make("c", prompt=8)
    manager.admit(other, [])
    assert manager.find_hit(second) == hit, "those that are not cached have gone"
    assert manager.grow(other, 12) is not None
    assert manager.find_hit(second) == hit[:1], "the tail goes first"
    manager.check_invariants([other])


def test_roots_and_tokens_keep_prefixes_apart() -> None:
    manager = KVCacheManager(4, BlockPool(8))
    first = make("a", prompt=9, root=b"r")
    manager.admit(first, [])
    compute(manager, first)
    other = make("b", prompt=9, root=b"r")
    other.token_ids[0] += 1
    assert manager.find_hit(other) == []
    assert manager.find_hit(make("c", prompt=9, root=b"s")) == []
    assert manager.find_hit(make("d", prompt=9)) == []
    half = make("e", prompt=9, root=b"r")
    half.token_ids[5] += 1
    assert len(manager.find_hit(half)) == 1


def test_output_is_found_and_tokens_that_were_never_applied_are_not() -> None:
    manager = KVCacheManager(4, BlockPool(8))
    first = make("a", prompt=3, root=b"r")
    manager.admit(first, [])
    compute(manager, first)
    assert len(manager.pool._cached) == 0
    first.token_ids += [7, 8]
    assert manager.grow(first, 8) is not None
    compute(manager, first)
    assert len(manager.pool._cached) == 1
    # It ended in flight: its 6th to 8th token were computed, and never known.
    first.computed_tokens = 8
    manager.register_hashes(first)
    assert len(manager.pool._cached) == 1
    manager.free(first)
    longer = make("b", prompt=3, root=b"r")
    longer.token_ids += [7, 8]
    assert len(manager.find_hit(longer)) == 1


def test_blocks_freed_are_those_in_no_other_table() -> None:
    manager = KVCacheManager(4, BlockPool(8))
    first, second = make("a", prompt=9, root=b"r"), make("b", prompt=9, root=b"r")
    manager.admit(first, [])
    compute(manager, first)
    manager.admit(second, manager.find_hit(second))
    for hit, freed in (([], [1, 3]), (first.block_ids[:2], [1, 1])):
        released = Counter[int]()
        each = [manager.blocks_freed_by(one, released, set(hit)) for one in (first, second)]
        assert each == freed


blocks = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), max_size=3)


def test_the_same_text_in_another_part_is_another_root() -> None:
    roots = {root_hash("n", "ab", ""), root_hash("n", "a", "b"), root_hash("n", "", "ab")}
    roots |= {root_hash("nab", "", ""), root_hash("n", "", "", "ab")}
    assert len(roots) == 5


def chain(root: bytes, content: list[list[int]]) -> bytes:
    for token_ids in content:
        root = block_hash(root, token_ids)
    return root


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(blocks, blocks, st.booleans())
def test_a_chain_tells_prefixes_apart(
    first: list[list[int]], second: list[list[int]], same_root: bool
) -> None:
    roots = (b"r" * HASH_BYTES, (b"r" if same_root else b"s") * HASH_BYTES)
    equal = chain(roots[0], first) == chain(roots[1], second)
    assert equal == (same_root and first == second)


def test_large_token_ids_are_hashed_whole() -> None:
    assert block_hash(b"", [2**31 - 1]) != block_hash(b"", [2**15 - 1])


def test_blocks_come_in_order_and_are_reused_last_first() -> None:
    pool = BlockPool(4)
    assert pool.take(3) == [0, 1, 2]
    assert pool.free_count == 1
    pool.release([0, 1])
    assert pool.take(3) == [0, 1, 3]
    pool.check_invariants()


def test_of_two_blocks_with_one_content_one_is_found() -> None:
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.register(first, b"a")
    pool.register(second, b"a")
    pool.register(first, b"b")
    assert (pool.find(b"a"), pool.find(b"b")) == (first, None)
    pool.release([second])
    pool.release([first])
    assert pool.take(3) == [second, 2, first]
    pool.check_invariants()


def test_misuse_fails_an_assertion() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError):
        pool.take(3)
    with pytest.raises(AssertionError):
        pool.share([0])
    with pytest.raises(AssertionError, match="not held"):
        pool.release([0])
    with pytest.raises(AssertionError):
        pool.register(0, b"a")


def test_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="blocks"):
        BlockPool(0)


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
    step = driver.schedule()
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


def test_a_preempted_request_finds_itself_and_that_is_no_news_to_count() -> None:
    driver = Driver(make_core(kv_blocks=6, max_num_seqs=2))
    for name in "ab":
        driver.core.add("f0", add_request(name, prompt=[ord(name) % 7] * 7, max_tokens=12))
    driver.run()
    statistics = driver.core.statistics()
    assert statistics.preemptions
    assert statistics.prefix_hits == 0
