"""Totals of what the engine core did, and a snapshot of all counts.

Sans-IO: plain integers.
"""

import attrs

from ..messages import EngineStatistics
from .scheduler import Scheduler


@attrs.define(eq=False)
class Statistics:
    """Totals since the start."""

    requests_added: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    aborts_unknown: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    messages_dropped: int = 0
    step_s_last: float = 0.0

    def snapshot(self, scheduler: Scheduler) -> EngineStatistics:
        """Everything, as of now."""
        return EngineStatistics(
            step=scheduler.step_number,
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            paused=scheduler.paused_count(),
            kv_blocks=scheduler.kv_cache.pool.blocks,
            kv_blocks_free=scheduler.kv_cache.pool.free_count,
            requests_added=self.requests_added,
            requests_finished=self.requests_finished,
            requests_aborted=self.requests_aborted,
            aborts_unknown=self.aborts_unknown,
            preemptions=scheduler.preemptions,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            messages_dropped=self.messages_dropped,
            step_s_last=self.step_s_last,
            aborts_after=list(scheduler.aborts_after),
        )

    def check_invariants(self, unfinished: int) -> None:
        """`unfinished`: requests that live. Fails if one has ended twice, or without a trace."""
        ended = self.requests_finished + self.requests_aborted
        assert self.requests_added == ended + unfinished
