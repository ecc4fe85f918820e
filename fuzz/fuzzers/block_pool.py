"""Fuzzes the block pool: takes, shares, releases, names and finds blocks in any order.

Invariant: a block has as many references as holders, is free exactly when it has none, and is found
by a name only while it contains what was named.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import attrs

from ...engine.core.kv_cache_manager import BlockPool
from ..fuzzer import Fuzzer

BLOCKS = 7
MakePool = Callable[[int], BlockPool]


@attrs.frozen
class Act:
    """`take` so many (at most what is free), or `share` or `release` whichever table.

    `name` gives the first block of a table its content's name; `find` looks for a content.
    """

    what: str
    number: int


def draw(chance: Random, count: int) -> list[Act]:
    """A little more is taken than released, so that the pool is often empty."""
    acts = ("take", "take", "share", "release", "release", "name", "name", "find")
    return [Act(chance.choice(acts), chance.randrange(2 * BLOCKS)) for _ in range(count)]


def check(acts: Sequence[Act], make_pool: MakePool) -> Counter[str]:
    """Count holders by hand, after every act."""
    pool = make_pool(BLOCKS)
    tables: list[list[int]] = []
    # {block: what it contains}, for blocks whose content was named since they were taken.
    contents: dict[int, bytes] = {}
    reached: Counter[str] = Counter()
    for act in acts:
        content = bytes([act.number])
        if act.what == "take":
            count = act.number % (pool.free_count + 1)
            table = pool.take(count)
            assert len(table) == count
            tables.append(table)
            reached["evicted"] += any(contents.pop(block_id, b"") for block_id in table)
        elif act.what == "find":
            block_id = pool.find(content)
            assert block_id is None or contents.get(block_id) == content, "something else is there"
            if block_id is not None:
                pool.share([block_id])
                tables.append([block_id])
                reached["found"] += 1
            reached["emptied"] += pool.free_count == 0
        elif tables and act.what == "share":
            table = tables[act.number % len(tables)]
            pool.share(table)
            tables.append(list(table))
            reached["shared"] += bool(table)
        elif tables and act.what == "release":
            pool.release(tables.pop(act.number % len(tables)))
        elif any(tables) and act.what == "name":
            held = [table for table in tables if table]
            block_id = held[act.number % len(held)][0]
            if block_id not in contents:
                pool.register(block_id, content)
                contents[block_id] = content
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


class _Forgetful(BlockPool):
    """Planted: what is evicted keeps its name."""

    def _evict(self) -> int:
        block_id, _ = self._evictable.popitem(last=False)
        del self._hashes[block_id]
        return block_id

    def check_invariants(self) -> None:
        """Says nothing."""


FUZZER = Fuzzer[Act, MakePool](
    name="block-pool",
    invariant="a block has as many references as holders, and a name while it has the content",
    draw=draw,
    check=check,
    target=BlockPool,
    faults={
        "one holder frees it for all": _Hasty,
        "a table's last block leaks": _Leaky,
        "sharing is not counted": _Generous,
        "an evicted block keeps its name": _Forgetful,
    },
    smoke_rounds=50,
    reaches=frozenset({"emptied", "shared", "evicted", "found"}),
)
