"""Histogram of gaps that clients see: the longest silence of each stream that met a fault.

Sans-IO: seconds in, lines and plain values out.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from ....api.commands.figures import percentile

# Upper edges of the bars in milliseconds; 60, 250 and 1000 are what is promised.
EDGES_MS = (10, 20, 40, 60, 100, 150, 250, 500, 1000, 2000, 5000)
PERCENTS = (50, 99, 100)
BAR_COLUMNS = 50


def counts_of(gaps_s: Sequence[float]) -> list[int]:
    """How many fall under each edge, and beyond the last."""
    counts = [0] * (len(EDGES_MS) + 1)
    for gap_s in gaps_s:
        counts[bisect_left(EDGES_MS, gap_s * 1000)] += 1
    return counts


def percentiles_of(gaps_s: Sequence[float]) -> list[float]:
    """Median, 99 % and longest in seconds; [] of none."""
    ordered = sorted(gaps_s)
    return [round(percentile(ordered, percent), 3) for percent in PERCENTS] if ordered else []


def gaps_as_json(gaps_s: Sequence[float]) -> dict[str, Any]:
    """All of it, in plain values; the key of a bar is its upper edge."""
    edges = [*(f"<= {edge} ms" for edge in EDGES_MS), f"> {EDGES_MS[-1]} ms"]
    bars = dict(zip(edges, counts_of(gaps_s), strict=True))
    return {"p50_p99_max_s": percentiles_of(gaps_s), "bars": bars}


def gap_lines(gaps_s: Sequence[float]) -> list[str]:
    """Bars for people, from the first to the last that is not empty."""
    bars = gaps_as_json(gaps_s)["bars"]
    used = [number for number, count in enumerate(bars.values()) if count]
    most = max(bars.values(), default=0)
    return [
        f"{edge:>10} {count:7} {'#' * -(-count * BAR_COLUMNS // most)}"
        for number, (edge, count) in enumerate(bars.items())
        if used and used[0] <= number <= used[-1]
    ]
