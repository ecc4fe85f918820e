"""Metrics of the other machines that have joined a server, by the reports of its root."""

from collections.abc import Iterator, Sequence

import attrs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..runtime.messages import HostReport

_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily
STATES = ("up", "silent", "lost")
# (kind, field of HostReport, name, help), one value for each host.
_OF_HOSTS = (
    (_GAUGE, "engines_ready", "host_engines_ready", "Engines of the host that take requests"),
    (_GAUGE, "rss_bytes", "host_resident_memory_bytes", "Resident memory of the host process"),
    (_COUNTER, "cpu_s", "host_cpu_seconds", "CPU time of the host process"),
    (
        _GAUGE,
        "round_trip_s",
        "host_link_round_trip_seconds",
        "Quickest round trip between head and host within the last seconds",
    ),
    (
        _GAUGE,
        "lease_left_s",
        "host_lease_left_seconds",
        "Time until the host is lost if nothing more is heard of it",
    ),
    (
        _COUNTER,
        "beats_lost",
        "host_beats_lost",
        "Beats of the host that did not reach the head",
    ),
    (
        _COUNTER,
        "dropped",
        "host_events_dropped",
        "Events and news for viewers that did not reach the head",
    ),
    (_COUNTER, "times_lost", "host_lost", "Times that the host was lost"),
)


def host_metrics(hosts: Sequence[HostReport], prefix: str) -> Iterator[Metric]:
    """Families of all hosts; none where no other machine has joined."""
    if not hosts:
        return
    name, about = prefix + "host_state", "1 for the state that the host is in"
    states = GaugeMetricFamily(name, about, labels=("host", "state"))
    for host in hosts:
        for state in STATES:
            states.add_metric((host.name, state), float(host.state == state))
    yield states
    rows = {host.name: attrs.asdict(host) for host in hosts}
    for kind, field, name, about in _OF_HOSTS:
        family = kind(prefix + name, about, labels=("host",))
        for host_name, row in rows.items():
            family.add_metric((host_name,), row[field])
        yield family
