"""The page that Prometheus reads, parsed by its own parser."""

from prometheus_client.parser import text_string_to_metric_families

from triolet.api.metrics.families import ApiCounters, Metrics

from ..fakes import FakeGenerator


def values(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_the_page_tells_what_the_snapshots_say() -> None:
    counters = ApiCounters(connections=7, sockets_active=2, deltas_merged=9)
    counters.answers["GET", "/live", 200] += 3
    found = values(Metrics(FakeGenerator(), counters).render())
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


def test_two_pages_live_side_by_side() -> None:
    """Nothing is registered globally."""
    first, second = (Metrics(FakeGenerator(), ApiCounters()) for _ in range(2))
    assert first.render() == second.render()
