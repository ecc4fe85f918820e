"""Block pool: free KV blocks, reference counts, and cached blocks by the hash of their content.

Sans-IO: numbers and hashes only; the memory behind them is the workers'.

A block has one reference for each table that it is in: several where a prefix is shared. It is free
when the last one was released. A free block that is *cached*, registered under the hash of its
content, can be shared again until it is taken for something else:

    take  <-  stack of free blocks that are not cached: what was released last is still warm
          <-  cached ones without a reference, the least recently used first

A table is released from its end, so of one prefix the tail is evicted first: the head is of use to
more, and a tail is of none without it.
"""

from collections import OrderedDict
from collections.abc import Sequence

import attrs


@attrs.define(eq=False)
class BlockPool:
    """`blocks` blocks numbered from 0."""

    blocks: int = attrs.field(validator=attrs.validators.ge(1))

    # Free blocks that are not cached; the next to take is the last.
    _free: list[int] = attrs.field(init=False)
    # Free blocks that are cached, in order of eviction. (A plain dict would look for its first item
    # ever longer when items are taken from its front.)
    _evictable: OrderedDict[int, None] = attrs.field(factory=OrderedDict, init=False)
    # References by block id; 0 <=> the id is in exactly one of the two above.
    _references: list[int] = attrs.field(init=False)
    # {hash: the block with this content}, and the other way round: one block for each hash.
    _cached: dict[bytes, int] = attrs.field(factory=dict, init=False)
    _hashes: dict[int, bytes] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.blocks - 1, -1, -1))
        self._references = [0] * self.blocks

    @property
    def free_count(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free) + len(self._evictable)

    @property
    def cached_count(self) -> int:
        """Blocks that can be found, referenced or free."""
        return len(self._cached)

    def take(self, count: int) -> list[int]:
        """`count` free blocks, each with one reference; the caller has checked `free_count`."""
        assert 0 <= count <= self.free_count, (count, self.free_count)
        taken = []
        for _ in range(count):
            block_id = self._free.pop() if self._free else self._evict()
            self._references[block_id] = 1
            taken.append(block_id)
        return taken

    def share(self, block_ids: Sequence[int]) -> None:
        """One more reference to each of these blocks, which are referenced or cached."""
        for block_id in block_ids:
            if self._references[block_id] == 0:
                assert block_id in self._evictable, block_id
                del self._evictable[block_id]
            self._references[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Give one reference to each back, the last first."""
        for block_id in reversed(block_ids):
            references = self._references[block_id]
            assert references > 0, f"block {block_id} is released but not held"
            self._references[block_id] = references - 1
            if references == 1:
                if block_id in self._hashes:
                    self._evictable[block_id] = None
                else:
                    self._free.append(block_id)

    def register(self, block_id: int, block_hash: bytes) -> None:
        """This block, which is referenced, is full and can be found by its hash from now on.

        Of two blocks with one content only the first can be found.
        """
        assert self._references[block_id] > 0, block_id
        if block_hash not in self._cached and block_id not in self._hashes:
            self._cached[block_hash] = block_id
            self._hashes[block_id] = block_hash

    def forget(self, block_ids: Sequence[int]) -> None:
        """The content of these blocks is not what it should be: they cannot be found any more."""
        for block_id in block_ids:
            assert self._references[block_id] > 0, block_id
            block_hash = self._hashes.pop(block_id, None)
            if block_hash is not None:
                del self._cached[block_hash]

    def find(self, block_hash: bytes) -> int | None:
        """The block with this content; `share` it before anything is taken."""
        return self._cached.get(block_hash)

    def references(self, block_id: int) -> int:
        """How many tables this block is in."""
        return self._references[block_id]

    def _evict(self) -> int:
        block_id, _ = self._evictable.popitem(last=False)
        del self._cached[self._hashes.pop(block_id)]
        return block_id

    def check_invariants(self) -> None:
        """Fails an assertion if a block is lost, free twice, or free and referenced."""
        assert len(self._references) == self.blocks
        free = set(self._free)
        assert len(free) == len(self._free)
        assert not free & self._evictable.keys()
        for block_id, references in enumerate(self._references):
            assert references >= 0
            is_free = block_id in free or block_id in self._evictable
            assert (references == 0) == is_free, block_id
        assert {block: each for each, block in self._cached.items()} == self._hashes
        assert self._evictable.keys() <= self._hashes.keys()
        assert not free & self._hashes.keys()
