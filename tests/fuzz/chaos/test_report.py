"""The report counts, and is green only if nothing was violated and nearly everything proven."""

import io
import json

import pytest
from rich.console import Console

from triolet.fuzz.chaos.fault_plan import FaultKind
from triolet.fuzz.chaos.history import Violation
from triolet.fuzz.chaos.report import FaultOutcome, Report

from .histories import created, delta, failed, finished, history_of


def make_report() -> Report:
    report = Report(7, "abc", ["python", "-m", "triolet.fuzz", "chaos", "--seed", "7"])
    for number in range(20):
        outcome = FaultOutcome(number, FaultKind.KILL_ENGINE, "engine 0", "gone")
        outcome.recovery_s = number / 10
        report.outcomes.append(outcome)
    return report


def text_of(report: Report) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(report.table())
    assert isinstance(console.file, io.StringIO)
    return "\n".join([console.file.getvalue(), *report.sentences()])


def test_a_green_report() -> None:
    report = make_report()
    report.count_stream(history_of(created(), delta(0, 4), finished()), None)
    died = history_of(created(), failed("engine 0 died"))
    report.count_stream(died, FaultKind.KILL_ENGINE)
    assert report.is_green()
    text = text_of(report)
    assert "1 engine_died" in text
    assert "0.90 / 1.90 / 1.90" in text
    assert "4 tokens compared" in text
    assert text.splitlines()[-1].startswith("green")
    data = json.loads(json.dumps(report.as_json()))
    assert data["green"]
    assert data["kinds"]["kill engine"]["streams"] == {"engine_died": 1}
    assert data["proofs"][0]["proof"] == "gone"


@pytest.mark.parametrize("of_the_whole", [False, True])
def test_one_violation_makes_it_red_and_says_how_to_see_it_again(of_the_whole: bool) -> None:
    report = make_report()
    place = report.violations if of_the_whole else report.outcomes[3].violations
    place.append(Violation("I1", "token 3 came twice"))
    assert not report.is_green()
    text = text_of(report)
    assert "VIOLATION I1: token 3 came twice" in text
    assert text.splitlines()[-1].endswith("python -m triolet.fuzz chaos --seed 7")
    assert report.as_json()["violations"] == [{"invariant": "I1", "evidence": "token 3 came twice"}]


def test_one_fault_without_proof_makes_it_red() -> None:
    report = make_report()
    report.outcomes[0].void = "it was dead before"
    assert "void: fault 0 (kill engine): it was dead before" in text_of(report)
    assert not report.is_green()


def test_what_took_several_attempts_is_told() -> None:
    report = make_report()
    report.outcomes[0].attempts = 3
    assert report.is_green()
    assert "1 were made again" in text_of(report)
    assert report.as_json()["made_again"] == 1
