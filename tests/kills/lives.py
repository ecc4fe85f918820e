"""Samples of every process that lives on from one quiet moment to the next."""

from collections.abc import Mapping

import attrs

from triolet.fuzz.chaos.report.growth import SAMPLES_MIN, Growth, Sample, growth_of
from triolet.fuzz.observers import PROC, open_files
from triolet.nurseries.tasks.task_tree import ProcessTree, TaskNode


@attrs.define(eq=False)
class Lives:
    """{(place, pid): samples}; those of the dead are kept where they are enough."""

    _samples: dict[tuple[str, int], list[Sample]] = attrs.field(factory=dict, init=False)

    def take(self, processes: Mapping[str, ProcessTree], now: float) -> None:
        """A sample of each process that serves."""
        living = {(place, process.pid) for place, process in processes.items()}
        for life, samples in list(self._samples.items()):
            if life not in living and len(samples) < SAMPLES_MIN:
                del self._samples[life]
        for place, process in processes.items():
            if process.tasks is not None:
                sample = Sample(
                    now,
                    memory_bytes(process.pid),
                    len(open_files(process.pid)),
                    tasks_of(process.tasks),
                )
                self._samples.setdefault((place, process.pid), []).append(sample)

    def growths(self) -> list[Growth]:
        """Of those that lived long enough to have some."""
        return [
            growth_of(f"{place} (pid {pid})", samples)
            for (place, pid), samples in self._samples.items()
            if len(samples) >= SAMPLES_MIN
        ]


def tasks_of(tree: TaskNode) -> int:
    """How many tasks there are, itself included."""
    return 1 + sum(map(tasks_of, tree.children))


def memory_bytes(pid: int) -> int:
    """What it has in memory that is no file's; 0 when it is gone.

    A page that others share counts whole too: of a fork's pages the share in PSS grows whenever
    another of those forks dies.
    """
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    kinds = ("RssAnon:", "RssShmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))
