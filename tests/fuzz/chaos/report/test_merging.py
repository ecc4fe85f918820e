"""Several sittings of a campaign become one report, and only what belongs together does."""

import json
import pathlib

import attrs
import pytest

from triolet.api.commands.figures import write_figures
from triolet.engine.errors import InvalidParameter
from triolet.fuzz.chaos.command import digest_of_code, merge_files, run_chaos
from triolet.fuzz.chaos.history import Ending, Violation
from triolet.fuzz.chaos.options import ChaosOptions
from triolet.fuzz.chaos.report.growth import SAMPLES_MIN, SPAN_MIN_S, Growth, mean_growth
from triolet.fuzz.chaos.report.merging import CannotMerge, SavedReport, merged, read_report
from triolet.fuzz.chaos.report.report import FaultOutcome, Report
from triolet.fuzz.chaos.report.timeline import (
    STRIP_S,
    STRIPS_MAX,
    StreamLine,
    Timeline,
    shown_lines,
)

BEGAN_S = 500.0


def growth(mib_per_hour: float, error: float, seconds: float = SPAN_MIN_S) -> Growth:
    return Growth(
        process="root (pid 7)",
        seconds=seconds,
        samples=SAMPLES_MIN,
        mib=50.0,
        mib_per_hour=mib_per_hour,
        error_mib_per_hour=error,
        descriptors=(9, 9),
        tasks=(4, 4),
    )


def sitting(seed: int, *, mib_per_hour: float = 0.0) -> Report:
    """Two kills, three streams, of which one waited."""
    replay = ["triolet", "chaos", "--seed", str(seed), "--faults", "2", "--profile", "release"]
    report = Report(seed, f"plan{seed}", replay, {"kill worker": 2}, began_s=BEGAN_S)
    for number in range(2):
        outcome = FaultOutcome(number, "kill worker", "engine 0/worker 0", proof="dead")
        outcome.begin(BEGAN_S + 1 + number)
        outcome.recovery_s, outcome.gaps_s = 0.5 + seed, [0.3 * seed]
        report.outcomes.append(outcome)
    report.endings.update({"finished": 3})
    report.checks.update({"I1": 3})
    report.killed, report.tokens, report.seconds, report.code = 2, 30, 40.0, "same"
    report.growths = [growth(mib_per_hour, 0.5)]
    line = StreamLine(
        name="a", group="sse", begin_s=0.5, end_s=4.0, ending=Ending.FINISHED, pauses=[(1.0, 2.0)]
    )
    report.timeline.add([line])
    return report


def saved(report: Report, folder: pathlib.Path) -> SavedReport:
    path = folder / "report.json"
    write_figures(str(path), report.as_json())
    return read_report(path.read_bytes())


def test_the_sum_of_two_sittings(tmp_path: pathlib.Path) -> None:
    report = merged([saved(sitting(seed), tmp_path) for seed in (1, 2)])
    assert (report.killed, report.tokens, report.seconds) == (4, 60, 80.0)
    assert (report.endings["finished"], report.checks["I1"]) == (6, 6)
    (row,) = report.rows()
    assert (row["planned"], row["done"], row["proven"]) == (4, 4, 4)
    assert row["gaps_s"] == [0.3, 0.6, 0.6]
    assert row["recovery_s"] == [1.5, 2.5, 2.5]
    assert report.is_green()
    assert "2 sittings: 4 faults" in report.picture()
    begun = [line.begin_s for line in report.timeline.lines]
    assert begun == [0.5, 2 * STRIP_S + 0.5], "the second begins with a strip of its own"
    marks = [mark.at_s for mark in report.timeline.marks]
    assert marks == [1.0, 2.0, 2 * STRIP_S + 1.0, 2 * STRIP_S + 2.0]


def test_a_sum_is_no_sitting(tmp_path: pathlib.Path) -> None:
    report = merged([saved(sitting(seed), tmp_path) for seed in (1, 2)])
    again = saved(report, tmp_path)
    assert len(report.sittings) == 2
    with pytest.raises(CannotMerge, match="is a sum"):
        merged([again, saved(sitting(3), tmp_path)])


@pytest.mark.parametrize("kind", ["violation", "void", "of a fault"])
def test_what_one_sitting_found_the_sum_has(tmp_path: pathlib.Path, kind: str) -> None:
    bad = sitting(2)
    match kind:
        case "violation":
            bad.violations.append(Violation("I1", "a token"))
        case "void":
            bad.outcomes[0].void = "it was dead"
        case _:
            bad.outcomes[0].violations.append(Violation("I8", "it hung"))
    report = merged([saved(each, tmp_path) for each in (sitting(1), bad)])
    assert not report.is_green()
    assert len(report.all_violations()) == (kind != "void")
    assert report.voids() == (kind == "void")


@pytest.mark.parametrize("what", ["seed", "code", "engines"])
def test_what_does_not_belong_together_is_no_sum(tmp_path: pathlib.Path, what: str) -> None:
    parts = [saved(sitting(1), tmp_path), saved(sitting(2), tmp_path)]
    other = {
        "seed": attrs.evolve(parts[1], seed=1),
        "code": attrs.evolve(parts[1], code="other"),
        "engines": attrs.evolve(parts[1], replay=[*parts[1].replay, "--engines", "3"]),
    }
    with pytest.raises(CannotMerge, match=r"same seed|other code|another campaign"):
        merged([parts[0], other[what]])


def test_growth_that_no_life_shows_alone_shows_in_their_mean(tmp_path: pathlib.Path) -> None:
    slow = [saved(sitting(seed, mib_per_hour=1.4), tmp_path) for seed in range(1, 41)]
    assert not growth(1.4, 0.5).judge()
    (found,) = merged(slow).all_violations()
    assert "root (mean of 40 lives)" in found.evidence


def test_lives_too_short_say_nothing_together() -> None:
    assert mean_growth("root", [growth(9.0, 0.1, seconds=60.0)] * 9) is None
    mean = mean_growth("root", [growth(1.0, 0.1), growth(3.0, 0.2)])
    assert mean is not None
    assert mean.mib_per_hour == pytest.approx(1.4)


def test_streams_that_no_strip_shows_are_not_kept() -> None:
    def line(strip: int, wait_s: float) -> StreamLine:
        begin_s = strip * STRIP_S
        return StreamLine(
            name=str(strip),
            group="sse",
            begin_s=begin_s,
            end_s=begin_s + 9,
            ending=Ending.FINISHED,
            pauses=[(begin_s + 1, begin_s + 1 + wait_s)],
        )

    lines = [line(strip, wait_s=1.0 + strip % 2) for strip in range(2 * STRIPS_MAX)]
    assert shown_lines(Timeline(lines)) == lines[1::2]


@pytest.mark.parametrize("text", ["", "[]", json.dumps({"command": "bench"})])
def test_other_files_are_refused_in_a_sentence(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InvalidParameter, match="is no report of a campaign"):
        merge_files([str(path)])


def test_the_command_writes_the_sum(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for seed in (1, 2):
        paths.append(str(tmp_path / f"{seed}.json"))
        write_figures(paths[-1], sitting(seed).as_json())
    out = tmp_path / "all.json"
    assert run_chaos(ChaosOptions(merge=tuple(paths), json=str(out))) == 0
    assert "seed 2, plan plan2: 2 killed in 40 s" in capsys.readouterr().out
    assert json.loads(out.read_text())["killed"] == 4


def test_the_code_has_a_digest() -> None:
    assert digest_of_code() == digest_of_code() != ""
