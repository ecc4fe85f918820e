"""The page that Prometheus reads, parsed by its own parser."""

import attrs
from prometheus_client.parser import text_string_to_metric_families

from triolet import __version__
from triolet.api.counters import ApiCounters
from triolet.api.metrics import Metrics
from triolet.api.totals import Totals
from triolet.runtime.frontend.health import Health

from .fakes import FakeGenerator, make_application


def make_metrics(counters: ApiCounters) -> Metrics:
    generator = FakeGenerator()
    return Metrics(generator, Totals(generator, counters))


def values(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_the_page_tells_what_the_snapshots_say() -> None:
    counters = ApiCounters(connections=7, sockets_active=2, deltas_merged=9)
    counters.answers["GET", "/live", 200] += 3
    found = values(make_metrics(counters).render())
    engine = (("engine", "0"),)
    assert found["triolet_connections_total", ()] == 7
    assert found["triolet_websocket_connections_active", ()] == 2
    assert found["triolet_lane_merged_deltas_total", ()] == 9
    answers = (("method", "GET"), ("route", "/live"), ("status", "200"))
    assert found["triolet_http_answers_total", answers] == 3
    assert found["triolet_engine_generation_tokens_total", engine] == 42
    assert found["triolet_steps_total", engine] == 5
    assert found["triolet_outputs_refused_total", (("reason", "old attempt"),)] == 2
    assert found["triolet_link_mishaps_total", (("kind", "gap"),)] == 3
    aborts = {key[1][1][1]: v for key, v in found.items() if "aborts_by_steps_total" in key[0]}
    assert aborts == {"0": 4, "1": 0, "2": 1}
    states = {key[1][1][1]: v for key, v in found.items() if key[0] == "triolet_engine_state"}
    assert states["ready"] == 1
    assert sum(states.values()) == 1


def test_routers_read_the_size_of_each_kv_cache() -> None:
    labels = (("block_size", "16"), ("engine", "0"), ("num_gpu_blocks", "512"))
    assert values(make_metrics(ApiCounters()).render())["triolet_cache_config_info", labels] == 1
    found = values(make_application(vllm_metrics=True).metrics.render())
    of_vllm = tuple(sorted((*labels, ("model_name", "toy"))))
    assert found["vllm:cache_config_info", of_vllm] == 1


class _OnHosts(FakeGenerator):
    """Engine 0 is on host b, engine 1 is the root's own."""

    def health(self) -> Health:
        health = super().health()
        remote = attrs.evolve(health.engines[0], host="b", restarts=3)
        return attrs.evolve(health, engines=[remote, attrs.evolve(remote, rank=1, host="")])


def test_engines_of_other_hosts_are_labelled_with_them_and_the_roots_own_are_not() -> None:
    generator = _OnHosts()
    metrics = Metrics(generator, Totals(generator, ApiCounters()))
    metrics.frontend_restarts = {0: 1}
    found = values(metrics.render())
    engine = ("engine", "0"), ("host", "b")
    assert found["triolet_engine_generation_tokens_total", engine] == 42
    assert found["triolet_engine_state", (*engine, ("state", "ready"))] == 1
    assert found["triolet_engine_state", (("engine", "1"), ("state", "ready"))] == 1
    restarts = "triolet_restarts_total"
    assert found[restarts, (("host", "b"), ("rank", "0"), ("role", "engine"))] == 3
    assert found[restarts, (("rank", "0"), ("role", "frontend"))] == 1
    assert 'host=""' not in metrics.render().decode()


def test_two_pages_live_side_by_side() -> None:
    """Nothing is registered globally."""
    first, second = (make_metrics(ApiCounters()) for _ in range(2))
    assert first.render() == second.render()


def test_every_distribution_is_there() -> None:
    text = make_application(vllm_metrics=True).metrics.render().decode()
    for name in (
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
    ):
        assert f'triolet_{name}_bucket{{le="+Inf"}} 0.0' in text
        assert f'vllm:{name}_bucket{{le="+Inf",model_name="toy"}} 0.0' in text


def test_restarts_gaps_and_what_is_running_have_labels() -> None:
    metrics = make_metrics(ApiCounters())
    latencies = metrics.generator.statistics().frontend.latencies
    latencies.gaps_of_engines.observe(0.75)
    latencies.gaps_of_frontends.observe(0.5, 2)
    metrics.frontend_restarts = {0: 0, 1: 3}
    found = values(metrics.render())
    name = "triolet_stream_gap_seconds"
    assert found[f"{name}_bucket", (("cause", "engine"), ("le", "0.5"))] == 0
    assert found[f"{name}_bucket", (("cause", "engine"), ("le", "0.75"))] == 1
    assert found[f"{name}_count", (("cause", "frontend"),)] == 2
    assert found[f"{name}_sum", (("cause", "frontend"),)] == 1.0
    restarts = {key[1]: n for key, n in found.items() if key[0] == "triolet_restarts_total"}
    assert restarts == {
        (("rank", "0"), ("role", "engine")): 2,
        (("rank", "0"), ("role", "frontend")): 0,
        (("rank", "1"), ("role", "frontend")): 3,
    }
    (info,) = [key for key in found if key[0] == "triolet_build_info"]
    assert dict(info[1])["version"] == __version__
    assert dict(info[1])["model_name"] == "toy"


def test_names_and_labels_are_vllms() -> None:
    application = make_application(vllm_metrics=True)
    for status in (200, 204, 400):
        application.counters.answers["POST", "/v1/completions", status] += 2
    text = application.metrics.render().decode()
    of_route = 'handler="/v1/completions",method="POST"'
    assert f'http_requests_total{{{of_route},status="2xx"}} 4.0' in text
    assert f'http_requests_total{{{of_route},status="4xx"}} 2.0' in text
    assert 'vllm:generation_tokens_total{engine="0",model_name="toy"} 42.0' in text
    assert 'vllm:prompt_tokens_total{engine="0",model_name="toy"} 0.0' in text
    for name in ("running", "waiting"):
        assert f'vllm:num_requests_{name}{{engine="0",model_name="toy"}} 0.0' in text
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="toy"} 0.0' in text
    for reason in ("stop", "length", "abort", "error"):
        assert (
            f'vllm:request_success_total{{finished_reason="{reason}",model_name="toy"}} 0.0' in text
        )
    for name in ("admission_rejections_total", "websocket_connections_total"):
        assert f'vllm:{name}{{model_name="toy"}} 0.0' in text
    assert 'vllm:websocket_connections_active{model_name="toy"} 0.0' in text
    assert "vllm:" not in make_application().metrics.render().decode()
