"""Picture of a campaign: streams as lines over time, deaths as marks with names, gaps visible.

Sans-IO: a timeline in, an SVG document out, written by hand as nothing in it is worth a library. It
is one file without scripts or fonts of its own, and has colours for light and dark.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape

from .timeline import (
    CLEAN_ENDS,
    STRIP_S,
    STRIPS_MAX,
    FaultMark,
    StreamLine,
    Strip,
    Timeline,
    strips_of,
)

# Pixels.
WIDTH, LEFT, RIGHT = 1280, 92, 18
PLOT = WIDTH - LEFT - RIGHT
TITLE, OVERVIEW, LEVEL, CHARACTER = 114, 120, 13, 5.2
# Of a row; where there are many, of each.
ROW, ROW_NARROW, ROWS_WIDE_MAX = 7, 5, 24
STRIP_SPACE, GROUP_SPACE, AXIS = 34, 8, 18
# Of the overview: the logarithmic scale of silences.
SCALE_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
# Of the axes: the first of these that gives no more ticks than this.
TICKS_S, TICKS_MAX = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600), 16
# {family of faults: its colour in light and in dark, its name in the legend}
FAMILIES = {
    "kill": ("#c62828", "#ff6b6b", "death of a process"),
    "stop": ("#6a4fb3", "#b39ddb", "stop"),
    "want": ("#a86400", "#ffb74d", "want of memory or descriptors"),
    "network": ("#00796b", "#4db6ac", "network"),
    "client": ("#78909c", "#90a4ae", "fault of a client"),
}
_STYLE = """
text{font-family:ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2933}
.paper{fill:#ffffff}.band{fill:#f4f6f8}.faint{fill:#6b7785}.bad{fill:#c62828}
.grid{stroke:#dfe4ea;stroke-width:1}.line{stroke-width:2.8;stroke-linecap:round;fill:none}
.sse{stroke:#2f6fde}.socket{stroke:#0e9aa7}.other{stroke:#5b6ee1}
.pause{stroke:#f08c00;stroke-width:1.6;stroke-dasharray:1.5 2.5}
.label{paint-order:stroke;stroke:#ffffff;stroke-width:3px}
.back{fill:#f08c00}.cross{stroke:#c62828;stroke-width:1.8}
.open{fill:#ffffff;stroke:#6b7785;stroke-width:1.2}
@media (prefers-color-scheme:dark){
text{fill:#e4e9ef}.paper{fill:#11161c}.band{fill:#182028}.faint{fill:#93a1b0}.bad{fill:#ff6b6b}
.grid{stroke:#2a3541}.sse{stroke:#6ea8fe}.socket{stroke:#4dd0c4}.other{stroke:#9fa8ff}
.pause{stroke:#ffb020}.back{fill:#ffb020}.cross{stroke:#ff6b6b}
.label{stroke:#11161c}.open{fill:#11161c;stroke:#93a1b0}
}
"""
_GROUPS = {"sse": "SSE", "socket": "WebSocket"}


def picture(timeline: Timeline, title: str, sentences: Sequence[str]) -> str:
    """An SVG document. `sentences` stand below the title; one that begins with ! is bad news."""
    strips = strips_of(timeline)
    body, top = [*_overview(timeline, TITLE)], TITLE + OVERVIEW + STRIP_SPACE
    for strip in strips:
        lines, height = _strip(strip, top)
        body += lines
        top += height + STRIP_SPACE
    whole = int(timeline.end_s / STRIP_S) + 1
    if whole > len(strips):
        note = f"{STRIPS_MAX} of {whole} half-minutes: those in which clients waited longest"
        body.append(_text(LEFT, top - STRIP_SPACE + 24, note, 11, name="faint"))
        top += 16
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 12}"'
            f' width="{WIDTH}" height="{top + 12}">',
            f"<style>{_STYLE}{_family_style()}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{top + 12}"/>',
            _text(LEFT, 30, title, 18, weight=600),
            *(
                _text(LEFT, 49 + 16 * number, each.lstrip("!"), 12, name=_class_of(each))
                for number, each in enumerate(sentences)
            ),
            *_legend(),
            *body,
            "</svg>",
            "",
        ]
    )


def _class_of(sentence: str) -> str:
    return "bad" if sentence.startswith("!") else "faint"


def _family_style() -> str:
    def rules(index: int) -> str:
        return "".join(
            f".f-{name}{{fill:{looks[index]}}}.s-{name}{{stroke:{looks[index]}}}"
            for name, looks in FAMILIES.items()
        )

    return f"{rules(0)}\n@media (prefers-color-scheme:dark){{{rules(1)}}}\n"


def _text(
    x: float, y: float, text: str, size: float, *, name: str = "", anchor: str = "", weight: int = 0
) -> str:
    extra = f' class="{name}"' if name else ""
    extra += f' text-anchor="{anchor}"' if anchor else ""
    extra += f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}"{extra}>{escape(text)}</text>'


def _legend() -> Iterator[str]:
    """On the right of the title, two columns."""
    x, y = WIDTH - RIGHT - 430, 20
    for name, label in (("sse", "a stream over SSE"), ("socket", "a stream on a WebSocket")):
        yield f'<line class="line {name}" x1="{x}" x2="{x + 26}" y1="{y}" y2="{y}"/>'
        yield _text(x + 36, y + 4, label, 11)
        y += 16
    yield f'<line class="pause" x1="{x}" x2="{x + 26}" y1="{y}" y2="{y}"/>'
    yield _text(x + 36, y + 4, "nothing comes", 11)
    yield _back(x + 13, y + 16)
    yield _text(x + 36, y + 20, "its client comes back by number", 11)
    yield f'<circle class="open" cx="{x + 13}" cy="{y + 32}" r="2.6"/>'
    yield _text(x + 36, y + 36, "cancelled, or left by its client", 11)
    x, y = WIDTH - RIGHT - 200, 20
    yield _cross(x + 6, y + 80)
    yield _text(x + 20, y + 84, "ended by an error, or lost", 11)
    for name, (_, _, label) in FAMILIES.items():
        yield _mark(name, x + 6, y)
        yield _text(x + 20, y + 4, label, 11)
        y += 16


# ---- the whole at a glance


def _overview(timeline: Timeline, top: int) -> Iterator[str]:
    """Each silence that met a fault: when, and how long."""
    scale, bottom = PLOT / max(timeline.end_s, 1.0), top + OVERVIEW
    yield f'<rect class="band" x="{LEFT}" y="{top}" width="{PLOT}" height="{OVERVIEW}" rx="4"/>'
    yield _text(LEFT - 8, top + 10, "silences", 11, name="faint", anchor="end")
    for seconds in SCALE_S:
        y = bottom - _height(seconds)
        yield f'<line class="grid" x1="{LEFT}" x2="{LEFT + PLOT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT + PLOT - 4, y - 2, f"{seconds:g} s", 9, name="faint", anchor="end")
    for mark in timeline.marks:
        x = LEFT + mark.at_s * scale
        yield (
            f'<line class="s-{mark.family}" stroke-opacity=".35" x1="{x:.1f}" x2="{x:.1f}"'
            f' y1="{bottom - 7}" y2="{bottom}"/>'
        )
    dots: set[tuple[int, int]] = set()
    for line in timeline.lines:
        for begin_s, end_s in line.pauses:
            x, y = LEFT + begin_s * scale, bottom - _height(end_s - begin_s)
            if (int(x), int(y)) in dots:  # one of many at one place, as in a long campaign
                continue
            dots.add((int(x), int(y)))
            yield (
                f'<circle class="back" fill-opacity=".55" cx="{x:.1f}" cy="{y:.1f}" r="2.2">'
                f"<title>{escape(line.name)}: {end_s - begin_s:.2f} s</title></circle>"
            )
    yield from _axis(0.0, timeline.end_s, bottom)


def _height(seconds: float) -> float:
    """On the logarithmic scale."""
    return 12 + (OVERVIEW - 22) * _log_part(min(max(seconds, SCALE_S[0]), SCALE_S[-1]))


def _log_part(seconds: float) -> float:
    return math.log(seconds / SCALE_S[0]) / math.log(SCALE_S[-1] / SCALE_S[0])


def _clock(at_s: float) -> str:
    minutes, seconds = divmod(round(at_s), 60)
    return f"{minutes}:{seconds:02}"


def _axis(begin_s: float, end_s: float, y: float) -> Iterator[str]:
    length_s = end_s - begin_s
    step_s = next((s for s in TICKS_S if length_s / s <= TICKS_MAX), TICKS_S[-1])
    tick = math.ceil(begin_s / step_s)
    while tick * step_s <= end_s:
        x = LEFT + (tick * step_s - begin_s) * PLOT / max(length_s, 1.0)
        yield _text(x, y + 13, _clock(tick * step_s), 9.5, name="faint", anchor="middle")
        tick += 1


# ---- one strip


def _strip(strip: Strip, top: int) -> tuple[list[str], int]:
    """Its elements, and its height."""
    levels = _levels(strip)
    head = LEVEL * (max(levels, default=0) + 1) + 8
    lines, y = [], top + head
    row_height = ROW if sum(map(len, strip.groups.values())) <= ROWS_WIDE_MAX else ROW_NARROW
    for group, rows in strip.groups.items():
        if rows:
            lines.append(
                _text(LEFT - 8, y + 9, _GROUPS.get(group, group), 11, name="faint", anchor="end")
            )
        for row in rows:
            y += row_height
            for each in row:
                lines += _stream(each, strip, y)
        y += GROUP_SPACE
    bottom = y + 4
    back = f'<rect class="band" x="{LEFT}" y="{top + head - 2}" width="{PLOT}"'
    back += f' height="{bottom - top - head + 2}" rx="4"/>'
    marks = [_shade(mark, strip, (top + head, bottom)) for mark in strip.open_marks]
    names: list[str] = []
    for mark, level in zip(strip.marks, levels, strict=True):
        name_y = top + head - 10 - LEVEL * level
        x = _x(mark.at_s, strip)
        marks.append(
            f'<line class="s-{mark.family}" stroke-opacity=".55" x1="{x:.1f}" x2="{x:.1f}"'
            f' y1="{name_y + 4}" y2="{bottom}"/>'
        )
        names += _name(mark, x, name_y)
    axis = list(_axis(strip.begin_s, strip.end_s, bottom))
    return [back, *marks, *names, *lines, *axis], bottom + AXIS - top


def _x(at_s: float, strip: Strip) -> float:
    within_s = min(max(at_s, strip.begin_s), strip.end_s) - strip.begin_s
    return LEFT + within_s * PLOT / STRIP_S


def _levels(strip: Strip) -> list[int]:
    """In which line of names each mark has its own, so that none lies upon another."""
    taken: list[list[tuple[float, float]]] = []
    found = []
    for mark in strip.marks:
        x, width = _x(mark.at_s, strip), 14 + CHARACTER * len(mark.label)
        begin, end = (x - width, x + 6) if _is_far(x, mark) else (x - 6, x + width)
        level = 0
        while level < len(taken) and any(a < end and begin < b for a, b in taken[level]):
            level += 1
        taken[level:] = taken[level:] or [[]]
        taken[level].append((begin, end))
        found.append(level)
    return found


def _is_far(x: float, mark: FaultMark) -> bool:
    """Whether its name would go beyond the edge."""
    return x + 10 + CHARACTER * len(mark.label) > WIDTH


def _shade(mark: FaultMark, strip: Strip, edges: tuple[int, int]) -> str:
    """From a fault until all was well again."""
    head, bottom = edges
    x, until_x = _x(mark.at_s, strip), _x(mark.until_s, strip)
    return (
        f'<rect class="f-{mark.family}" fill-opacity=".07" x="{x:.1f}" y="{head - 2}"'
        f' width="{until_x - x:.1f}" height="{bottom - head + 2}"/>'
    )


def _name(mark: FaultMark, x: float, y: float) -> Iterator[str]:
    """Its mark, and its name above the lines of others."""
    yield _mark(mark.family, x, y)
    label = mark.label if mark.is_proven else f"{mark.label} (void)"
    far = _is_far(x, mark)
    edge = x + (-6 if far else 6)
    yield _text(edge, y + 3, label, 9.5, name="label", anchor="end" if far else "")


def _mark(family: str, x: float, y: float) -> str:
    if family == "kill":
        points = f"{x - 4.5:.1f},{y - 4:.1f} {x + 4.5:.1f},{y - 4:.1f} {x:.1f},{y + 4.5:.1f}"
        return f'<polygon class="f-kill" points="{points}"/>'
    if family == "client":
        return f'<circle class="f-client" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    return f'<rect class="f-{family}" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"/>'


def _stream(line: StreamLine, strip: Strip, y: float) -> Iterator[str]:
    """Its line, broken where nothing came; its end, if it is not a good one."""
    group = line.group if line.group in _GROUPS else "other"
    tip = f"{line.name}: {line.ending}, {line.end_s - line.begin_s:.1f} s"
    path, at_s = "", line.begin_s
    for begin_s, end_s in (*line.pauses, (line.end_s, line.end_s)):
        if at_s < strip.end_s and begin_s > strip.begin_s:
            path += f"M{_x(at_s, strip):.1f} {y}H{max(_x(begin_s, strip), _x(at_s, strip)):.1f}"
        at_s = end_s
    yield f'<path class="line {group}" d="{path}"><title>{escape(tip)}</title></path>'
    for begin_s, end_s in line.pauses:
        x, end_x = _x(begin_s, strip), _x(end_s, strip)
        if end_x > x:
            yield f'<line class="pause" x1="{x:.1f}" x2="{end_x:.1f}" y1="{y}" y2="{y}"/>'
    for at_s in line.returns:
        if strip.begin_s <= at_s < strip.end_s:
            yield _back(_x(at_s, strip), y)
    if strip.begin_s <= line.end_s < strip.end_s and line.ending != "finished":
        x = _x(line.end_s, strip)
        if line.ending in CLEAN_ENDS:
            yield f'<circle class="open" cx="{x:.1f}" cy="{y}" r="2.6"/>'
        else:
            yield _cross(x, y)


def _back(x: float, y: float) -> str:
    points = f"{x - 3:.1f},{y + 3:.1f} {x + 3:.1f},{y + 3:.1f} {x:.1f},{y - 3:.1f}"
    return f'<polygon class="back" points="{points}"/>'


def _cross(x: float, y: float) -> str:
    near, far = f"{x - 3:.1f} {y - 3:.1f}", f"{x + 3:.1f} {y + 3:.1f}"
    other = f"M{x - 3:.1f} {y + 3:.1f}L{x + 3:.1f} {y - 3:.1f}"
    return f'<path class="cross" d="M{near}L{far}{other}"/>'
