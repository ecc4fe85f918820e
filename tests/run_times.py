"""Seconds of a test run: by tier beside the tiers' budgets, and of its slowest tests and files.

Budgets are minutes of one worker; two run at once. No run fails for being slow: the same suite has
taken 17 minutes on one machine and 31 on another.
"""

import os
import pathlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import attrs
import pytest

TESTS: Final = pathlib.Path(__file__).parent
# Ordered from the quickest to the slowest, so that a mistake shows early.
BUDGET_MINUTES: Final = {
    "install": 3.0,
    "lint and types": 1.5,
    "units": 4.0,
    "contracts and cancellation": 3.0,
    "end to end": 5.0,
    # Two thirds are boots, deadlines and imports that a death costs: one fault of each of 33 kinds.
    "chaos": 3.0,
    "fuzz": 2.0,
}
WHOLE_BUDGET_MINUTES: Final = 20.0
TIER_OF_FOLDER: Final = {
    "contracts": "contracts and cancellation",
    "cancellation": "contracts and cancellation",
    "conformance": "contracts and cancellation",
    "end_to_end": "end to end",
    "structured": "end to end",
    "hostile": "end to end",
    "page": "end to end",
    "chaos": "chaos",
    "kills": "chaos",
    "fuzz": "fuzz",
}
# Tiers before the first test: `make test` measures them and passes the seconds in these variables.
SECONDS_OF_TIER: Final = {
    "install": "TEST_SECONDS_INSTALL",
    "lint and types": "TEST_SECONDS_LINT",
}
SLOWEST: Final = 10
# Every test with its seconds, the slowest first, for whoever looks where the time went.
ALL: Final = TESTS.parent / ".cache" / "durations.txt"


def tier_of(path: pathlib.Path) -> str:
    """Name of the tier that the file of tests belongs to."""
    return TIER_OF_FOLDER.get(path.relative_to(TESTS).parts[0], "units")


@attrs.define(eq=False)
class RunTimes:
    """Collects reports of tests, and says where the time went."""

    of_tests: dict[str, float] = attrs.field(factory=lambda: defaultdict(float))
    """Seconds of each test with its fixtures, by node id; runs of a flaky one are added up."""
    began_s: float = attrs.field(factory=time.monotonic)
    before_s: dict[str, float] = attrs.field(factory=dict)
    """Seconds of the tiers before the first test, as the Makefile measured them."""

    def __attrs_post_init__(self) -> None:
        for tier, variable in SECONDS_OF_TIER.items():
            if variable in os.environ:
                self.before_s[tier] = float(os.environ[variable])

    def add(self, report: pytest.TestReport) -> None:
        """Count a phase of a test."""
        self.of_tests[report.nodeid] += report.duration

    def lines(self) -> Iterator[str]:
        """Minutes by tier beside their budget, then the slowest tests and files in seconds."""
        of_files = defaultdict[str, float](float)
        of_tiers = defaultdict[str, float](float, self.before_s)
        for name, seconds in self.of_tests.items():
            path = name.partition("::")[0]
            of_files[path] += seconds
            of_tiers[tier_of(TESTS.parent / path)] += seconds
        for tier, budget in BUDGET_MINUTES.items():
            if tier in of_tiers:
                yield _beside(tier, of_tiers[tier] / 60, budget)
        whole_s = sum(self.before_s.values()) + time.monotonic() - self.began_s
        yield _beside("whole", whole_s / 60, WHOLE_BUDGET_MINUTES)
        for what, counted in (("tests", self.of_tests), ("files", of_files)):
            yield f"slowest {what}:"
            for name, seconds in _slowest_first(counted)[:SLOWEST]:
                yield f"{seconds:8.1f} s  {name}"

    def write(self, path: pathlib.Path) -> None:
        """Keep the seconds of every test in a file, the slowest first."""
        path.parent.mkdir(exist_ok=True)
        with path.open("w") as file:
            file.writelines(f"{s:8.3f} {name}\n" for name, s in _slowest_first(self.of_tests))


def _slowest_first(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda each: -each[1])


def _beside(name: str, minutes: float, budget: float) -> str:
    mark = "  over" if minutes > budget else ""
    return f"{name:28} {minutes:6.2f} of {budget:4.1f}{mark}"
