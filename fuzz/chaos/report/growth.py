"""Growth of long-lived processes: least squares over samples of memory, descriptors and tasks.

Sans-IO: samples in, slopes out. A process grows while it fills what it keeps (responses, caches):
the first third of its samples is no part of the slope, nor is one step. An allocator keeps what
was once needed in the same moment (CPython takes 1 MiB at a time), which is a step that stays; what
leaks is taken bit by bit. A slope is a violation where the samples span enough time, and exceed the
limit by more than their own scatter explains.
"""

import math
from collections.abc import Sequence

import attrs

from ..history import Violation

MEMORY_MIB_PER_HOUR_MAX = 1.0
# A shorter span says nothing of an hour.
SPAN_MIN_S, SAMPLES_MIN = 900.0, 6
WARM_UP_PART = 3
# Of the slope's standard error: with this, one false alarm in a thousand.
ERRORS = 3.0
# What is on one side of a step; fewer are scatter.
PART_MIN = 3


@attrs.frozen
class Sample:
    """One process when all was quiet."""

    at_s: float
    memory_bytes: int
    descriptors: int
    tasks: int


@attrs.frozen(kw_only=True)
class Growth:
    """Of one life: what it had at last, and how much more an hour later."""

    process: str
    seconds: float
    samples: int
    mib: float
    mib_per_hour: float
    error_mib_per_hour: float
    # The most in the first half of its samples, and the least in the second: what comes and goes is
    # no growth.
    descriptors: tuple[int, int]
    tasks: tuple[int, int]
    # (seconds, MiB), the first third too: by eye a step, a leak and scatter differ.
    memory: list[tuple[float, float]] = attrs.field(factory=list)

    def judge(self) -> list[Violation]:
        """I9 where it grows, I6 where descriptors or tasks do."""
        found = []
        sure = self.mib_per_hour - ERRORS * self.error_mib_per_hour
        if self.is_long() and sure > MEMORY_MIB_PER_HOUR_MAX:
            evidence = f"{self.process}: grows by {self.mib_per_hour:.1f} MiB an hour"
            found.append(Violation("I9", evidence))
        for what, (first, last) in (("descriptors", self.descriptors), ("tasks", self.tasks)):
            if last > first:
                found.append(Violation("I6", f"{self.process}: {first} {what} became {last}"))
        return found

    def __str__(self) -> str:
        return (
            f"{self.process}: {self.mib:.1f} MiB, {self.mib_per_hour:+.2f} ± "
            f"{self.error_mib_per_hour:.2f} MiB/h over {self.seconds / 60:.0f} min;"
            f" {self.descriptors[1]} descriptors ({self.descriptors[0]} before),"
            f" {self.tasks[1]} tasks ({self.tasks[0]})"
        )

    def is_long(self) -> bool:
        """Whether its slope says anything."""
        return self.seconds >= SPAN_MIN_S and self.samples >= SAMPLES_MIN


def growth_of(process: str, samples: Sequence[Sample]) -> Growth:
    """Of the samples of one life, in order; there is at least one."""
    warm = samples[len(samples) // WARM_UP_PART :]
    memory = [(each.at_s, each.memory_bytes / 2**20) for each in samples]
    slope, error = slope_of(memory[-len(warm) :])
    earlier, later = warm[: max(1, len(warm) // 2)], warm[len(warm) // 2 :]
    return Growth(
        process=process,
        seconds=warm[-1].at_s - warm[0].at_s,
        samples=len(warm),
        mib=warm[-1].memory_bytes / 2**20,
        mib_per_hour=slope * 3600,
        error_mib_per_hour=error * 3600,
        descriptors=(max(s.descriptors for s in earlier), min(s.descriptors for s in later)),
        tasks=(max(s.tasks for s in earlier), min(s.tasks for s in later)),
        memory=memory,
    )


def slope_of(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares of a line with one step, where it leaves the least: slope and standard error.

    (0, inf) of too few points.
    """
    steps = range(PART_MIN, len(points) - PART_MIN + 1)
    parts = [[points], *([points[:step], points[step:]] for step in steps)]
    _, slope, error = min(map(_lines_of, parts), key=lambda line: line[0])
    return slope, error


def _lines_of(parts: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float, float]:
    """Lines of one slope: what they leave (mean square), the slope, its standard error."""
    from_means = []
    for part in filter(None, parts):
        mean_x, mean_y = (sum(values) / len(part) for values in zip(*part, strict=True))
        from_means += [(x - mean_x, y - mean_y) for x, y in part]
    freedom = len(from_means) - 1 - len(parts)
    square = sum(x**2 for x, _ in from_means)
    if freedom < 1 or not square:
        return math.inf, 0.0, math.inf
    slope = sum(x * y for x, y in from_means) / square
    rest = sum((y - slope * x) ** 2 for x, y in from_means) / freedom
    return rest, slope, math.sqrt(rest / square)
