"""The block pool: a table test of its bookkeeping, and any order of calls against a list model."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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


def test_misuse_fails_an_assertion() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError):
        pool.take(3)
    with pytest.raises(AssertionError):
        pool.share([0])
    with pytest.raises(AssertionError, match="not held"):
        pool.release([0])


def test_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="blocks"):
        BlockPool(0)


class BlockPoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.tables: list[list[int]] = []

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.pool.free_count))
        self.tables.append(self.pool.take(count))
        assert len(self.tables[-1]) == count

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.pool.share(table)
        self.tables.append(list(table))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.pool.release(self.tables.pop(index))

    @invariant()
    def counted(self) -> None:
        self.pool.check_invariants()
        held = [block_id for table in self.tables for block_id in table]
        for block_id in range(6):
            assert self.pool.references(block_id) == held.count(block_id)
        assert self.pool.free_count == 6 - len(set(held))


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, derandomize=True, database=None
)
