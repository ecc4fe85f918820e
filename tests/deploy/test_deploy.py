"""Files of `deploy/`: command lines that exist, units and manifests that parse, a root as pid 1."""

import configparser
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from triolet.command_line import app

from ..end_to_end.server import DEADLINE_S, wait_until
from ..house import ROOT

DEPLOY = ROOT / "deploy"
# By `systemd-analyze security`, of 10.
EXPOSURE_MAX = 2.0
# A host drains in less, whatever it runs.
LEAVES_S = 15.0
UNIT, PROXY = DEPLOY / "triolet.service", DEPLOY / "nginx.conf"


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["triolet"]


def manifests() -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def pod() -> Any:
    return manifests()[0]["spec"]["template"]["spec"]


def over_hosts(kind: str) -> dict[str, Any]:
    """Manifests of this kind by name, of a head and its hosts."""
    found = yaml.safe_load_all((DEPLOY / "kubernetes-hosts.yaml").read_text())
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def pods_over_hosts() -> tuple[Any, Any]:
    """Those of the head and of a host."""
    head, host = over_hosts("StatefulSet"), over_hosts("Deployment")
    pods = head["triolet-head"], host["triolet-engine"]
    return pods[0]["spec"]["template"]["spec"], pods[1]["spec"]["template"]["spec"]


def unit_lines(path: Path = UNIT) -> Any:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their case
    unit.read(path)
    return unit["Service"]


def image_words() -> list[str]:
    command = re.search(r"^CMD (\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert command is not None
    return list(json.loads(command[1]))


COMMANDS = {
    "unit": shlex.split(unit_lines()["ExecStart"])[1:],
    "image": image_words(),
    "compose": compose()["command"],
    "kubernetes": pod()["containers"][0]["args"],
    "kubernetes, a head": pods_over_hosts()[0]["containers"][0]["args"],
}
OF_HOSTS = {
    "unit": shlex.split(unit_lines(DEPLOY / "triolet-engine.service")["ExecStart"])[1:],
    "kubernetes": pods_over_hosts()[1]["containers"][0]["args"],
}


@pytest.mark.parametrize("where", COMMANDS)
def test_its_command_is_one_of_ours_and_is_given_time_to_drain(where: str) -> None:
    app.parse_args(COMMANDS[where], exit_on_error=False, print_error=False)
    grace_s = float(COMMANDS[where][COMMANDS[where].index("--grace") + 1])
    stops_after_s = {
        "unit": float(unit_lines()["TimeoutStopSec"]),
        "image": float("inf"),  # its caller's
        "compose": float(compose()["stop_grace_period"].removesuffix("s")),
        "kubernetes": float(pod()["terminationGracePeriodSeconds"]),
        "kubernetes, a head": float(pods_over_hosts()[0]["terminationGracePeriodSeconds"]),
    }
    assert grace_s + 5 <= stops_after_s[where]
    assert "--journal" in COMMANDS[where]


@pytest.mark.parametrize("where", OF_HOSTS)
def test_a_host_has_a_command_of_ours_and_time_to_drain(where: str) -> None:
    app.parse_args(OF_HOSTS[where], exit_on_error=False, print_error=False)
    assert OF_HOSTS[where][0] == "engine"
    stops_after_s = {
        "unit": float(unit_lines(DEPLOY / "triolet-engine.service")["TimeoutStopSec"]),
        "kubernetes": float(pods_over_hosts()[1]["terminationGracePeriodSeconds"]),
    }
    assert stops_after_s[where] >= LEAVES_S


def test_hosts_in_pods_find_the_head_its_ports_and_the_keys() -> None:
    head, host = pods_over_hosts()
    of_head, of_host = COMMANDS["kubernetes, a head"], OF_HOSTS["kubernetes"]
    options = dict(itertools.pairwise(of_head))
    low, high = map(int, options["--data-ports"].split("-"))
    # Two for each frontend, and for one that is about to take its place.
    assert high - low + 1 >= 2 * 2 * int(options["--frontends"])
    name, port = dict(itertools.pairwise(of_host))["--join"].split(":")
    assert port == options["--join-port"]
    service = over_hosts("Service")[name]["spec"]
    assert service["clusterIP"] == "None"  # the pod's own address, as it is advertised
    assert service["publishNotReadyAddresses"]  # it serves when the first host does
    assert options["--advertise"] == "$(POD_IP)"
    policies = over_hosts("NetworkPolicy")
    ports = [{"port": int(port)}, {"port": low, "endPort": high}]
    assert policies[name]["spec"]["ingress"][1]["ports"] == ports
    assert policies["triolet-engine"]["spec"]["egress"][0]["ports"] == ports
    for pod in (head, host):
        (copy,), (container,) = pod["initContainers"], pod["containers"]
        path = dict(itertools.pairwise(container["args"]))["--key"]
        mode, source, target = copy["command"][2:]
        assert (mode, target) == ("600", path)  # what a key is refused without
        mounts = {each["mountPath"]: each["name"] for each in copy["volumeMounts"]}
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert volumes[mounts[str(Path(source).parent)]]["secret"]
        mounted = {each["mountPath"] for each in container["volumeMounts"]}
        assert {str(Path(path).parent), "/model", "/tmp"} <= mounted
        assert {each["name"] for each in container["volumeMounts"]} - {"journal"} <= set(volumes)


def test_the_unit_signals_the_root_alone() -> None:
    lines = unit_lines()
    assert (lines["KillMode"], lines["KillSignal"]) == ("mixed", "SIGTERM")
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run([verify, "verify", UNIT], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if "is not executable" not in line]
    assert said == []


def test_the_unit_takes_what_a_server_has_no_use_for() -> None:
    rate = shutil.which("systemd-analyze")
    if rate is None:
        pytest.skip("systemd-analyze is not installed")
    words = [rate, "security", "--offline=yes", f"--threshold={EXPOSURE_MAX * 10:.0f}", str(UNIT)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_pods_meet_the_restricted_standard() -> None:
    for spec in (pod(), *pods_over_hosts()):
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        assert spec["automountServiceAccountToken"] is False
        # It is for run folders, and the root file system cannot be written.
        mounts = spec["containers"][0]["volumeMounts"]
        assert {"name": "tmp", "mountPath": "/tmp"} in mounts
    (policy,) = [each for each in manifests() if each["kind"] == "NetworkPolicy"]
    assert policy["spec"]["podSelector"] == manifests()[0]["spec"]["selector"]


def test_the_image_has_the_threads_of_the_kernels_and_no_torch() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert "index-url" not in text
    assert "torch>" not in text
    served = text.rpartition("\nFROM ")[2]
    assert "libgomp1" in served  # which the compiler brings to the stage that builds alone
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "**/*.key", "**/.env*"} <= set(ignored)


def test_the_compose_file_listens_on_loopback_and_pins_its_images() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    ports = [port for each in services.values() for port in each.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    images = [each["image"] for each in services.values() if "image" in each]
    assert all(re.search(r":v?\d+\.\d+", image) for image in images), images


def test_probes_ask_routes_that_need_no_key() -> None:
    container = pod()["containers"][0]
    asked = {
        name: container[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "readiness", "liveness")
    }
    assert asked == {"startup": "/ready", "readiness": "/ready", "liveness": "/live"}
    assert "http://127.0.0.1:8000/ready" in compose()["healthcheck"]["test"][-1]
    assert [each["kind"] for each in manifests()] == ["StatefulSet", "Service", "NetworkPolicy"]


def test_the_proxy_delays_nothing_and_sends_nothing_twice() -> None:
    text = PROXY.read_text()
    # The name as it came: pages are served only where it agrees with their origin.
    kept = ("Upgrade $http_upgrade", "Host $http_host")
    for line in ("proxy_buffering off", "proxy_next_upstream off", *kept):
        assert f"{line};" in text
    (timeout_s,) = re.findall(r"proxy_read_timeout (\d+)s;", text)
    assert int(timeout_s) > 30  # a replay's wait


@contextmanager
def as_pid_one(folder: Path, port_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`triolet serve` as the first process of a PID namespace."""
    unshare = shutil.which("unshare")
    words = [unshare or "", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    words.append("--kill-child=SIGKILL")
    if unshare is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets us make no PID namespace")
    serve = [sys.executable, "-P", "-m", "triolet", "serve", "--port", "0"]
    with port_file.open("wb") as log:
        process = subprocess.Popen(
            [*words, *serve],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE_S)


@pytest.mark.end_to_end
@pytest.mark.slow
async def test_a_root_that_is_pid_one_serves_drains_and_reaps(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with trio.fail_after(2 * DEADLINE_S), as_pid_one(tmp_path, log) as process:
        await wait_until(lambda: "serving on" in log.read_text(), "it serves")
        found = re.search(r"http://\S+", log.read_text())
        assert found is not None
        body = json.dumps({"prompt": "One", "max_tokens": 4}).encode()
        head = {"content-type": "application/json"}
        request = urllib.request.Request(f"{found[0]}/v1/completions", body, head)
        with await trio.to_thread.run_sync(urllib.request.urlopen, request) as answer:
            assert answer.status == 200
        (root,) = children(process.pid)
        # What an orphan becomes when its parent dies: a child of pid 1.
        engine = next(pid for pid in children(root) if b"engine" in command_of(pid))
        os.kill(engine, signal.SIGKILL)
        await wait_until(lambda: not zombies(root), "what died was reaped")
        os.kill(root, signal.SIGTERM)
        assert await trio.to_thread.run_sync(process.wait) == 0
        assert "stopped: every process has ended" in log.read_text()


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def zombies(pid: int) -> list[int]:
    states = {each: Path(f"/proc/{each}/stat").read_text() for each in children(pid)}
    return [each for each, stat in states.items() if stat.rpartition(")")[2].split()[0] == "Z"]


def test_the_workflow_runs_the_one_command_on_versions_that_are_promised() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    job = workflow["jobs"]["test"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = {each.rpartition(" ")[2] for each in project["classifiers"] if ":: 3." in each}
    assert set(job["strategy"]["matrix"]["python"]) <= promised
    assert any("make test" in step.get("run", "") for step in job["steps"])
