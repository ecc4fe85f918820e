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

# Pixels. Names of marks are on so many lines above a strip, in turn.
WIDTH, LEFT, RIGHT = 1280, 92, 18
PLOT = WIDTH - LEFT - RIGHT
TITLE, OVERVIEW, LEVEL, LEVELS, CHARACTER = 114, 120, 13, 6, 5.2
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
    said = []
    for number, each in enumerate(sentences):
        name = "bad" if each.startswith("!") else "faint"
        said.append(_text(LEFT, 49 + 16 * number, each.lstrip("!"), 12, name=name))
    size = f'width="{WIDTH}" height="{top + 12}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 12}" {size}>'
    style = f"<style>{_STYLE}{_family_style()}</style>"
    paper = f'<rect class="paper" {size}/>'
    shown = [_text(LEFT, 30, title, 18), *said, *_legend(), *body]
    return "\n".join([head, style, paper, *shown, "</svg>", ""])


def _family_style() -> str:
    def rules(index: int) -> str:
        return "".join(
            f".f-{name}{{fill:{looks[index]}}}.s-{name}{{stroke:{looks[index]}}}"
            for name, looks in FAMILIES.items()
        )

    return f"{rules(0)}\n@media (prefers-color-scheme:dark){{{rules(1)}}}\n"


# ---- elements


def _text(x: float, y: float, text: str, size: float, *, name: str = "", anchor: str = "") -> str:
    extra = f' class="{name}"' if name else ""
    extra += f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}"{extra}>{escape(text)}</text>'


def _line(name: str, start: tuple[float, float], end: tuple[float, float], more: str = "") -> str:
    places = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line class="{name}" {places}{more}/>'


def _band(name: str, start: tuple[float, float], size: tuple[float, float], more: str = "") -> str:
    place = f'x="{start[0]:.1f}" y="{start[1]:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}"'
    return f'<rect class="{name}" {place} rx="4"{more}/>'


def _triangle(name: str, x: float, y: float, size: float) -> str:
    """Upside down where its size is negative."""
    points = f"{x - size:.1f},{y + size:.1f} {x + size:.1f},{y + size:.1f} {x:.1f},{y - size:.1f}"
    return f'<polygon class="{name}" points="{points}"/>'


def _back(x: float, y: float) -> str:
    return _triangle("back", x, y, 3)


def _mark(family: str, x: float, y: float) -> str:
    return _triangle(f"f-{family}", x, y, -4.5)


def _cross(x: float, y: float) -> str:
    one = f"M{x - 3:.1f} {y - 3:.1f}L{x + 3:.1f} {y + 3:.1f}"
    other = f"M{x - 3:.1f} {y + 3:.1f}L{x + 3:.1f} {y - 3:.1f}"
    return f'<path class="cross" d="{one}{other}"/>'


def _open(x: float, y: float) -> str:
    return f'<circle class="open" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>'


def _legend() -> Iterator[str]:
    """On the right of the title, two columns."""
    x = WIDTH - RIGHT - 430
    rows = [
        (_line("line sse", (x, 20), (x + 26, 20)), "a stream over SSE"),
        (_line("line socket", (x, 36), (x + 26, 36)), "a stream on a WebSocket"),
        (_line("pause", (x, 52), (x + 26, 52)), "nothing comes"),
        (_back(x + 13, 68), "its client comes back by number"),
        (_open(x + 13, 84), "cancelled, or left by its client"),
        (_cross(x + 13, 100), "ended by an error, or lost"),
    ]
    for number, (element, label) in enumerate(rows):
        yield element + _text(x + 36, 24 + 16 * number, label, 11)
    x = WIDTH - RIGHT - 200
    for number, (name, (_, _, label)) in enumerate(FAMILIES.items()):
        yield _mark(name, x + 6, 20 + 16 * number) + _text(x + 20, 24 + 16 * number, label, 11)


# ---- the whole at a glance


def _overview(timeline: Timeline, top: int) -> Iterator[str]:
    """Each silence that met a fault: when, and how long."""
    scale, bottom = PLOT / max(timeline.end_s, 1.0), top + OVERVIEW
    yield _band("band", (LEFT, top), (PLOT, OVERVIEW))
    yield _text(LEFT - 8, top + 10, "silences", 11, name="faint", anchor="end")
    for seconds in SCALE_S:
        y = bottom - _height(seconds)
        yield _line("grid", (LEFT, y), (LEFT + PLOT, y))
        yield _text(LEFT + PLOT - 4, y - 2, f"{seconds:g} s", 9, name="faint", anchor="end")
    for mark in timeline.marks:
        x = LEFT + mark.at_s * scale
        yield _line(f"s-{mark.family}", (x, bottom - 7), (x, bottom), ' stroke-opacity=".35"')
    dots: set[tuple[int, int]] = set()
    for line in timeline.lines:
        for begin_s, end_s in line.pauses:
            x, y = LEFT + begin_s * scale, bottom - _height(end_s - begin_s)
            if (int(x), int(y)) not in dots:  # else one of many at one place, in a long campaign
                dots.add((int(x), int(y)))
                tip = f"<title>{escape(line.name)}: {end_s - begin_s:.2f} s</title>"
                place = f'fill-opacity=".55" cx="{x:.1f}" cy="{y:.1f}" r="2.2"'
                yield f'<circle class="back" {place}>{tip}</circle>'
    yield from _axis(0.0, timeline.end_s, bottom)


def _height(seconds: float) -> float:
    """On the logarithmic scale."""
    least, most = SCALE_S[0], SCALE_S[-1]
    part = math.log(min(max(seconds, least), most) / least) / math.log(most / least)
    return 12 + (OVERVIEW - 22) * part


def _axis(begin_s: float, end_s: float, y: float) -> Iterator[str]:
    length_s = end_s - begin_s
    step_s = next((s for s in TICKS_S if length_s / s <= TICKS_MAX), TICKS_S[-1])
    for at_s in range(math.ceil(begin_s / step_s) * step_s, math.floor(end_s) + 1, step_s):
        x = LEFT + (at_s - begin_s) * PLOT / max(length_s, 1.0)
        clock = f"{at_s // 60}:{at_s % 60:02}"
        yield _text(x, y + 13, clock, 9.5, name="faint", anchor="middle")


# ---- one strip


def _strip(strip: Strip, top: int) -> tuple[list[str], int]:
    """Its elements, and its height."""
    head = LEVEL * min(LEVELS, len(strip.marks)) + 8
    lines, y = [], top + head
    row_height = ROW if sum(map(len, strip.groups.values())) <= ROWS_WIDE_MAX else ROW_NARROW
    for group, rows in strip.groups.items():
        if rows:
            name = _GROUPS.get(group, group)
            lines.append(_text(LEFT - 8, y + 9, name, 11, name="faint", anchor="end"))
        for row in rows:
            y += row_height
            for each in row:
                lines += _stream(each, strip, y)
        y += GROUP_SPACE
    bottom = y + 4
    height = bottom - top - head + 2
    under = [_band("band", (LEFT, top + head - 2), (PLOT, height))]
    for mark in strip.open_marks:  # a shade from a fault until all was well again
        x, width = _x(mark.at_s, strip), _x(mark.until_s, strip) - _x(mark.at_s, strip)
        name, more = f"f-{mark.family}", ' fill-opacity=".07"'
        under.append(_band(name, (x, top + head - 2), (width, height), more))
    for number, mark in enumerate(strip.marks):
        x, name_y = _x(mark.at_s, strip), top + head - 10 - LEVEL * (number % LEVELS)
        under.append(
            _line(f"s-{mark.family}", (x, name_y + 4), (x, bottom), ' stroke-opacity=".55"')
        )
        lines += _name(mark, x, name_y)
    axis = _axis(strip.begin_s, strip.end_s, bottom)
    return [*under, *lines, *axis], bottom + AXIS - top


def _x(at_s: float, strip: Strip) -> float:
    within_s = min(max(at_s, strip.begin_s), strip.end_s) - strip.begin_s
    return LEFT + within_s * PLOT / STRIP_S


def _name(mark: FaultMark, x: float, y: float) -> Iterator[str]:
    """Its mark, and its name, on the side where there is room."""
    yield _mark(mark.family, x, y)
    label = mark.label if mark.is_proven else f"{mark.label} (void)"
    is_far = x + 10 + CHARACTER * len(label) > WIDTH
    anchor = "end" if is_far else ""
    yield _text(x + (-6 if is_far else 6), y + 3, label, 9.5, name="label", anchor=anchor)


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
            yield _line("pause", (x, y), (end_x, y))
    for at_s in line.returns:
        if strip.begin_s <= at_s < strip.end_s:
            yield _back(_x(at_s, strip), y)
    if strip.begin_s <= line.end_s < strip.end_s and line.ending != "finished":
        yield (_open if line.ending in CLEAN_ENDS else _cross)(_x(line.end_s, strip), y)
