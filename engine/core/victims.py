"""Chooses who must give up its place for another request; `scheduler` takes it away.

Sans-IO: pure functions. Nobody chosen here is in flight but the youngest of those who run, and that
one is waited for. Must not know why somebody needs room.
"""

from collections import Counter
from collections.abc import Sequence

from .kv_cache_manager import KVCacheManager
from .request import Request


def next_victim(running: Sequence[Request], runnable: list[Request]) -> Request:
    """Who yields to a running request in need: the last paused one, else the last of `runnable`.

    Both are in order. The latter is taken off `runnable`; it has not been served yet in this step.
    A paused one is never in flight: what its credit allowed has all been applied.
    """
    for request in reversed(running):
        if not request.has_credit:
            return request
    return runnable.pop()


def victims_for_admission(
    running: Sequence[Request],
    kv_cache: KVCacheManager,
    hit: list[int],
    *,
    blocks: int,
    places: int,
) -> list[Request] | None:
    """The paused requests that yield to a waiting one: at least `places`, and `blocks` with them.

    No more of them than needed, the last first; None if all of them are not enough. Blocks of its
    `hit` do not become free by being released.
    """
    victims: list[Request] = []
    if blocks <= 0 and places <= 0:
        return victims
    paused = [request for request in reversed(running) if not request.has_credit]
    # While somebody waits this is asked in every step: what is plain is not counted block by block.
    if len(paused) < places or sum(len(request.block_ids) for request in paused) < blocks:
        return None
    released, kept = Counter[int](), frozenset(hit)
    for request in paused:
        victims.append(request)
        blocks -= kv_cache.blocks_freed_by(request, released, kept)
        if len(victims) >= places and blocks <= 0:
            return victims
    return None
