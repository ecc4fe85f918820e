"""Latency histograms of requests, counted once for each, at its end.

Sans-IO: seconds in, counts out. Buckets are vLLM's, so that its dashboards fit.
"""

import math
from bisect import bisect_left
from itertools import accumulate

import attrs

from .ledger_entry import RequestState

# Seconds; each bucket holds what is at most its bound. vLLM's, thinned out.
FIRST_TOKEN_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5,
                        5.0, 7.5, 10.0, 20.0, 40.0, 80.0)  # fmt: skip
TOKEN_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                  0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)  # fmt: skip
REQUEST_BOUNDS_S = (0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0,
                    20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)  # fmt: skip


@attrs.define
class Histogram:
    """Counts by bucket; the last bucket has no bound."""

    bounds_s: tuple[float, ...]
    counts: list[int] = attrs.field(init=False)
    sum_s: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds_s) + 1)

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """Prometheus's buckets: each bound, and how many were at most that."""
        bounds = [*map(str, self.bounds_s), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))


@attrs.define
class Latencies:
    """Of one frontend: to the first token, between tokens on average, and to the end."""

    first_token: Histogram = attrs.field(factory=lambda: Histogram(FIRST_TOKEN_BOUNDS_S))
    per_token: Histogram = attrs.field(factory=lambda: Histogram(TOKEN_BOUNDS_S))
    whole: Histogram = attrs.field(factory=lambda: Histogram(REQUEST_BOUNDS_S))

    def handle_end(self, state: RequestState, tokens: int, now: float) -> None:
        """A request ended after so many output tokens; one without tokens took no time."""
        if state.first_token_at == math.inf:
            return
        self.first_token.observe(state.first_token_at - state.created_at)
        self.whole.observe(now - state.created_at)
        if tokens > 1:
            self.per_token.observe((now - state.first_token_at) / (tokens - 1))
