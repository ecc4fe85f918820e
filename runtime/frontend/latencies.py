"""Distributions of requests' times and lengths, and of the gaps that deaths make in their streams.

Between two tokens of a stream is the time between the messages that brought them: tokens that come
together count once, as in vLLM. Nearly all streams of an engine have a token in each of its
messages, so that a message costs one `observe` for all of them (`Ledger.handle_outputs`).

Sans-IO: counts, and times as `now`.
"""

from bisect import bisect_left
from functools import partial
from itertools import accumulate

import attrs

# Seconds; each bucket holds what is at most its bound. vLLM's, thinned out.
FIRST_TOKEN_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5,
                        5.0, 7.5, 10.0, 20.0, 40.0, 80.0)  # fmt: skip
TOKEN_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                  0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)  # fmt: skip
REQUEST_BOUNDS_S = (0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0,
                    20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)  # fmt: skip
GAP_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0,
                30.0, 60.0)  # fmt: skip
# Tokens, up to the longest of models.
LENGTH_BOUNDS = tuple(digit * 10**zeros for zeros in range(7) for digit in (1, 2, 5))


@attrs.define
class Histogram:
    """Counts by bucket; the last bucket has no bound. The sum of whole numbers is one."""

    bounds: tuple[float, ...]
    counts: list[int] = attrs.field()
    sum: float = 0.0

    @counts.default
    def _no_counts(self) -> list[int]:
        return [0] * (len(self.bounds) + 1)

    def observe(self, value: float, count: int = 1) -> None:
        """Count so many of this value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def cumulative(self) -> list[tuple[str, int]]:
        """Prometheus's buckets: each bound, and how many were at most that."""
        bounds = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))


_of_first_tokens = partial(Histogram, FIRST_TOKEN_BOUNDS_S)
_of_tokens = partial(Histogram, TOKEN_BOUNDS_S)
_of_requests = partial(Histogram, REQUEST_BOUNDS_S)
_of_lengths = partial(Histogram, LENGTH_BOUNDS, sum=0)
_of_gaps = partial(Histogram, GAP_BOUNDS_S)


@attrs.define
class Latencies:
    """Histograms of one frontend.

    Of a request that began in another life of its frontend nothing is counted but its lengths and
    what its tokens still do.
    """

    first_token: Histogram = attrs.field(factory=_of_first_tokens)
    inter_token: Histogram = attrs.field(factory=_of_tokens)
    # Counted at a request's end, each once: between tokens on average, the whole and its parts.
    per_token: Histogram = attrs.field(factory=_of_tokens)
    whole: Histogram = attrs.field(factory=_of_requests)
    queue: Histogram = attrs.field(factory=_of_requests)
    prefill: Histogram = attrs.field(factory=_of_requests)
    decode: Histogram = attrs.field(factory=_of_requests)
    prompt_tokens: Histogram = attrs.field(factory=_of_lengths)
    output_tokens: Histogram = attrs.field(factory=_of_lengths)
    # Seconds from the last token before a stream was sent again to the first one after that, and
    # from a frontend's end to the first token that its next life gave.
    gaps_of_engines: Histogram = attrs.field(factory=_of_gaps)
    gaps_of_frontends: Histogram = attrs.field(factory=_of_gaps)

    def handle_end(
        self, *, first_token_s: float, prefill_s: float, whole_s: float, tokens: int
    ) -> None:
        """A request ended that had its first token after `first_token_s`."""
        decode_s = whole_s - first_token_s
        self.whole.observe(whole_s)
        self.queue.observe(max(0.0, first_token_s - prefill_s))
        self.prefill.observe(prefill_s)
        self.decode.observe(decode_s)
        if tokens > 1:
            self.per_token.observe(decode_s / (tokens - 1))
