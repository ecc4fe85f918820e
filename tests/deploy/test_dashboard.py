"""Queries of the dashboard: each name and label is one of ours, Prometheus evaluates them."""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from triolet.api.metrics import Metrics
from triolet.api.totals import Totals
from triolet.runtime.messages import HostReport

from ..api.fakes import FakeGenerator, make_application
from ..house import ROOT

GRAFANA = ROOT / "deploy" / "grafana"
# What Prometheus gives each sample that it scrapes, and what dashboards group by.
OF_SCRAPES = {"instance", "job"}
PERIOD_S, PAGES = 5, 12
BEGIN_S = 1_700_000_000
# A server died before this page, and its streams were silent for so long.
DEATH, GAP_S = 8, 0.7
HOST = HostReport(name="b", state="up", engines_ready=1, round_trip_s=0.001, lease_left_s=3.2)


def dashboard() -> Any:
    return json.loads((GRAFANA / "triolet.json").read_text())


def queries() -> dict[str, list[str]]:
    """{panel: what it asks for}, annotations with them."""
    board = dashboard()
    found = {
        panel["title"]: [target["expr"] for target in panel["targets"]] for panel in board["panels"]
    }
    notes = board["annotations"]["list"]
    return found | {note["name"]: [note["expr"]] for note in notes if "expr" in note}


def exported(page: bytes) -> dict[str, set[str]]:
    """{name of a sample: its labels}."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def unknown_of(query: str, known: dict[str, set[str]]) -> list[str]:
    """Names and labels of a query that no page has."""
    found = []
    for name, matchers in re.findall(r"(\w+:?\w+)\{([^}]*)\}", query):
        if name not in known:
            found.append(name)
            continue
        labels = set(re.findall(r"(\w+)=", matchers))
        for group in re.findall(r"by \(([^)]*)\)", query):
            labels |= set(re.findall(r"\w+", group))
        found += [f"{name}: {label}" for label in sorted(labels - known[name] - OF_SCRAPES)]
    return found


def page_of_all() -> bytes:
    metrics = make_application().metrics
    metrics.frontend_restarts, metrics.hosts = {0: 0}, [HOST]
    return metrics.render()


def test_every_name_and_label_is_on_the_page() -> None:
    known = exported(page_of_all())
    asked = queries()
    assert len(asked) > 15
    for panel, expressions in asked.items():
        for query in expressions:
            assert re.findall(r"(\w+)\{", query), (panel, query)
            assert unknown_of(query, known) == [], (panel, query)


def test_compose_mounts_what_there_is() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"] == [{"targets": ["triolet:8000"]}]
    (secret,) = services["services"]["prometheus"]["secrets"]
    assert scraped["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    assert services["secrets"][secret] == {"environment": "TRIOLET_API_KEY"}
    mounted = {}
    for service in ("prometheus", "grafana"):
        for volume in services["services"][service]["volumes"]:
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                assert (ROOT / "deploy" / source).is_file()
                mounted[target] = source
    provisioning = yaml.safe_load((GRAFANA / "provisioning.yaml").read_text())
    assert f"{provisioning['providers'][0]['options']['path']}/triolet.json" in mounted
    home = services["services"]["grafana"]["environment"][
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
    ]
    assert home in mounted


def pages() -> Iterator[str]:
    """What a server shows over a minute in which it meets a death, with the times of the looks."""
    application = make_application(generator := FakeGenerator())
    metrics = Metrics(generator, Totals(generator, application.counters))
    for number in range(PAGES):
        latencies = generator.latencies
        latencies.first_token.observe(0.03, 4)
        latencies.inter_token.observe(0.011, 400)
        for histogram in (latencies.queue, latencies.prefill, latencies.decode, latencies.whole):
            histogram.observe(0.4, 4)
        latencies.prompt_tokens.observe(90, 4)
        latencies.output_tokens.observe(100, 4)
        if number == DEATH:
            latencies.gaps_of_engines.observe(GAP_S, 4)
            latencies.inter_token.observe(GAP_S, 4)
        metrics.frontend_restarts, metrics.hosts = {0: int(number >= DEATH)}, [HOST]
        at_s = BEGIN_S + PERIOD_S * number
        for line in metrics.render().decode().splitlines():
            if not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                name, _, labels = series.removesuffix("}").partition("{")
                labels += "," if labels else ""
                yield f'{name}{{{labels}instance="a:1"}} {value} {at_s}'


@contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    """A Prometheus that has these pages; its address."""
    server, tool = shutil.which("prometheus"), shutil.which("promtool")
    if server is None or tool is None:
        pytest.skip("Prometheus is not installed (Debian's package `prometheus`)")
    text = folder / "pages.txt"
    text.write_text("\n".join([*pages(), "# EOF\n"]))
    make = [tool, "tsdb", "create-blocks-from", "openmetrics"]
    subprocess.run([*make, str(text), f"{folder}/data"], check=True, capture_output=True)
    (folder / "prometheus.yml").write_text("global: {}\n")
    process = subprocess.Popen(
        [
            server,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            "--storage.tsdb.retention.time=100y",
            "--web.listen-address=127.0.0.1:0",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        address = ""
        for line in process.stderr:
            if found := re.search(r"Listening on.* address=(\S+)", line):
                address = found[1]
            if "Server is ready" in line:
                break
        yield f"http://{address}"
    finally:
        process.kill()
        process.communicate()


def ask(url: str, query: str, at_s: float) -> list[float]:
    """Values of the series that Prometheus finds."""
    query = query.replace("$__rate_interval", "20s").replace("$__range", "1m")
    words = urllib.parse.urlencode({"query": query.replace("$instance", ".*"), "time": at_s})
    with urllib.request.urlopen(f"{url}/api/v1/query?{words}") as answer:
        return [float(row["value"][1]) for row in json.load(answer)["data"]["result"]]


@pytest.mark.slow
def test_prometheus_evaluates_every_query(tmp_path: Path) -> None:
    with prometheus(tmp_path) as url:
        end_s = BEGIN_S + PERIOD_S * (DEATH + 1)
        for panel, expressions in queries().items():
            for query in expressions:
                assert ask(url, query, end_s), (panel, query)
        asked = queries()
        (restarts,) = asked["Restarts"]
        assert ask(url, restarts, end_s)[0] > 0.9
        (gap,) = asked["Longest gap, 99 %"]
        (longest_s,) = ask(url, gap, end_s)
        assert 0.5 < longest_s <= 0.75
        calm_s, (median, _, highest) = BEGIN_S + PERIOD_S * (DEATH - 1), asked["Between tokens"]
        assert ask(url, highest, calm_s)[0] <= 0.025
        assert ask(url, highest, end_s)[0] > 0.5
        assert ask(url, median, end_s)[0] <= 0.025
