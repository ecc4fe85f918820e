"""Prometheus metrics: counts of the edge, of this frontend and of each engine; vLLM's names, too.

An own registry and one collector that reads snapshots when asked, so that counting costs an
addition on the hot path and nothing is global.
"""

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter

import attrs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ..runtime.frontend.generation import EngineStatistics, FrontendStatistics, Generator
from ..runtime.frontend.ledger_entry import Latencies
from ..runtime.messages import EngineState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "triolet_"
# (field of EngineStatistics, name, help); gauges first, then counters.
_ENGINE_GAUGES = (
    ("waiting", "num_requests_waiting", "Requests that wait to be scheduled"),
    ("running", "num_requests_running", "Requests that are scheduled"),
    ("paused", "num_requests_paused", "Running requests without credit: their client is slow"),
    ("kv_blocks", "kv_blocks", "KV blocks in all"),
    ("kv_blocks_free", "kv_blocks_free", "KV blocks that are free or only cached"),
    ("step_s_last", "step_seconds_last", "Duration of the last step"),
)
_ENGINE_COUNTERS = (
    ("step", "steps", "Steps"),
    ("requests_added", "engine_requests_added", "Requests taken in"),
    ("requests_finished", "engine_requests_finished", "Requests that ended by their own"),
    ("requests_aborted", "engine_requests_aborted", "Requests that were aborted"),
    ("preemptions", "num_preemptions", "Preemptions"),
    ("prompt_tokens", "engine_prompt_tokens", "Prompt tokens computed"),
    ("output_tokens", "engine_generation_tokens", "Tokens sampled"),
    ("prefix_queries", "prefix_cache_queries", "Prompt tokens looked up in the prefix cache"),
    ("prefix_hits", "prefix_cache_hits", "Prompt tokens found in the prefix cache"),
    ("messages_dropped", "engine_messages_dropped", "Messages dropped as malformed or stale"),
)
_FRONTEND_GAUGES = (
    ("requests_active", "requests_active", "Requests in flight in this frontend"),
    ("queued_tokens", "queued_tokens", "Prompt tokens of requests without a first token"),
)
_FRONTEND_COUNTERS = (
    ("requests_total", "requests", "Requests admitted"),
    ("requests_finished_total", "requests_finished", "Requests that ended by their own"),
    ("requests_failed_total", "requests_failed", "Requests that ended by an error"),
    ("requests_aborted_total", "requests_aborted", "Requests that their client left"),
    ("requests_overloaded_total", "admission_rejections", "Requests refused at a limit"),
    ("requests_replayed_total", "request_migrations", "Requests replayed on another engine"),
    ("prompt_tokens_total", "prompt_tokens", "Prompt tokens of admitted requests"),
    ("output_tokens_total", "generation_tokens", "Tokens given to clients"),
)
_REFUSED = "Engine outputs that the ledger refused"
_MISHAPS = "What went amiss on links to engines, and was put right"
_API_GAUGES = (
    ("connections_active", "connections_active", "Connections that are open"),
    ("sockets_active", "websocket_connections_active", "WebSocket connections that are open"),
)
_API_COUNTERS = (
    ("connections", "connections", "Connections accepted"),
    ("connections_refused", "connections_refused", "Connections refused at the limit"),
    ("connections_failed", "connections_failed", "Connections ended by an unexpected error"),
    ("sockets", "websocket_connections", "WebSocket connections accepted"),
    (
        "deltas_merged",
        "lane_merged_deltas",
        "Deltas merged into a later one: the writer was behind, or text was to wait",
    ),
)


@attrs.define(eq=False)
class ApiCounters:
    """Counts of the edge since the start; `_active` ones are what there is now."""

    connections_active: int = 0
    connections: int = 0
    connections_refused: int = 0
    connections_failed: int = 0
    sockets_active: int = 0
    sockets: int = 0
    deltas_merged: int = 0
    # {(method, route, status): answers}; routes are those of the table, so it is bounded.
    answers: Counter[tuple[str, str, int]] = attrs.field(factory=Counter)


@attrs.define(eq=False)
class Metrics:
    """Renders everything in Prometheus's text format."""

    generator: Generator
    counters: ApiCounters
    # Tell the same values under vLLM's names, too.
    with_vllm_names: bool = False
    _registry: CollectorRegistry = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_SnapshotCollector(self.generator, self.counters))
        if self.with_vllm_names:
            self._registry.register(_VllmCollector(self.generator, self.counters))

    def render(self) -> bytes:
        """The whole page, from one snapshot."""
        return generate_latest(self._registry)


class _SnapshotCollector(Collector):
    """Makes metric families out of snapshots; called once for each page."""

    def __init__(self, generator: Generator, counters: ApiCounters) -> None:
        self._generator = generator
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        statistics = self._generator.statistics()
        yield from _plain(_API_GAUGES, _API_COUNTERS, attrs.asdict(self._counters, recurse=False))
        frontend = attrs.asdict(statistics.frontend, recurse=False)
        yield from _plain(_FRONTEND_GAUGES, _FRONTEND_COUNTERS, frontend)
        yield from _latencies(PREFIX, statistics.frontend.latencies, {})
        yield _answers(self._counters)
        yield _by_label("outputs_refused", _REFUSED, "reason", frontend["outputs_refused_total"])
        yield _by_label("link_mishaps", _MISHAPS, "kind", frontend["link_mishaps_total"])
        yield from _engines(statistics.engines)
        yield _engine_states(self._generator)


Fields = tuple[tuple[str, str, str], ...]


def _plain(gauges: Fields, counters: Fields, values: dict[str, float]) -> Iterator[Metric]:
    for field, name, text in gauges:
        yield GaugeMetricFamily(PREFIX + name, text, value=values[field])
    for field, name, text in counters:
        yield CounterMetricFamily(PREFIX + name, text, value=values[field])


def _answers(counters: ApiCounters) -> Metric:
    family = CounterMetricFamily(
        PREFIX + "http_answers", "HTTP answers", labels=("method", "route", "status")
    )
    for (method, route, status), count in counters.answers.items():
        family.add_metric((method, route, str(status)), count)
    return family


def _by_label(name: str, text: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=(label,))
    for value, count in counts.items():
        family.add_metric((value,), count)
    return family


def _engines(engines: dict[int, EngineStatistics]) -> Iterator[Metric]:
    values = {rank: attrs.asdict(statistics) for rank, statistics in engines.items()}
    for field, name, text in _ENGINE_GAUGES:
        gauge = GaugeMetricFamily(PREFIX + name, text, labels=("engine",))
        for rank, one in values.items():
            gauge.add_metric((str(rank),), one[field])
        yield gauge
    for field, name, text in _ENGINE_COUNTERS:
        counter = CounterMetricFamily(PREFIX + name, text, labels=("engine",))
        for rank, one in values.items():
            counter.add_metric((str(rank),), one[field])
        yield counter
    yield _aborts(engines)


def _aborts(engines: dict[int, EngineStatistics]) -> Metric:
    family = CounterMetricFamily(
        PREFIX + "engine_aborts_by_steps",
        "Aborted requests whose blocks were free so many steps later",
        labels=("engine", "steps"),
    )
    for rank, statistics in engines.items():
        for steps, count in enumerate(statistics.aborts_after):
            family.add_metric((str(rank), str(steps)), count)
    return family


def _engine_states(generator: Generator) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "engine_state", "1 for the state that the engine is in", labels=("engine", "state")
    )
    for engine in generator.health().engines:
        for state in EngineState:
            family.add_metric((str(engine.rank), state.value), float(engine.state is state))
    return family


def _latencies(prefix: str, latencies: Latencies, labels: dict[str, str]) -> Iterator[Metric]:
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


def _usage(counts: EngineStatistics) -> float:
    return (1 - counts.kv_blocks_free / counts.kv_blocks) if counts.kv_blocks else 0.0


VLLM_PREFIX = "vllm:"
_VLLM_LABELS = ("model_name", "engine")
_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily
# (vLLM's name, what it is, its kind, our count).
_VLLM_NAMES = (
    ("num_requests_running", "Requests that are scheduled", _GAUGE, attrgetter("running")),
    ("num_requests_waiting", "Requests that wait to be scheduled", _GAUGE, attrgetter("waiting")),
    ("kv_cache_usage_perc", "KV blocks in use; 1 is all", _GAUGE, _usage),
    (
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache",
        _COUNTER,
        attrgetter("prefix_queries"),
    ),
    (
        "prefix_cache_hits",
        "Prompt tokens found in the prefix cache",
        _COUNTER,
        attrgetter("prefix_hits"),
    ),
    ("num_preemptions", "Preemptions", _COUNTER, attrgetter("preemptions")),
    ("prompt_tokens", "Prompt tokens computed", _COUNTER, attrgetter("prompt_tokens")),
    ("generation_tokens", "Tokens sampled", _COUNTER, attrgetter("output_tokens")),
)


class _VllmCollector(Collector):
    """Our counts under vLLM's names and labels, so that its dashboards work unchanged.

    Only what we count with vLLM's meaning is here.
    """

    def __init__(self, generator: Generator, counters: ApiCounters) -> None:
        self._generator = generator
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Gauges and counters of every engine; ends, sockets and latencies are this frontend's."""
        statistics = self._generator.statistics()
        model = self._generator.model_name
        for name, about, kind, value in _VLLM_NAMES:
            family = kind(VLLM_PREFIX + name, about, labels=_VLLM_LABELS)
            for rank, counts in statistics.engines.items():
                family.add_metric((model, str(rank)), value(counts))
            yield family
        yield from self._of_frontend(statistics.frontend, {"model_name": model})

    def _of_frontend(self, counts: FrontendStatistics, labels: dict[str, str]) -> Iterator[Metric]:
        ends = CounterMetricFamily(
            VLLM_PREFIX + "request_success",
            "Requests by why they ended",
            labels=[*labels, "finished_reason"],
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
            family = kind(VLLM_PREFIX + name, about, labels=list(labels))
            family.add_metric(list(labels.values()), count)
            yield family
        yield from _latencies(VLLM_PREFIX, counts.latencies, labels)
