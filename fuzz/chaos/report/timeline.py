"""Timeline of a campaign: streams with their pauses, and faults, laid out in rows and strips.

Sans-IO: what was seen in, positions out; `picture` draws them. A row is a place for one stream
after another; a strip is half a minute of all rows. Of a campaign with too many strips those are
shown in which clients waited longest.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import attrs

from ..history import Ending, StreamHistory

STRIP_S = 30.0
# More is no picture, but a wallpaper.
STRIPS_MAX = 24
# What is kept to be drawn; later streams are not, which leaves 100 MB to a campaign of any length.
LINES_MAX = 200_000
# Between two streams of one row.
ROW_SPACE_S = 0.1
CLEAN_ENDS = frozenset({Ending.FINISHED, Ending.CANCELLED, Ending.LEFT})

Span = tuple[float, float]


@attrs.frozen(kw_only=True)
class StreamLine:
    """One stream: when it began and ended, when nothing came, when its client came back.

    Times are seconds since the campaign began. `group` is what it is drawn with.
    """

    name: str
    group: str
    begin_s: float
    end_s: float
    ending: Ending
    pauses: Sequence[Span] = ()
    returns: Sequence[float] = ()

    @classmethod
    def of(cls, history: StreamHistory, began_s: float) -> "StreamLine":
        """What a client saw of it, in a campaign that began then."""
        return cls(
            name=history.name,
            group=str(history.transport),
            begin_s=history.started_s - began_s,
            end_s=history.ended_s - began_s,
            ending=history.ending or Ending.HANGING,
            pauses=[(begin - began_s, end - began_s) for begin, end in history.pauses],
            returns=[at_s - began_s for at_s in history.returned_s],
        )


@attrs.frozen(kw_only=True)
class FaultMark:
    """One fault: when it was made, and when all was well again."""

    label: str
    family: str
    at_s: float
    until_s: float
    is_proven: bool = True


@attrs.define
class Timeline:
    """All of it, as it is seen."""

    lines: list[StreamLine] = attrs.field(factory=list)
    marks: list[FaultMark] = attrs.field(factory=list)

    def add(self, lines: Iterable[StreamLine]) -> None:
        """As many as are kept."""
        self.lines += list(lines)[: LINES_MAX - len(self.lines)]

    @property
    def end_s(self) -> float:
        """The last that was seen."""
        ends = [*(line.end_s for line in self.lines), *(mark.until_s for mark in self.marks)]
        return max(ends, default=0.0)


@attrs.frozen(kw_only=True)
class Strip:
    """A part of the timeline: {group: its rows}, each with the streams that it shows."""

    begin_s: float
    end_s: float
    groups: dict[str, list[list[StreamLine]]]
    # Made in it; and not over before it.
    marks: list[FaultMark]
    open_marks: list[FaultMark]


def strips_of(timeline: Timeline) -> list[Strip]:
    """The strips that are shown, in order."""
    rows = rows_of(timeline.lines)
    return [_strip(number, rows, timeline.marks) for number in shown_strips(timeline)]


def shown_strips(timeline: Timeline) -> list[int]:
    """The numbers of those in which clients waited longest."""
    waits_s = [0.0] * max(1, math.ceil(timeline.end_s / STRIP_S))
    for line in timeline.lines:
        for begin_s, end_s in line.pauses:
            waits_s[int(begin_s / STRIP_S)] += end_s - begin_s
    longest = sorted(range(len(waits_s)), key=lambda number: (-waits_s[number], number))
    return sorted(longest[:STRIPS_MAX])


def rows_of(lines: Sequence[StreamLine]) -> dict[str, list[list[StreamLine]]]:
    """{group: rows}: each stream in the first row of its group that is free when it begins."""
    groups: dict[str, list[list[StreamLine]]] = {}
    for line in sorted(lines, key=lambda each: (each.begin_s, each.name)):
        rows = groups.setdefault(line.group, [])
        free = (row for row in rows if row[-1].end_s + ROW_SPACE_S <= line.begin_s)
        row = next(free, None)
        if row is None:
            rows.append([line])
        else:
            row.append(line)
    return groups


def _strip(
    number: int, rows: dict[str, list[list[StreamLine]]], marks: Sequence[FaultMark]
) -> Strip:
    begin_s, end_s = number * STRIP_S, (number + 1) * STRIP_S
    groups = {}
    for group, all_rows in rows.items():
        cut = [_within(row, begin_s, end_s) for row in all_rows]
        groups[group] = [row for row in cut if row]
    met = [mark for mark in marks if begin_s <= mark.at_s < end_s]
    shades = [mark for mark in marks if mark.at_s < end_s and begin_s < mark.until_s]
    return Strip(begin_s=begin_s, end_s=end_s, groups=groups, marks=met, open_marks=shades)


def _within(row: Sequence[StreamLine], begin_s: float, end_s: float) -> list[StreamLine]:
    """Of a row, which is in order, what this time shows."""
    first = bisect_left(row, begin_s, key=lambda line: line.end_s)
    last = bisect_left(row, end_s, key=lambda line: line.begin_s)
    return list(row[first:last])
