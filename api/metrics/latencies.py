"""Latency distributions as metric families, under our names and under vLLM's alike.

Sans-IO: counts in, families out. Must not know when they were counted.
"""

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric

from ...runtime.frontend.latencies import Latencies


def latency_families(prefix: str, latencies: Latencies, labels: dict[str, str]) -> Iterator[Metric]:
    """One family for each distribution; vLLM calls them the same behind its own prefix."""
    for name, about, histogram in (
        ("time_to_first_token_seconds", "To the first token", latencies.first_token),
        (
            "request_time_per_output_token_seconds",
            "Between two tokens of a request, on average",
            latencies.per_token,
        ),
        ("e2e_request_latency_seconds", "To the end of a request", latencies.whole),
    ):
        family = HistogramMetricFamily(prefix + name, about, labels=list(labels))
        family.add_metric(list(labels.values()), histogram.cumulative(), histogram.sum_s)
        yield family
