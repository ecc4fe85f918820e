"""A server for benchmarks, with the null executor mostly, and a load on it; figures in a row."""

import math
import os
import re
import select
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import attrs
import trio

from ..load.client import Target
from ..load.command import make_runner
from ..load.measures import LoadRun, Measures, measure
from ..load.runner import Runner
from ..load.schedule import Load
from ..options import Protocol

START_S = 60.0
# Spares would start beside the first of the measurements.
NO_SPARES = ("--spare-engines", "0", "--spare-frontends", "0")
PROCESSES = ("frontend", "engine", "worker", "root", "server", "client")


@attrs.frozen
class Serving:
    """A running server: where it listens, and its root process."""

    target: Target
    pid: int

    def runner(self, load: Load, protocol: Protocol) -> Runner:
        """A run against it."""
        return make_runner(load, self.target, protocol, pid=self.pid)

    def press(self, load: Load, protocol: Protocol) -> Measures:
        """Run a load to its end."""
        return measured(trio.run(self.runner(load, protocol).run))


def measured(run: LoadRun) -> Measures:
    """The figures of a run; one that has errors has no figures."""
    figures = measure(run)
    assert not figures.errors, figures.errors
    return figures


@contextmanager
def open_server(
    *options: str, executor: str = "null", variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Serving]:
    """`triolet serve` with these options, until the block is left; `executor` "" is its default.

    `variables` are added to its environment.
    """
    command = [sys.executable, "-m", "triolet", "serve", "--port", "0", *NO_SPARES]
    if executor:
        command += ["--executor", executor]
    words, environment = [*command, *options], {**os.environ, **variables}
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=environment) as server:
        try:
            yield Serving(_wait_url(server), server.pid)
        finally:
            for _ in range(2):  # the second one does not wait for streams
                server.send_signal(signal.SIGINT)
            server.communicate()


def _wait_url(server: subprocess.Popen[bytes]) -> Target:
    assert server.stderr is not None
    log = ""
    while not (found := re.search(r"serving on http://([\d.]+):(\d+)", log)):
        ready, _, _ = select.select([server.stderr], [], [], START_S)
        line = server.stderr.readline().decode() if ready else ""
        assert line, f"the server does not start:\n{log}"
        log += line
    return Target(host=found[1], port=int(found[2]))


def costs(figures: Sequence[Measures], units: Sequence[int]) -> dict[str, float]:
    """{process: median CPU in µs per unit}; `units` are tokens or requests of each round."""
    found = {}
    for name in PROCESSES:
        spent = [
            row.cpu_s / count * 1e6
            for each, count in zip(figures, units, strict=True)
            for row in each.processes
            if row.name == name
        ]
        found[name] = statistics.median(spent) if spent else math.nan
    return found


def print_costs(title: str, by_process: dict[str, float]) -> None:
    """Print a line: the frontend first."""
    others = " · ".join(f"{name} {us:.1f}" for name, us in by_process.items() if name != "frontend")
    print(f"{title:38} {by_process['frontend']:8.2f} µs    {others}", flush=True)
