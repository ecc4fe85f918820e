"""Prometheus metrics under vLLM's names and labels, so that its dashboards work unchanged.

Only what we count with vLLM's meaning is here; latencies have its names under our prefix, too.
"""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ...engine.messages import EngineStatistics
from ...runtime.frontend.generation import FrontendStatistics, Generator
from ...runtime.frontend.latencies import Latencies

PREFIX = "vllm:"
LABELS = ("model_name", "engine")
# vLLM's label of the reason for which a request ended.
ENDED = "finished_reason"


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


class SocketCounters(Protocol):
    """What is asked of the counts of the edge."""

    @property
    def sockets(self) -> int:
        """Accepted since the start."""

    @property
    def sockets_active(self) -> int:
        """Open now."""


class VllmCollector(Collector):
    """Makes metric families out of a snapshot; called once for each page."""

    def __init__(self, generator: Generator, counters: SocketCounters) -> None:
        self._generator = generator
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Gauges and counters of every engine; ends, sockets and latencies are this frontend's."""
        statistics = self._generator.statistics()
        model = self._generator.model_name
        for name, about, is_counter in _NAMES:
            kind = CounterMetricFamily if is_counter else GaugeMetricFamily
            family = kind(PREFIX + name, about, labels=LABELS)
            for rank, counts in statistics.engines.items():
                family.add_metric((model, str(rank)), _value(name, counts))
            yield family
        yield from self._of_frontend(statistics.frontend, {"model_name": model})

    def _of_frontend(self, counts: FrontendStatistics, labels: dict[str, str]) -> Iterator[Metric]:
        ends = CounterMetricFamily(
            PREFIX + "request_success", "Requests by why they ended", labels=[*labels, ENDED]
        )
        for reason, count in (
            ("stop", counts.requests_finished_total - counts.requests_length_total),
            ("length", counts.requests_length_total),
            ("abort", counts.requests_aborted_total),
            ("error", counts.requests_failed_total),
        ):
            ends.add_metric([*labels.values(), reason], count)
        yield ends
        for name, about, count, is_counter in (
            ("admission_rejections", "Requests refused at a limit",
             counts.requests_overloaded_total, True),
            ("websocket_connections", "WebSocket connections accepted",
             self._counters.sockets, True),
            ("websocket_connections_active", "WebSocket connections that are open",
             self._counters.sockets_active, False),
        ):  # fmt: skip
            kind = CounterMetricFamily if is_counter else GaugeMetricFamily
            family = kind(PREFIX + name, about, labels=list(labels))
            family.add_metric(list(labels.values()), count)
            yield family
        yield from latency_families(PREFIX, counts.latencies, labels)


# (vLLM's name, what it is, whether it only grows).
_NAMES = (
    ("num_requests_running", "Requests that are scheduled", False),
    ("num_requests_waiting", "Requests that wait to be scheduled", False),
    ("kv_cache_usage_perc", "KV blocks in use; 1 is all", False),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", True),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache", True),
    ("num_preemptions", "Preemptions", True),
    ("prompt_tokens", "Prompt tokens computed", True),
    ("generation_tokens", "Tokens sampled", True),
)


def _value(name: str, counts: EngineStatistics) -> float:
    match name:
        case "num_requests_running":
            return counts.running
        case "num_requests_waiting":
            return counts.waiting
        case "kv_cache_usage_perc":
            return (1 - counts.kv_blocks_free / counts.kv_blocks) if counts.kv_blocks else 0.0
        case "prefix_cache_queries":
            return counts.prefix_queries
        case "prefix_cache_hits":
            return counts.prefix_hits
        case "num_preemptions":
            return counts.preemptions
        case "prompt_tokens":
            return counts.prompt_tokens
        case "generation_tokens":
            return counts.output_tokens
        case _:
            raise AssertionError(name)
