"""The actor of a host, without Ray: it ends with its host, and that with its stdin."""

import subprocess
import sys

import pytest

from triolet.runtime.hosts.host_keys import make_cluster_keys
from triolet.runtime.launchers import ray_actor

pytestmark = pytest.mark.slow

BOUND_S = 60.0
# A worker of Ray's, which calls methods in its main thread and waits for more.
WORKER = f"""
import signal, sys
from {ray_actor.__name__} import HostActor
actor = HostActor()
"""
AWAIT = "\nwhile True: signal.pause()"


def run_worker(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WORKER + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S)


def test_an_actor_ends_a_moment_after_its_host() -> None:
    found = run_worker(f"assert actor.start(['--version'], 'a ticket') is None{AWAIT}")
    assert found.returncode == 0, found.stderr
    assert "triolet" not in found.stderr


def test_a_host_that_is_stopped_ends_in_order_and_its_actor_with_it() -> None:
    ticket = make_cluster_keys().make_ticket().text()
    words = ["engine", "--join=127.0.0.1:1", "--key=-", "--name=b"]
    program = f"""
actor.start({words!r}, {ticket!r})
assert actor.start({words!r}, "another") is None, "it is started once"
actor.stop()
code = actor._host.wait()
print("the host ended with", code, flush=True){AWAIT}
"""
    found = run_worker(program)
    assert found.returncode == 0, found.stderr
    assert found.stdout.endswith("the host ended with 0\n"), found.stdout + found.stderr


def test_an_actor_without_a_host_ends_at_once_when_it_is_told_to() -> None:
    assert run_worker(f"actor.stop(){AWAIT}").returncode == 0
