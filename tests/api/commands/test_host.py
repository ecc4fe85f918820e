"""The command of a host whose launcher holds its stdin: it ends with that."""

import subprocess
import sys

import pytest

from triolet.runtime.hosts.host_keys import make_cluster_keys

# Longer than any machine takes, shorter than the host's own patience would be noticed.
BOUND_S = 60.0


@pytest.mark.slow
def test_a_host_of_a_launcher_ends_in_order_at_the_end_of_stdin() -> None:
    words = ["engine", "--join", "127.0.0.1:1", "--key", "-", "--name", "b"]
    command = [sys.executable, "-m", "triolet", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True) as host:
        _, said = host.communicate(make_cluster_keys().make_ticket().text() + "\n", BOUND_S)
    assert host.returncode == 0, said
    assert "did not let it in" not in said
