"""The command's exit code, and what it says."""

import pytest

from triolet.fuzz.chaos.command import exit_code, show
from triolet.fuzz.chaos.history import Violation
from triolet.fuzz.chaos.options import ChaosOptions
from triolet.fuzz.chaos.report import Report


def test_green_and_red(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(7, "abc", ChaosOptions(seed=7, faults=3).words_of_replay())
    assert exit_code(report) == 0
    report.violations.append(Violation("I5", "process [4] is left"))
    assert exit_code(report) == 1
    show(report)
    assert "--seed 7 --faults 3" in capsys.readouterr().out.replace("\n", " ")
    assert report.as_json()["violations"][0]["invariant"] == "I5"
