"""Hands out KV blocks by number and counts who holds each.

Sans-IO: numbers only; the memory behind them is the workers'. Must not know requests or tokens.

A block has one holder per reference: a request's table, later also sharers of a prefix (children
of one prompt, prefix hits). It is free when the last one has released it. The free list is a stack:
what was released last is still warm in the worker's cache. When blocks carry hashes it becomes a
queue in order of eviction; nothing outside this file will notice.
"""

from collections.abc import Sequence

import attrs


@attrs.define(eq=False)
class BlockPool:
    """`blocks` blocks numbered from 0."""

    blocks: int = attrs.field(validator=attrs.validators.ge(1))

    # Free block ids; the next to hand out is the last.
    _free: list[int] = attrs.field(init=False)
    # References by block id; 0 <=> the id is in _free.
    _references: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.blocks - 1, -1, -1))
        self._references = [0] * self.blocks

    @property
    def free_count(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` free blocks, each with one reference; the caller has checked `free_count`."""
        assert 0 <= count <= len(self._free), (count, len(self._free))
        taken = [self._free.pop() for _ in range(count)]
        for block_id in taken:
            self._references[block_id] = 1
        return taken

    def share(self, block_ids: Sequence[int]) -> None:
        """One more reference to each of these blocks, which somebody holds."""
        for block_id in block_ids:
            assert self._references[block_id] > 0, block_id
            self._references[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Give one reference to each back, the last first, so that a table's head is reused first.

        A stack: what is pushed last is taken first. (A queue in order of eviction, with the same
        loop, would evict tails first, which are of less use to others.)
        """
        for block_id in reversed(block_ids):
            references = self._references[block_id]
            assert references > 0, f"block {block_id} is released but not held"
            self._references[block_id] = references - 1
            if references == 1:
                self._free.append(block_id)

    def references(self, block_id: int) -> int:
        """How many hold this block."""
        return self._references[block_id]

    def check_invariants(self) -> None:
        """Fails an assertion if a block is lost, free twice, or free and held."""
        assert len(set(self._free)) == len(self._free)
        assert len(self._references) == self.blocks
        free = set(self._free)
        for block_id, references in enumerate(self._references):
            assert references >= 0
            assert (references == 0) == (block_id in free), block_id
