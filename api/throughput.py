"""Throughput line: what a server computes, each ten seconds while it is busy, in vLLM's words.

Every frontend hears all counts of all engines; the one with the lowest place of those that live
writes the line, so there is one for the whole server. An idle server says so once, then nothing.
"""

import logging
import math
from collections.abc import Callable, Mapping

import attrs
import trio

from ..engine.messages import EngineStatistics
from ..nurseries.tasks.background import waiting_for
from ..runtime.frontend.generation import Generator

logger = logging.getLogger(__name__)

# A frontend is ready some tenths of a second before its engines' first counts come.
FIRST_LOOK_S = 1.0


@attrs.define(eq=False)
class Throughput:
    """Rates of a server out of its engines' counts, which begin anew with each life of one."""

    _before: dict[int, EngineStatistics] = attrs.field(factory=dict, init=False)
    _at: float = attrs.field(default=math.nan, init=False)
    # The hit rate of the last look-up, in percent.
    _hit_rate: float = attrs.field(default=0.0, init=False)
    _was_busy: bool = attrs.field(default=False, init=False)

    def handle_counts(
        self, engines: Mapping[int, EngineStatistics], now: float
    ) -> dict[str, float] | None:
        """Figures to log now, by name.

        None of a server that was idle before, and is, and of the first counts that there are: they
        say nothing of the time before.
        """
        if not self._before:
            self._before.update(engines)
            self._at = now
            return None
        more = [self._more(rank, engines[rank]) for rank in engines] or [(0, 0, 0, 0)]
        prompt, output, queries, hits = map(sum, zip(*more, strict=True))
        elapsed_s, self._at = now - self._at, now
        self._before.update(engines)
        if queries:
            self._hit_rate = 100 * hits / queries
        rows = engines.values()
        running, waiting = sum(each.running for each in rows), sum(each.waiting for each in rows)
        was_busy, self._was_busy = self._was_busy, bool(running or waiting or prompt or output)
        if not (self._was_busy or was_busy) or not elapsed_s > 0:
            return None
        blocks = sum(each.kv_blocks for each in rows)
        free = sum(each.kv_blocks_free for each in rows)
        return {
            "prompt_tokens_per_s": round(prompt / elapsed_s, 1),
            "output_tokens_per_s": round(output / elapsed_s, 1),
            "running": running,
            "waiting": waiting,
            "kv_usage_percent": round(100 * (1 - free / blocks), 1) if blocks else 0.0,
            "prefix_hit_percent": round(self._hit_rate, 1),
        }

    def _more(self, rank: int, now: EngineStatistics) -> tuple[int, int, int, int]:
        """Tokens of prompts, sampled, looked up and found, since the last look."""
        before = self._before.get(rank, now)  # what it did before it was met is not of this time
        if before.step > now.step:
            before = EngineStatistics()
        return (
            now.prompt_tokens - before.prompt_tokens,
            now.output_tokens - before.output_tokens,
            now.prefix_queries - before.prefix_queries,
            now.prefix_hits - before.prefix_hits,
        )


@attrs.frozen
class ThroughputLog:
    """Writes the lines of a frontend; `is_first`: whether it is the one that does."""

    generator: Generator
    period_s: float
    is_first: Callable[[], bool]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `throughput-log`; never returns unless cancelled."""
        task_status.started()
        throughput = Throughput()
        if not self.period_s:
            with waiting_for("its end, as no line is wanted"):
                await trio.sleep_forever()
        while not self.generator.statistics().engines:
            with waiting_for("the first counts of an engine"):
                await trio.sleep(min(FIRST_LOOK_S, self.period_s))
        while True:
            engines = self.generator.statistics().engines
            said = throughput.handle_counts(engines, trio.current_time())
            if said is not None and self.is_first():
                logger.info(
                    "Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f"
                    " tokens/s, Running: %d reqs, Waiting: %d reqs, KV cache usage: %.1f%%,"
                    " Prefix cache hit rate: %.1f%%",
                    *said.values(),
                    extra={"facts": said},
                )
            with waiting_for("the time of its next line"):
                await trio.sleep(self.period_s)
