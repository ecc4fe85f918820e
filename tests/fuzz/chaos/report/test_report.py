"""Report and picture: what interrupted whom, rows, strips, marks; the picture is well-formed."""

import re
from collections import Counter
from xml.etree import ElementTree

import pytest

from triolet.fuzz.chaos.fault_plan import FaultKind, Transport
from triolet.fuzz.chaos.history import Ending, StreamHistory
from triolet.fuzz.chaos.report.picture import picture
from triolet.fuzz.chaos.report.report import FaultOutcome, Report
from triolet.fuzz.chaos.report.timeline import (
    FaultMark,
    StreamLine,
    Timeline,
)

BEGAN_S = 1000.0


def history(name: str, *times_s: float, ending: Ending = Ending.FINISHED) -> StreamHistory:
    """A stream that begins at the first of these times, saw something at each, and ended."""
    made = StreamHistory(name, 0, Transport.SSE, BEGAN_S + times_s[0])
    for at_s in times_s[1:]:
        made.see(
            {"type": "response.in_progress", "sequence_number": made.last_number + 1},
            BEGAN_S + at_s,
        )
    made.ending, made.ended_s = ending, BEGAN_S + times_s[-1]
    return made


def outcome(kind: FaultKind, place: str, at_s: float, until_s: float) -> FaultOutcome:
    made = FaultOutcome(0, kind, place, proof="seen")
    made.begin(BEGAN_S + at_s)
    made.until_s = BEGAN_S + until_s
    return made


def line(
    begin_s: float, end_s: float, *pauses: tuple[float, float], group: str = "sse"
) -> StreamLine:
    return StreamLine(
        name=f"stream at {begin_s}",
        group=group,
        begin_s=begin_s,
        end_s=end_s,
        ending=Ending.FINISHED,
        pauses=pauses,
    )


def mark(at_s: float, label: str = "kill engine e0") -> FaultMark:
    return FaultMark(label=label, family="kill", at_s=at_s, until_s=at_s + 1)


def test_a_stream_is_interrupted_by_what_happened_in_its_silence() -> None:
    fault = outcome(FaultKind.KILL_ENGINE, "engine 1", 2.1, 3.0)
    fault.note_interrupted(
        [
            history("met", 1.9, 2.0, 3.5, 3.6),
            history("fell silent while it lasted", 2.9, 3.6),
            history("spoke all the time", 2.0, 2.1, 2.2, 2.3),
            history("was silent before", 0.5, 2.0, 2.1),
        ]
    )
    assert fault.gaps_s == pytest.approx([1.5, 0.7])


def test_a_silence_before_a_loss_is_one_too() -> None:
    lost = StreamHistory("a stream", 0, Transport.SSE, 1.0)
    lost.lose("reset", 3.0)
    left = StreamHistory("a stream", 0, Transport.SSE, 1.0)
    left.leave(3.0)
    assert (lost.pauses, left.pauses) == ([(1.0, 3.0)], [])


def test_the_report_counts_what_each_kind_interrupted() -> None:
    report = Report(1, "d", ["again"], Counter({FaultKind.KILL_ENGINE: 2}), began_s=BEGAN_S)
    report.outcomes.append(outcome(FaultKind.KILL_ENGINE, "engine 1", 2.0, 2.0))
    report.draw_streams([history("met", 1.9, 3.9)])
    report.draw_streams([history("of the next segment, over the same time", 1.9, 2.9)])
    (row,) = report.rows()
    counts = {name: row[name] for name in ("planned", "done", "proven", "interrupted")}
    assert counts == {"planned": 2, "done": 1, "proven": 1, "interrupted": 1}
    assert row["gaps_s"] == [2.0, 2.0, 2.0]
    (made,) = report.as_json()["made"]
    assert (made["at_s"], made["gaps_s"]) == (2.0, [2.0])
    assert len(report.timeline.lines) == 2


def positions(text: str, name: str) -> list[tuple[float, float]]:
    """Of the texts that hold this."""
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', text)
    return [(float(x), float(y)) for x, y, each in found if name in each]


def test_the_picture_is_well_formed_whatever_names_hold() -> None:
    lines = [line(0.1, 4, (1, 2)), line(3, 5, group="<other>")]
    drawn = picture(Timeline(lines, [mark(1.0, "kill <&> e0")]), "a & b", ["good", "!bad"])
    root = ElementTree.fromstring(drawn)
    assert root.tag.endswith("svg")
    assert "prefers-color-scheme:dark" in drawn
    assert 'class="bad">bad<' in drawn
    assert drawn.count('class="pause"') == 1 + 1, "one in the legend"
