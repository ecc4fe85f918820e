"""Order of the test run, what it leaves for the next test, and its seconds (`run_times.py`).

Tiers run from the quickest to the slowest, so that a mistake shows early. `make test` runs two
files at a time, whatever the machine; by files, as two chaos campaigns beside each other have too
little of two cores.

Tests marked `end_to_end` or `chaos` wait for real processes on a machine that may stand still: one
of them that fails is run once more. The run then ends with `flaky: NAMES`, and the first failure is
printed whole: it is a fault, of the test if not of the program. Every other failure is a failure.
"""

import gc
import os
import pathlib
import signal
from collections.abc import Generator
from typing import Any

import hypothesis
import pytest

from triolet.engine.kernels.library import SPIN_COUNT, SPIN_VARIABLE
from triolet.tests.run_times import ALL, BUDGET_MINUTES, TESTS, RunTimes, tier_of

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

# Of every test below these folders.
MARK_OF_FOLDER = {
    "end_to_end": "end_to_end",
    "hostile": "end_to_end",
    "page": "end_to_end",
    "docs": "end_to_end",
    "chaos": "chaos",
    "kills": "chaos",
}
THRESHOLDS = gc.get_threshold()
_times = RunTimes()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = list(BUDGET_MINUTES)
    items.sort(key=lambda item: order.index(tier_of(item.path)))
    for item in items:
        mark = MARK_OF_FOLDER.get(item.path.relative_to(TESTS).parts[0])
        if mark is not None:
            item.add_marker(mark)
        waits = item.get_closest_marker("end_to_end") or item.get_closest_marker("chaos")
        if waits and item.config.getoption("reruns") is None:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that imports make is garbage; looking for it took a quarter of the collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


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
    _times.add(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    first_failures = terminalreporter.stats.get("rerun", [])
    for report in first_failures:
        terminalreporter.section(f"failed at first: {report.nodeid} ({report.when})")
        terminalreporter.write_line(report.longreprtext)
    terminalreporter.section("minutes by tier")
    for line in _times.lines():
        terminalreporter.write_line(line)
    _times.write(ALL)
    if first_failures:
        names = sorted({report.nodeid for report in first_failures})
        terminalreporter.write_line(f"flaky: {', '.join(names)}")
