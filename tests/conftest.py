"""Order of the test run, and its time by tier.

Tiers run from the quickest to the slowest, so that a mistake shows early. `make test` runs two
files at a time, whatever the machine; by files, as two chaos campaigns beside each other have too
little of two cores. Each tier has a budget in minutes, printed beside what its tests took together.
No run fails for being slow: the same suite has taken 17 minutes on one machine and 31 on another.

Tests marked `end_to_end` or `chaos` wait for real processes on a machine that may stand still: one
of them that fails is run once more. The run then ends with `flaky: NAMES`, and the first failure is
printed whole: it is a fault, of the test if not of the program. Every other failure is a failure.
"""

import gc
import os
import pathlib
import signal
import time
from collections import defaultdict
from typing import Any

import hypothesis
import pytest

from triolet.engine.kernels.library import SPIN_COUNT, SPIN_VARIABLE

# As workers have it, and before anybody loads torch: the threads of tests wait for each other, too,
# and this machine may be busy.
os.environ.setdefault(SPIN_VARIABLE, SPIN_COUNT)
# Without a GPU its kernels are interpreted; asked of Triton before anybody imports it.
if not pathlib.Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A run that `nohup` or a shell's `&` began ignores these, and so would the servers that tests start
# and signal. What is handled here is at its default in them, and the run itself still lives on.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

# A deadline for each example is a wall-clock assertion, as is a check for slow data, and this
# machine may be busy. The same examples each time: a run says what a change did, not what luck did.
# Others are looked for on purpose: `make test PYTEST=--hypothesis-profile=anew`.
PATIENT: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("same", derandomize=True, **PATIENT)
hypothesis.settings.register_profile("anew", **PATIENT)
hypothesis.settings.load_profile("same")

TESTS = pathlib.Path(__file__).parent
# Budget of each tier in minutes.
BUDGET_MINUTES = {
    "install": 3.0,
    "lint and types": 1.5,
    "units": 4.0,
    "contracts and cancellation": 3.0,
    "end to end": 5.0,
    # Two thirds are boots, deadlines and imports that a death costs: one fault of each of 33 kinds,
    # and an import of torch for each worker that is killed.
    "chaos": 3.0,
    "fuzz": 2.0,
}
TIER_OF_FOLDER = {
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
# Of every test below these folders.
MARK_OF_FOLDER = {
    "end_to_end": "end_to_end",
    "hostile": "end_to_end",
    "page": "end_to_end",
    "docs": "end_to_end",
    "chaos": "chaos",
    "kills": "chaos",
}
WHOLE_BUDGET_MINUTES = 20.0
# Tiers before the first test: `make test` measures them and passes the seconds in these variables.
SECONDS_OF_TIER = {
    "install": "TEST_SECONDS_INSTALL",
    "lint and types": "TEST_SECONDS_LINT",
}
THRESHOLDS = gc.get_threshold()
_BEGAN_S = time.monotonic()
_spent_s: dict[str, float] = defaultdict(float)
for _name, _variable in SECONDS_OF_TIER.items():
    if _variable in os.environ:
        _spent_s[_name] = float(os.environ[_variable])


def _tier(path: pathlib.Path) -> str:
    folder = path.relative_to(TESTS).parts[0]
    return TIER_OF_FOLDER.get(folder, "units")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = list(BUDGET_MINUTES)
    items.sort(key=lambda item: order.index(_tier(item.path)))
    for item in items:
        mark = MARK_OF_FOLDER.get(item.path.relative_to(TESTS).parts[0])
        if mark is not None:
            item.add_marker(mark)
        waits = item.get_closest_marker("end_to_end") or item.get_closest_marker("chaos")
        if waits and item.config.getoption("reruns") is None:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_collection_finish() -> None:
    _freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        _freeze()


def _freeze() -> None:
    """Nothing that a file of tests loaded is looked at again by the collector of garbage.

    Without it, a collection in the middle of a later test stops it for half a second or more, and
    what it watches may be over by then. Nor are a server's thresholds, which it may have set, ours.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path, _, _ = report.nodeid.partition("::")
    _spent_s[_tier(TESTS.parent / path)] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    first_failures = terminalreporter.stats.get("rerun", [])
    for report in first_failures:
        terminalreporter.section(f"failed at first: {report.nodeid} ({report.when})")
        terminalreporter.write_line(report.longreprtext)
    terminalreporter.section("minutes by tier")
    for name, budget in BUDGET_MINUTES.items():
        if name in _spent_s:
            minutes = _spent_s[name] / 60
            mark = "  over" if minutes > budget else ""
            terminalreporter.write_line(f"{name:28} {minutes:6.2f} of {budget:4.1f}{mark}")
    total = _whole_minutes()
    mark = "  over" if total > WHOLE_BUDGET_MINUTES else ""
    terminalreporter.write_line(f"{'whole':28} {total:6.2f} of {WHOLE_BUDGET_MINUTES:4.1f}{mark}")
    if first_failures:
        names = sorted({report.nodeid for report in first_failures})
        terminalreporter.write_line(f"flaky: {', '.join(names)}")


def _whole_minutes() -> float:
    """From the first check to now, on the clock of the wall."""
    before_s = sum(_spent_s[name] for name in SECONDS_OF_TIER)
    return (before_s + time.monotonic() - _BEGAN_S) / 60
