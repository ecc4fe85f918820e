"""Figures of a load: rates, percentiles, errors by kind, CPU per token; medians of repeated runs.

Sans-IO: histories and costs in, figures out. Latencies count from when a request was *due*, so that
neither a late client nor a late server hides anything. A series of runs is told by its median with
its spread, and two of them by ratios of runs that were interleaved.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence

import attrs

from ...api.commands.figures import percentile
from ...fuzz.observers import Cost, cpu_spent
from .client import Outcome, RequestHistory

# Percentiles of every distribution.
PERCENTS = (50, 90, 99)
_WHOLE = frozenset({Outcome.COMPLETED})


@attrs.frozen
class Spread:
    """A distribution in a few figures; all NaN when there was nothing."""

    mean: float
    p50: float
    p90: float
    p99: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Percentiles by the nearest rank."""
        if not values:
            return cls(*[math.nan] * 5)
        ordered = sorted(values)
        ranks = [percentile(ordered, percent) for percent in PERCENTS]
        return cls(sum(ordered) / len(ordered), ranks[0], ranks[1], ranks[2], ordered[-1])


@attrs.frozen
class ProcessCost:
    """Cost of one process in the run."""

    name: str
    cpu_s: float
    cpu_us_per_token: float
    resident_mib: float


@attrs.frozen(kw_only=True)
class Measures:
    """The figures of one run. Times in seconds, rates per second."""

    requests: int
    completed: int
    # {outcome and kind: how many}, of those that did not complete
    errors: dict[str, int]
    elapsed_s: float
    requests_per_s: float
    input_tokens: int
    output_tokens: int
    tokens_per_s: float
    # How many tokens came in one event: above 1 the server has merged.
    tokens_per_delta: float
    # Seconds from due to the first output, from one output to the next, from due to the end.
    first_token_s: Spread
    gap_s: Spread
    total_s: Spread
    # How late requests were sent: time in the client, or waiting for a free place.
    late_s: Spread
    # A row for each process, then "server" for all of them, then "client": us.
    processes: list[ProcessCost]

    def cost(self, name: str) -> ProcessCost:
        """The row with this name. Raises `KeyError`."""
        return {row.name: row for row in self.processes}[name]


@attrs.frozen(kw_only=True)
class LoadRun:
    """Result of a load. Times in seconds; costs of the server's processes by name, if known."""

    histories: list[RequestHistory]
    elapsed_s: float
    client_cpu_s: float
    costs_before: dict[str, Cost]
    costs_after: dict[str, Cost]


def measure(run: LoadRun) -> Measures:
    """Sum a run up. Only requests that completed count in latencies; all count in tokens."""
    histories, elapsed_s = run.histories, run.elapsed_s
    whole = [history for history in histories if history.outcome in _WHOLE]
    tokens = sum(_tokens(history) for history in histories)
    streamed = [history for history in whole if history.delta_times_s]
    deltas = sum(len(history.delta_times_s) for history in streamed)
    gaps = [
        later - earlier
        for history in streamed
        for earlier, later in itertools.pairwise(history.delta_times_s)
    ]
    return Measures(
        requests=len(histories),
        completed=len(whole),
        errors=dict(Counter(_kind(h) for h in histories if h.outcome not in _WHOLE)),
        elapsed_s=elapsed_s,
        requests_per_s=len(whole) / elapsed_s,
        input_tokens=sum(history.input_tokens for history in histories),
        output_tokens=tokens,
        tokens_per_s=tokens / elapsed_s,
        tokens_per_delta=sum(_tokens(h) for h in streamed) / deltas if deltas else math.nan,
        first_token_s=Spread.of([h.delta_times_s[0] - h.due_s for h in streamed]),
        gap_s=Spread.of(gaps),
        total_s=Spread.of([history.ended_s - history.due_s for history in whole]),
        late_s=Spread.of([history.sent_s - history.due_s for history in histories]),
        processes=_costs(tokens, run),
    )


def _tokens(history: RequestHistory) -> int:
    """Tokens by the server's count; those that came, for a request without an end."""
    return history.output_tokens or len(history.token_ids) or len(history.texts)


def _kind(history: RequestHistory) -> str:
    return f"{history.outcome.value}: {history.error}" if history.error else history.outcome.value


def _costs(tokens: int, run: LoadRun) -> list[ProcessCost]:
    per_token = 1e6 / tokens if tokens else math.nan
    spent = cpu_spent(run.costs_before, run.costs_after)
    rows = [
        ProcessCost(name, cpu_s, cpu_s * per_token, run.costs_after[name].resident_mib)
        for name, cpu_s in spent.items()
    ]
    if rows:
        whole = sum(spent.values())
        memory = sum(row.resident_mib for row in rows)
        rows.append(ProcessCost("server", whole, whole * per_token, memory))
    rows.append(ProcessCost("client", run.client_cpu_s, run.client_cpu_s * per_token, math.nan))
    return rows


@attrs.frozen
class Series:
    """The same figure of some runs. All NaN without any."""

    median: float
    least: float
    most: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Series":
        """Sum up values of any order."""
        if not values:
            return cls(math.nan, math.nan, math.nan, 0)
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, digits: int = 0) -> str:
        """Cell of a table: the median, and the spread if there were several runs."""
        if self.runs == 0:
            return ""
        if self.runs == 1:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} [{self.least:.{digits}f}..{self.most:.{digits}f}]"


NO_SERIES = Series.of(())


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Series:
    """Ratios of runs in pairs: ours by theirs."""
    return Series.of([our / their for our, their in zip(ours, theirs, strict=True)])
