"""Metrics of hosts on the page that Prometheus reads."""

from triolet.api.counters import ApiCounters
from triolet.runtime.messages import HostReport

from .test_metrics import make_metrics, values


def test_hosts_have_their_states_figures_and_counts() -> None:
    metrics = make_metrics(ApiCounters())
    assert "triolet_host" not in metrics.render().decode(), "no other machine has joined"
    report = HostReport(
        name="b",
        state="silent",
        engines_ready=2,
        rss_bytes=3,
        cpu_s=4.5,
        round_trip_s=0.5,
        lease_left_s=1.5,
        beats_lost=6,
        dropped=7,
        times_lost=8,
    )
    metrics.hosts = [report, HostReport(name="c", state="lost", times_lost=1)]
    found = values(metrics.render())
    of_b = {
        name.removeprefix("triolet_host_"): value
        for (name, labels), value in found.items()
        if labels == (("host", "b"),)
    }
    assert of_b == {
        "engines_ready": 2,
        "resident_memory_bytes": 3,
        "cpu_seconds_total": 4.5,
        "link_round_trip_seconds": 0.5,
        "lease_left_seconds": 1.5,
        "beats_lost_total": 6,
        "events_dropped_total": 7,
        "lost_total": 8,
    }
    states = [key[1] for key, value in found.items() if key[0] == "triolet_host_state" and value]
    assert states == [
        (("host", "b"), ("state", "silent")),
        (("host", "c"), ("state", "lost")),
    ]
