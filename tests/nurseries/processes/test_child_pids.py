"""Children as the kernel lists them."""

import os
import subprocess

import pytest

from triolet.nurseries.processes.child_pids import child_pids


@pytest.mark.slow
def test_the_children_are_listed_while_they_are_there() -> None:
    before = set(child_pids(os.getpid()))
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            assert set(child_pids(os.getpid())) - before == {process.pid}
        finally:
            process.kill()
    assert process.pid not in child_pids(os.getpid())


def test_nobody_has_none() -> None:
    assert child_pids(2**22 + 1) == []
