"""Looks at a running server from outside: which processes it has, and what memory they hold.

The judgement of a storm: the same processes afterwards, memory flat once warm, and it still serves.
Must not know what the server was pressed with.
"""

import attrs

from ..runtime.processes.run_folder import live_runs
from .process_costs import Cost, costs_of_tree

# Allocators and caches fill in the first part of a run; what grows afterwards is a leak.
WARM_SHARE = 0.3
# What may still come after: pages that an allocator touches late. A leak of 100 bytes for each of
# 100 000 connections is 10 MiB.
GROWTH_MIB_MAX = 4.0


class ServerHurt(Exception):
    """The server is not as it was; says what has changed."""


class ServerUnknown(Exception):
    """No server of this user on this machine has the URL, so nobody can look at it."""


@attrs.frozen
class Sample:
    """All processes at one moment; `done` is how much of the work was done by then."""

    done: int
    costs: dict[str, Cost]


@attrs.define(eq=False)
class ProcessWatch:
    """Made before the storm. `sample` as often as you like, then `judge`."""

    root_pid: int
    samples: list[Sample] = attrs.field(factory=list)

    @classmethod
    def of_url(cls, url: str) -> "ProcessWatch":
        """Of the server with this URL. Raises `ServerUnknown`."""
        pids = [run.facts.pid for run in live_runs() if run.facts.url == url.rstrip("/")]
        if not pids:
            raise ServerUnknown(f"no running server of yours on this machine has the URL {url}")
        return cls(pids[0])

    def sample(self, done: int) -> None:
        """Look at all processes."""
        self.samples.append(Sample(done, costs_of_tree(self.root_pid)))

    def judge(self) -> None:
        """Raises `ServerHurt` for a process that was replaced or that grew once it was warm."""
        first, last = self.samples[0].costs, self.samples[-1].costs
        pids = [{name: cost.pid for name, cost in costs.items()} for costs in (first, last)]
        if pids[0] != pids[1]:
            raise ServerHurt(f"processes were {pids[0]} and are {pids[1]}")
        for name in first:
            growth = self.growth_mib(name)
            if growth > GROWTH_MIB_MAX:
                raise ServerHurt(f"{name} grew by {growth:.1f} MiB when it was warm")

    def growth_mib(self, name: str) -> float:
        """Of the line through the warm samples, from their first to their last."""
        warm_from = self.samples[-1].done * WARM_SHARE
        points = [
            (float(sample.done), sample.costs[name].resident_mib)
            for sample in self.samples
            if sample.done >= warm_from and name in sample.costs
        ]
        return slope(points) * (points[-1][0] - points[0][0]) if points else 0.0

    def lines(self) -> list[str]:
        """A table of all processes."""
        first, last = self.samples[0].costs, self.samples[-1].costs
        rows = [
            f"{'process':12} {'pid':>8} {'then':>8} {'RSS MiB':>8} {'then':>8}  warm growth   CPU s"
        ]
        for name, cost in first.items():
            after = last.get(name)
            if after is None:
                rows.append(f"{name:12} {cost.pid:8}     gone")
                continue
            rows.append(
                f"{name:12} {cost.pid:8} {after.pid:8} {cost.resident_mib:8.1f}"
                f" {after.resident_mib:8.1f} {self.growth_mib(name):8.2f} MiB"
                f" {after.cpu_s - cost.cpu_s:7.1f}"
            )
        return rows


def slope(points: list[tuple[float, float]]) -> float:
    """Least squares; 0 for points that have no extent."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / max(1, count)
    mean_y = sum(y for _, y in points) / max(1, count)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return 0.0
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
