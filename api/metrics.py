"""Prometheus metrics: counts of all frontends and of each engine; vLLM's names, too.

An own registry and one collector that reads snapshots when asked, so that counting costs an
addition on the hot path and nothing is global.
"""

import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import attrs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from .. import __version__
from ..engine.messages import EngineStatistics
from ..runtime.control.calls import EngineState, Role
from ..runtime.frontend.generation import Generator
from ..runtime.frontend.health import FrontendStatistics
from ..runtime.frontend.latencies import Latencies
from ..runtime.messages import EngineHealth, HostReport
from .host_metrics import host_metrics
from .totals import Totals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "triolet_"
VLLM_PREFIX = "vllm:"
_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily
# (kind, field of EngineStatistics, name, help), one value for each engine.
_OF_ENGINES = (
    (_GAUGE, "waiting", "num_requests_waiting", "Requests waiting in the queue of the scheduler"),
    (_GAUGE, "running", "num_requests_running", "Requests in the running batch"),
    (_GAUGE, "paused", "num_requests_paused", "Requests paused because their client reads slowly"),
    (_GAUGE, "kv_blocks", "kv_blocks", "Total KV cache blocks"),
    (
        _GAUGE,
        "kv_blocks_free",
        "kv_blocks_free",
        "KV cache blocks that are free or hold only reusable prefixes",
    ),
    (_GAUGE, "step_s_last", "step_seconds_last", "Duration of the last engine step"),
    (_COUNTER, "step", "steps", "Engine steps"),
    (_COUNTER, "requests_added", "engine_requests_added", "Requests received"),
    (_COUNTER, "requests_finished", "engine_requests_finished", "Requests completed"),
    (_COUNTER, "requests_aborted", "engine_requests_aborted", "Requests aborted"),
    (_COUNTER, "preemptions", "num_preemptions", "Requests preempted"),
    (_COUNTER, "prompt_tokens", "engine_prompt_tokens", "Prompt tokens computed"),
    (_COUNTER, "output_tokens", "engine_generation_tokens", "Tokens sampled"),
    (
        _COUNTER,
        "prefix_queries",
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache",
    ),
    (_COUNTER, "prefix_hits", "prefix_cache_hits", "Prompt tokens found in the prefix cache"),
    (_COUNTER, "worker_restarts", "worker_restarts", "Worker processes restarted"),
    (_COUNTER, "messages_dropped", "engine_messages_dropped", "Malformed messages dropped"),
)
# The same of ApiCounters and FrontendStatistics, one value for all frontends of this server.
_OF_FRONTENDS = (
    (_GAUGE, "connections_active", "connections_active", "Open connections"),
    (_GAUGE, "sockets_active", "websocket_connections_active", "Open WebSocket connections"),
    (_COUNTER, "connections", "connections", "Connections accepted"),
    (
        _COUNTER,
        "connections_refused",
        "connections_refused",
        "Connections refused at the connection limit",
    ),
    (
        _COUNTER,
        "connections_failed",
        "connections_failed",
        "Connections closed after a protocol error",
    ),
    (
        _COUNTER,
        "connections_taken_over",
        "connections_taken_over",
        "Connections continued by another frontend process",
    ),
    (
        _COUNTER,
        "connections_lost",
        "connections_lost",
        "Connections lost when a frontend process died",
    ),
    (_COUNTER, "sockets", "websocket_connections", "WebSocket connections accepted"),
    # The writer was behind, or text was to wait.
    (_COUNTER, "deltas_merged", "lane_merged_deltas", "Text deltas merged into a later one"),
    (_COUNTER, "spans", "spans_exported", "Trace spans exported"),
    (_COUNTER, "spans_dropped", "spans_dropped", "Trace spans dropped"),
    (_GAUGE, "requests_active", "requests_active", "Requests in progress"),
    (
        _GAUGE,
        "queued_tokens",
        "queued_tokens",
        "Prompt tokens queued: their request has no token yet",
    ),
    (_COUNTER, "requests_total", "requests", "Requests admitted"),
    (_COUNTER, "requests_finished_total", "requests_finished", "Requests completed"),
    (_COUNTER, "requests_failed_total", "requests_failed", "Requests failed"),
    (_COUNTER, "requests_aborted_total", "requests_aborted", "Requests cancelled by the client"),
    (
        _COUNTER,
        "requests_overloaded_total",
        "admission_rejections",
        "Requests rejected because the server was overloaded",
    ),
    (
        _GAUGE,
        "requests_waiting",
        "requests_without_engine",
        "Requests waiting for an engine to restart",
    ),
    (
        _COUNTER,
        "requests_replayed_total",
        "request_replays",
        "Requests resent after an engine died",
    ),
    (_COUNTER, "requests_migrated_total", "request_migrations", "Requests moved to another engine"),
    (
        _COUNTER,
        "requests_migrated_inexactly_total",
        "request_migrations_inexact",
        "Requests moved to an engine with different numerics",
    ),
    (_COUNTER, "prompt_tokens_total", "prompt_tokens", "Prompt tokens of admitted requests"),
    (_COUNTER, "output_tokens_total", "generation_tokens", "Tokens sent to clients"),
)
# (field of FrontendStatistics, name, label, help): a count for each value of the label.
_BY_LABEL = (
    (
        "outputs_refused_total",
        "outputs_refused",
        "reason",
        "Engine outputs rejected as stale or invalid",
    ),
    ("link_mishaps_total", "link_mishaps", "kind", "Errors recovered on links to engines"),
)
# (field of Latencies, name, help); vLLM calls them the same behind its own prefix.
_HISTOGRAMS = (
    ("first_token", "time_to_first_token_seconds", "Time to first token"),
    ("inter_token", "inter_token_latency_seconds", "Time between tokens of a stream"),
    (
        "per_token",
        "request_time_per_output_token_seconds",
        "Mean time per output token of a request",
    ),
    ("whole", "e2e_request_latency_seconds", "End-to-end latency of a request"),
    ("queue", "request_queue_time_seconds", "Time from arrival to the first engine step"),
    ("prefill", "request_prefill_time_seconds", "Prefill time: first engine step to first token"),
    ("decode", "request_decode_time_seconds", "Decode time: first token to the end"),
    ("prompt_tokens", "request_prompt_tokens", "Prompt tokens of a request"),
    ("output_tokens", "request_generation_tokens", "Output tokens of a request"),
)
# {name: vLLM's}: only what we count with vLLM's meaning, so that its dashboards work unchanged.
_VLLM_OF_ENGINES = {
    "num_requests_running": "num_requests_running",
    "num_requests_waiting": "num_requests_waiting",
    "prefix_cache_queries": "prefix_cache_queries",
    "prefix_cache_hits": "prefix_cache_hits",
    "num_preemptions": "num_preemptions",
    "engine_prompt_tokens": "prompt_tokens",
    "engine_generation_tokens": "generation_tokens",
}
# Labels as vLLM has them, also on a CPU: routers read the sizes by these words.
_CACHE_INFO, _CACHE_LABELS = "cache_config_info", ("block_size", "num_gpu_blocks")
_VLLM_OF_FRONTEND = {
    "admission_rejections",
    "websocket_connections",
    "websocket_connections_active",
}


@attrs.define(eq=False)
class Metrics(Collector):
    """Renders everything in Prometheus's text format."""

    generator: Generator
    totals: Totals
    # Show the same values under vLLM's names, too.
    with_vllm_names: bool = False
    # {rank: processes after the first}, as the root says.
    frontend_restarts: Mapping[int, int] = attrs.field(factory=dict, init=False)
    # Hosts, as the root says.
    hosts: Sequence[HostReport] = attrs.field(factory=list, init=False)
    _registry: CollectorRegistry = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """The whole page, from one snapshot."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Metric families of a snapshot; called once for each page."""
        statistics = self.generator.statistics()
        total = self.totals.look(statistics.frontend)
        latencies = total.runtime.latencies
        model = {"model_name": self.generator.model_name} if self.with_vllm_names else None
        values = attrs.asdict(total.edge, recurse=False)
        values |= attrs.asdict(total.runtime, recurse=False)
        for kind, field, name, about in _OF_FRONTENDS:
            yield _family(kind, PREFIX + name, about, [((), values[field])])
            if model and name in _VLLM_OF_FRONTEND:
                yield _family(kind, VLLM_PREFIX + name, about, [((), values[field])], fixed=model)
        for field, name, label, about in _BY_LABEL:
            counts = [((value,), count) for value, count in values[field].items()]
            yield _family(_COUNTER, PREFIX + name, about, counts, labels=(label,))
        yield from _answers(total.edge.answers, with_vllm_names=self.with_vllm_names)
        yield from _histograms(PREFIX, latencies, {})
        yield _gaps(latencies)
        engines = self.generator.health().engines
        hosts = {engine.rank: engine.host for engine in engines if engine.host}
        yield from _engines(statistics.engines, hosts, model)
        yield _engine_states(engines, hosts)
        yield _restarts(engines, self.frontend_restarts)
        yield from host_metrics(self.hosts, PREFIX)
        yield _build_info(self.generator.model_name)
        if model:
            yield _ends(total.runtime, model)
            yield from _histograms(VLLM_PREFIX, latencies, model)


Kind = type[GaugeMetricFamily | CounterMetricFamily]
Samples = Iterable[tuple[tuple[str, ...], float]]
NO_LABELS = MappingProxyType[str, str]({})


def _family(
    kind: Kind,
    name: str,
    about: str,
    samples: Samples,
    *,
    labels: tuple[str, ...] = (),
    fixed: Mapping[str, str] = NO_LABELS,
) -> Metric:
    """Make a family: `fixed` labels with their values, and a sample for each value of `labels`."""
    family = kind(name, about, labels=(*fixed, *labels))
    for values, count in samples:
        family.add_metric((*fixed.values(), *values), count)
    return family


def _of_engines(
    kind: Kind,
    name: str,
    about: str,
    samples: Iterable[tuple[int, tuple[str, ...], float]],
    *,
    hosts: Mapping[int, str],
    labels: tuple[str, ...] = (),
    fixed: Mapping[str, str] = NO_LABELS,
) -> Metric:
    """Make a family of engines by rank; those of other hosts have theirs as the last label."""
    on_hosts = [
        ((str(rank), *values, *([hosts[rank]] if rank in hosts else ())), count)
        for rank, values, count in samples
    ]
    return _family(kind, name, about, on_hosts, labels=("engine", *labels, "host"), fixed=fixed)


def _engines(
    engines: dict[int, EngineStatistics], hosts: Mapping[int, str], model: dict[str, str] | None
) -> Iterator[Metric]:
    of_engines = partial(_of_engines, hosts=hosts)
    rows = {rank: attrs.asdict(statistics) for rank, statistics in engines.items()}
    for kind, field, name, about in _OF_ENGINES:
        counts = [(rank, (), row[field]) for rank, row in rows.items()]
        yield of_engines(kind, PREFIX + name, about, counts)
        if model and (vllm := _VLLM_OF_ENGINES.get(name)):
            yield of_engines(kind, VLLM_PREFIX + vllm, about, counts, fixed=model)
    if model:
        usage = [(rank, (), statistics.kv_usage) for rank, statistics in engines.items()]
        name, about = VLLM_PREFIX + "kv_cache_usage_perc", "KV blocks in use; 1 is all"
        yield of_engines(_GAUGE, name, about, usage, fixed=model)
    caches = [
        (rank, (str(each.block_tokens), str(each.kv_blocks)), 1.0) for rank, each in engines.items()
    ]
    about = "1, with the KV cache of the engine as labels"
    yield of_engines(_GAUGE, PREFIX + _CACHE_INFO, about, caches, labels=_CACHE_LABELS)
    if model:
        name = VLLM_PREFIX + _CACHE_INFO
        yield of_engines(_GAUGE, name, about, caches, labels=_CACHE_LABELS, fixed=model)
    name = PREFIX + "engine_aborts_by_steps"
    about = "Aborted requests by engine steps until their KV blocks were free"
    aborts = [
        (rank, (str(steps),), count)
        for rank, row in rows.items()
        for steps, count in enumerate(row["aborts_after"])
    ]
    yield of_engines(_COUNTER, name, about, aborts, labels=("steps",))


def _engine_states(engines: Iterable[EngineHealth], hosts: Mapping[int, str]) -> Metric:
    states = [
        (engine.rank, (state.value,), float(engine.state is state))
        for engine in engines
        for state in EngineState
    ]
    name, about = PREFIX + "engine_state", "1 for the state that the engine is in"
    return _of_engines(_GAUGE, name, about, states, hosts=hosts, labels=("state",))


def _ends(counts: FrontendStatistics, model: dict[str, str]) -> Metric:
    """Requests by their end, as vLLM counts them."""
    ends = [
        (("stop",), counts.requests_finished_total - counts.requests_length_total),
        (("length",), counts.requests_length_total),
        (("abort",), counts.requests_aborted_total),
        (("error",), counts.requests_failed_total),
    ]
    return _family(
        _COUNTER,
        VLLM_PREFIX + "request_success",
        "Requests by finish reason",
        ends,
        labels=("finished_reason",),
        fixed=model,
    )


def _answers(
    answers: Mapping[tuple[str, str, int], int], *, with_vllm_names: bool
) -> Iterator[Metric]:
    counts = [((m, route, str(status)), n) for (m, route, status), n in answers.items()]
    labels, about = ("method", "route", "status"), "HTTP answers"
    yield _family(_COUNTER, PREFIX + "http_answers", about, counts, labels=labels)
    if with_vllm_names:  # as the instrumentation of its HTTP server counts them
        classes = Counter[tuple[str, ...]]()
        for (method, route, status), count in answers.items():
            classes[route, method, f"{status // 100}xx"] += count
        labels = ("handler", "method", "status")
        yield _family(_COUNTER, "http_requests", about, classes.items(), labels=labels)


def _histograms(prefix: str, latencies: Latencies, labels: dict[str, str]) -> Iterator[Metric]:
    histograms = attrs.asdict(latencies, recurse=False)
    for field, name, about in _HISTOGRAMS:
        histogram = histograms[field]
        family = HistogramMetricFamily(prefix + name, about, labels=list(labels))
        family.add_metric(list(labels.values()), histogram.cumulative(), histogram.sum)
        yield family


def _gaps(latencies: Latencies) -> Metric:
    about = "Pause of a stream at a process death, last token before to first after"
    family = HistogramMetricFamily(PREFIX + "stream_gap_seconds", about, labels=["cause"])
    for role, gaps in (
        (Role.ENGINE, latencies.gaps_of_engines),
        (Role.FRONTEND, latencies.gaps_of_frontends),
    ):
        family.add_metric([role], gaps.cumulative(), gaps.sum)
    return family


def _restarts(engines: Iterable[EngineHealth], frontends: Mapping[int, int]) -> Metric:
    counts: list[tuple[tuple[str, ...], float]] = []
    for each in engines:
        host = (each.host,) if each.host else ()
        counts.append(((Role.ENGINE, str(each.rank), *host), each.restarts))
    counts += [((Role.FRONTEND, str(rank)), count) for rank, count in frontends.items()]
    about, labels = "Processes restarted", ("role", "rank", "host")
    return _family(_COUNTER, PREFIX + "restarts", about, counts, labels=labels)


def _build_info(model_name: str) -> Metric:
    facts = {
        "version": __version__,
        "python": platform.python_version(),
        "model_name": model_name,
    }
    about = "1, with what is running as labels"
    return _family(_GAUGE, PREFIX + "build_info", about, [((), 1)], fixed=facts)
