"""Fuzzes the block pool: takes, shares and releases in any order.

Invariant: a block has as many references as holders, and is free exactly when it has none.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import attrs

from ..engine.core.block_pool import BlockPool
from .fuzzer import Fuzzer

BLOCKS = 7
MakePool = Callable[[int], BlockPool]


@attrs.frozen
class Act:
    """`take` so many (at most what is free), or `share` or `release` whichever table."""

    what: str
    number: int


def draw(chance: Random, count: int) -> list[Act]:
    """A little more is taken than released, so that the pool is often empty."""
    acts = ("take", "take", "share", "release", "release")
    return [Act(chance.choice(acts), chance.randrange(2 * BLOCKS)) for _ in range(count)]


def check(acts: Sequence[Act], make_pool: MakePool) -> Counter[str]:
    """Count holders by hand, after every act."""
    pool = make_pool(BLOCKS)
    tables: list[list[int]] = []
    reached: Counter[str] = Counter()
    for act in acts:
        if act.what == "take":
            count = act.number % (pool.free_count + 1)
            table = pool.take(count)
            assert len(table) == count
            tables.append(table)
            reached["emptied"] += pool.free_count == 0
        elif tables and act.what == "share":
            table = tables[act.number % len(tables)]
            pool.share(table)
            tables.append(list(table))
            reached["shared"] += bool(table)
        elif tables and act.what == "release":
            pool.release(tables.pop(act.number % len(tables)))
        _check_counts(pool, tables)
    return reached


def _check_counts(pool: BlockPool, tables: Sequence[Sequence[int]]) -> None:
    pool.check_invariants()
    held = Counter(block_id for table in tables for block_id in table)
    assert all(0 <= block_id < BLOCKS for block_id in held)
    for block_id in range(BLOCKS):
        assert pool.references(block_id) == held[block_id]
    assert pool.free_count == BLOCKS - len(held)


class _Hasty(BlockPool):
    """Planted: the first of several holders that releases a block frees it for all."""

    def release(self, block_ids: Sequence[int]) -> None:
        """Drops every reference."""
        for block_id in block_ids:
            self._references[block_id] = 1
        super().release(block_ids)


class _Leaky(BlockPool):
    """Planted: the last block of a table is not given back."""

    def release(self, block_ids: Sequence[int]) -> None:
        """Gives all but the last back."""
        super().release(block_ids[:-1])


class _Generous(BlockPool):
    """Planted: sharing does not count."""

    def share(self, block_ids: Sequence[int]) -> None:
        """Counts nothing."""


FUZZER = Fuzzer[Act, MakePool](
    name="block-pool",
    invariant="a block has as many references as holders, and is free when it has none",
    draw=draw,
    check=check,
    target=BlockPool,
    faults={
        "one holder frees it for all": _Hasty,
        "a table's last block leaks": _Leaky,
        "sharing is not counted": _Generous,
    },
    smoke_rounds=50,
    reaches=frozenset({"emptied", "shared"}),
)
