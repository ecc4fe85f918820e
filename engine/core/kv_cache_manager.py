"""Keeps each request's block table long enough for the tokens that are computed next.

Sans-IO: arithmetic between tokens and blocks over a `BlockPool`. Must not know budgets, order or
victims: when there are too few blocks it says so, and `scheduler` decides who pays.

Token position p of a request: block `block_ids[p // block_tokens]`, slot `p % block_tokens`.

*Prefix cache*: a full block whose step has completed gets its digest (`block_hash`) and can be
shared by every request that begins with the same tokens, under the same root. A hit is the longest
run of cached blocks from the start; it never covers the last token, since that has to be computed
to go on from. What a hit covers is never written to: the table goes on in a block of its own.

    block_ids   | full: named when computed | full | full | last, growing |
                |<--- hit: shared --------->|<--- taken from the pool --->|
"""

from collections import Counter
from collections.abc import Iterable, Set

import attrs

from .block_hash import block_digest
from .block_pool import BlockPool
from .request import NEVER, Request


@attrs.define(eq=False)
class KVCacheManager:
    """Block tables of all requests; the tables themselves are `Request.block_ids`."""

    block_tokens: int
    pool: BlockPool

    # ---- a request comes: its hit, then blocks for all its tokens

    def find_hit(self, request: Request) -> list[int]:
        """The cached blocks that its table can begin with; nothing is shared yet."""
        hit: list[int] = []
        if not request.takes_hits:
            return hit
        blocks = (len(request.token_ids) - 1) // self.block_tokens
        for index in range(blocks):
            block_id = self.pool.find(self._digest(request, index))
            if block_id is None:
                break
            hit.append(block_id)
        return hit

    def shareable_blocks(self, request: Request) -> int:
        """How many blocks of its prompt a hit may cover at most."""
        return (request.prompt_tokens - 1) // self.block_tokens

    def blocks_to_admit(self, request: Request, hit: list[int]) -> int:
        """How many free blocks `admit` uses up; also those of the hit that nobody holds."""
        unheld = sum(self.pool.references(block_id) == 0 for block_id in hit)
        return self.blocks_missing(request, len(request.token_ids)) - len(hit) + unheld

    def blocks_freed_by(self, victim: Request, released: Counter[int], hit: Set[int]) -> int:
        """How many more blocks become free if `victim` gives its own back; none of `hit`.

        `released` are those that others give back, by how often; the victim's are added.
        """
        freed = 0
        for block_id in victim.block_ids:
            released[block_id] += 1
            freed += released[block_id] == self.pool.references(block_id) and block_id not in hit
        return freed

    def admit(self, request: Request, hit: list[int]) -> None:
        """Its table: the hit, then blocks for the rest of its tokens. The caller knows of room."""
        assert not request.block_ids
        self.pool.share(hit)
        request.block_ids = list(hit)
        request.computed_tokens = len(hit) * self.block_tokens
        request.named_blocks = len(hit)
        if request.cache_root:
            request.name_block_at = (len(hit) + 1) * self.block_tokens
        appended = self.grow(request, len(request.token_ids))
        assert appended is not None, "there is room"

    # ---- it runs

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

    def name_blocks(self, request: Request) -> None:
        """A step has completed and `computed_tokens` has reached `name_block_at`.

        Of a request that ended in flight, tokens may have been computed that nobody knows.
        """
        full = min(request.computed_tokens, len(request.token_ids)) // self.block_tokens
        for index in range(request.named_blocks, full):
            self.pool.cache(request.block_ids[index], self._digest(request, index))
        request.named_blocks = full
        request.name_block_at = (full + 1) * self.block_tokens

    def disown(self, request: Request) -> None:
        """Its keys and values may be wrong: nobody may find them, nor what it computes further."""
        self.pool.disown(request.block_ids)
        request.name_block_at = NEVER

    def free(self, request: Request) -> None:
        """Give all its blocks back; what has a name may be found again for a while."""
        self.pool.release(request.block_ids)
        request.block_ids = []
        request.named_blocks = 0
        request.name_block_at = NEVER

    def _digest(self, request: Request, index: int) -> bytes:
        """Of its block `index`; all of the block's tokens are known. Each is computed once."""
        digests, size = request.block_digests, self.block_tokens
        while len(digests) <= index:
            start = len(digests) * size
            parent = digests[-1] if digests else request.cache_root
            digests.append(block_digest(parent, request.token_ids[start : start + size]))
        return digests[index]

    def check_invariants(self, holders: Iterable[Request]) -> None:
        """`holders`: all requests that may hold blocks. Fails if one is leaked or owned twice."""
        self.pool.check_invariants()
        held: Counter[int] = Counter()
        for request in holders:
            assert len(set(request.block_ids)) == len(request.block_ids)
            assert request.scheduled_tokens <= len(request.block_ids) * self.block_tokens
            assert request.named_blocks <= request.computed_tokens // self.block_tokens
            held.update(request.block_ids)
            for index, block_id in enumerate(request.block_ids):
                shared = self.pool.references(block_id) > 1
                assert not shared or index < request.named_blocks, "a block that grows is shared"
        for block_id in range(self.pool.blocks):
            assert held[block_id] == self.pool.references(block_id), block_id
