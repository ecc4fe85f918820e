"""The block pool: a table test of its bookkeeping, and any order of calls against a list model."""

import pytest

from triolet.engine.core.block_pool import BlockPool


def test_blocks_come_in_order_and_are_reused_last_first() -> None:
    pool = BlockPool(4)
    assert pool.take(3) == [0, 1, 2]
    assert pool.free_count == 1
    pool.release([0, 1])
    assert pool.take(3) == [0, 1, 3]
    pool.check_invariants()


def test_shared_block_is_free_when_the_last_holder_releases_it() -> None:
    pool = BlockPool(2)
    block_ids = pool.take(2)
    pool.share(block_ids[:1])
    pool.release(block_ids)
    assert [pool.references(block_id) for block_id in block_ids] == [1, 0]
    assert pool.free_count == 1
    pool.release(block_ids[:1])
    assert pool.free_count == 2
    pool.check_invariants()


def test_cached_blocks_are_found_shared_and_evicted_in_order_of_their_release() -> None:
    pool = BlockPool(4)
    table = pool.take(3)
    for block_id in table:
        pool.register(block_id, bytes([block_id]))
    pool.release(table)
    assert (pool.free_count, pool.cached_count) == (4, 3)
    assert pool.take(1) == [3], "what is not cached goes first"
    found = pool.find(b"\x00")
    assert found == 0
    pool.share([found])
    assert pool.take(2) == [2, 1], "the tail goes before the head"
    assert [pool.find(bytes([block_id])) for block_id in table] == [0, None, None]
    pool.release([0])
    assert pool.take(1) == [0]
    assert pool.cached_count == 0
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
