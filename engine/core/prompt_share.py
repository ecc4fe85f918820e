"""Share of short prompts: what long ones leave of each step to prompts that fit into one step.

In order alone a prompt of many steps takes the whole budget until it is computed, and everybody
behind it waits as long, a question of twelve tokens as well; above saturation for good. So a chunk
of a prompt that does not fit into a step leaves a share of the budget, as far as short prompts want
it; and while such a chunk is in the step, a short one may begin before the long ones that wait.

Nobody is overtaken for ever. The long one that runs computes in every step, so it is done one day;
then the first that waits is next, as none overtakes while no long one runs. It finds room, or has
to wait for those that run alone: another overtakes it only where rows and blocks are left for both.

Sans-IO: decisions about one step.
"""

from collections.abc import Callable, Sequence

import attrs

from .kv_cache_manager import KVCacheManager
from .queue import WaitingQueue
from .request import Request

# Share of the budget: beside short prompts that want all of it, long ones take a third longer.
SHARE = 0.25


@attrs.define(eq=False)
class PromptShare:
    """Share of one step; `step_tokens` is its budget while somebody reads along."""

    step_tokens: int
    waiting: WaitingQueue
    kv_cache: KVCacheManager
    # How many more may run.
    places: Callable[[], int]
    # A long prompt has a chunk in this step.
    has_long: bool = attrs.field(default=False, init=False)
    _tokens: int | None = attrs.field(default=None, init=False)

    def kept(self, count: int, behind: Sequence[Request] = ()) -> int:
        """How many tokens of the budget the next chunk leaves, of a request with so many to compute
        and those that run `behind` it.
        """
        if count <= self.step_tokens:
            return 0
        self.has_long = True
        if self._tokens is None:
            wanted = [each.total_tokens - each.scheduled_tokens - 1 for each in behind]
            tokens = sum(more for more in wanted if more < self.step_tokens)
            shorts = self.waiting.shorts(self.step_tokens)
            if shorts and self._has_room(shorts[:1]):
                tokens += sum(each.total_tokens for each in shorts)
            self._tokens = min(tokens, int(SHARE * self.step_tokens))
        return self._tokens

    def next_to_begin(self) -> Request | None:
        """The first of those that wait, or a short one that may overtake it."""
        first = self.waiting.first()
        if first is None or not self.has_long or first.total_tokens <= self.step_tokens:
            return first
        shorts = self.waiting.shorts(self.step_tokens)
        return shorts[0] if shorts and self._has_room([shorts[0], first]) else first

    def is_awaited(self) -> bool:
        """Whether someone who reads along could begin, were the step no larger than usual."""
        shorts = self.waiting.shorts(self.step_tokens)
        return any(each.is_interactive and self._has_room([each]) for each in shorts)

    def _has_room(self, requests: Sequence[Request]) -> bool:
        """Whether there are rows and blocks for all of these that wait; nobody gives way."""
        blocks = sum(self.kv_cache.blocks_to_admit(each, []) for each in requests)
        return len(requests) <= self.places() and blocks <= self.kv_cache.pool.free_count
