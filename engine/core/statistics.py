"""Statistics of the engine core, and which frontends are sent them when.

Sans-IO: plain integers.

Every output message could carry statistics; most would repeat the last. So a frontend gets them
with a message of a step only if one of the *counts* (waiting, running, paused requests, free
blocks) differs from what it was sent last. A frontend that gets no outputs gets no statistics
either: the shell may send it `EngineCore.statistics()` at its own pace.
"""

from collections.abc import Iterable

import attrs

from ..messages import EngineStatistics
from .request import Frontend
from .scheduler import Scheduler

# Waiting, running, paused, free blocks.
Counts = tuple[int, int, int, int]


@attrs.define(eq=False)
class Statistics:
    """Totals since the start, and each frontend's last known counts."""

    requests_added: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    aborts_unknown: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    messages_dropped: int = 0
    step_s_last: float = 0.0

    # {frontend: counts it was sent last}; `forget` takes out those who are gone.
    _counts_sent: dict[Frontend, Counts] = attrs.field(factory=dict, init=False)

    def updates(
        self, frontends: Iterable[Frontend], scheduler: Scheduler
    ) -> dict[Frontend, EngineStatistics]:
        """A snapshot for each of these frontends whose counts are old; they are sent it now."""
        counts = _counts(scheduler)
        updates: dict[Frontend, EngineStatistics] = {}
        snapshot: EngineStatistics | None = None
        for frontend in frontends:
            if self._counts_sent.get(frontend) != counts:
                if snapshot is None:
                    snapshot = self.snapshot(scheduler)
                self._counts_sent[frontend] = counts
                updates[frontend] = snapshot
        return updates

    def forget(self, frontend: Frontend) -> None:
        """It may have lost what it was sent, or is gone."""
        self._counts_sent.pop(frontend, None)

    def snapshot(self, scheduler: Scheduler) -> EngineStatistics:
        """Everything, as of now."""
        waiting, running, paused, kv_blocks_free = _counts(scheduler)
        return EngineStatistics(
            step=scheduler.step_number,
            waiting=waiting,
            running=running,
            paused=paused,
            kv_blocks=scheduler.kv_cache.pool.blocks,
            kv_blocks_free=kv_blocks_free,
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


def _counts(scheduler: Scheduler) -> Counts:
    return (
        len(scheduler.waiting),
        len(scheduler.running),
        scheduler.paused_count(),
        scheduler.kv_cache.pool.free_count,
    )
