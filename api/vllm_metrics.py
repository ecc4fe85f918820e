"""Our counts under vLLM's names and labels, so that its dashboards work unchanged.

Only what we count with vLLM's meaning is here. Must not know who asks.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..engine.messages import EngineStatistics
from ..runtime.generation import Generator
from .latency_metrics import latency_families

PREFIX = "vllm:"
LABELS = ("model_name", "engine")


class VllmCollector(Collector):
    """Makes metric families out of a snapshot; called once for each page."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def collect(self) -> Iterator[Metric]:
        """Gauges, counters and latencies of every engine; latencies are this frontend's."""
        statistics = self._generator.statistics()
        model = self._generator.model_name
        for name, about, is_counter in _NAMES:
            kind = CounterMetricFamily if is_counter else GaugeMetricFamily
            family = kind(PREFIX + name, about, labels=LABELS)
            for rank, counts in statistics.engines.items():
                family.add_metric((model, str(rank)), _value(name, counts))
            yield family
        yield from latency_families(PREFIX, statistics.frontend.latencies, {"model_name": model})


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
