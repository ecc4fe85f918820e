"""This very process and a child of it, seen from /proc."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from triolet.fuzz.process_costs import Cost, costs_of_tree, cpu_spent


@contextmanager
def open_sleeper(word: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with this word in its command line, which runs by now."""
    program = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, word]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child


def test_a_tree_is_its_root_and_its_children() -> None:
    worker, frontend = "triolet.engine.worker.process", "triolet.api.frontend_process"
    native = "triolet.engine.worker.native_process"
    with open_sleeper(worker) as one, open_sleeper(frontend) as two, open_sleeper(native) as three:
        costs = costs_of_tree(os.getpid())
    assert costs["root"].pid == os.getpid()
    assert costs["root"].cpu_s > 0
    assert costs["root"].resident_mib > 1
    names = {cost.pid: name for name, cost in costs.items()}
    assert names[two.pid] == "frontend"
    assert {names[one.pid], names[three.pid]} == {"worker", "worker 2"}


def test_a_process_that_is_gone_costs_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    assert costs_of_tree(child.pid) == {}


def test_only_what_was_there_before_is_compared() -> None:
    before = {"a": Cost("a", 1, 1.0, 0.0), "b": Cost("b", 2, 1.0, 0.0)}
    after = {"a": Cost("a", 1, 1.5, 0.0), "b": Cost("b", 3, 9.0, 0.0), "c": Cost("c", 4, 1.0, 0.0)}
    assert cpu_spent(before, after) == {"a": 0.5}
