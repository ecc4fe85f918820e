"""Keeps each request's block table long enough for the tokens that are computed next.

Sans-IO: arithmetic between tokens and blocks over a `BlockPool`. Must not know budgets, order or
victims: when there are too few blocks it says so, and `scheduler` decides who pays.

Token position p of a request: block `block_ids[p // block_tokens]`, slot `p % block_tokens`.
"""

from collections import Counter
from collections.abc import Iterable

import attrs

from .block_pool import BlockPool
from .request import Request


@attrs.define(eq=False)
class KVCacheManager:
    """Block tables of all requests; the tables themselves are `Request.block_ids`."""

    block_tokens: int
    pool: BlockPool

    def blocks_missing(self, request: Request, tokens: int) -> int:
        """How many more blocks its table needs to hold its first `tokens` tokens."""
        return max(0, -(-tokens // self.block_tokens) - len(request.block_ids))

    def grow(self, request: Request, tokens: int) -> list[int] | None:
        """Lengthen its table to hold `tokens` tokens; the ids appended.

        None if there are too few free blocks; then nothing has changed.
        """
        if tokens <= len(request.block_ids) * self.block_tokens:
            return []
        missing = self.blocks_missing(request, tokens)
        if missing > self.pool.free_count:
            return None
        taken = self.pool.take(missing)
        request.block_ids += taken
        return taken

    def free(self, request: Request) -> None:
        """Give all its blocks back; what they hold is lost to the request."""
        self.pool.release(request.block_ids)
        request.block_ids = []

    def check_invariants(self, holders: Iterable[Request]) -> None:
        """`holders`: all requests that may hold blocks. Fails if one is leaked or owned twice."""
        self.pool.check_invariants()
        held: Counter[int] = Counter()
        for request in holders:
            assert len(set(request.block_ids)) == len(request.block_ids)
            assert request.computed_tokens <= len(request.block_ids) * self.block_tokens
            held.update(request.block_ids)
        for block_id in range(self.pool.blocks):
            # Nothing is shared yet; with sharing, only the count of references stays true.
            assert held[block_id] == self.pool.references(block_id) <= 1, block_id
