"""Draws a timeline: as a picture (SVG, written by hand: no library is worth four rectangles) and as
lines of text.

Sans-IO: a timeline in, text out.
"""

from html import escape
from types import MappingProxyType

from ...engine.step_recorder import Span
from .timeline import Lane, SpanRecord, StepFigures, Timeline, duration_ns

# Name of a span, its letter in text, and its colour (of a set that colour-blind people can tell
# apart).
LOOKS = MappingProxyType(
    {
        Span.SCHEDULE: ("schedule", "s", "#4477aa"),
        Span.ENCODE: ("encode", "e", "#66ccee"),
        Span.SUBMIT: ("ring write", "r", "#228833"),
        Span.WAIT: ("wait", "·", "#eeeeee"),
        Span.DECODE: ("decode", "d", "#66ccee"),
        Span.APPLY: ("apply", "a", "#ccbb44"),
        Span.DELIVER: ("deliver", "D", "#ee6677"),
        Span.READ: ("wait", "·", "#eeeeee"),
        Span.UNPACK: ("decode", "u", "#66ccee"),
        Span.COMPUTE: ("forward", "F", "#999999"),
        Span.SAMPLE: ("sample", "S", "#aa3377"),
        Span.ANSWER: ("answer", "w", "#228833"),
    }
)
TEXT_COLUMNS = 100
# Pixels.
_WIDTH, _LANE, _LEFT, _TOP, _LEGEND = 1200, 44, 70, 34, 26
_TICKS = 8


def picture(timeline: Timeline, title: str) -> str:
    """An SVG document."""
    begin_ns, end_ns = _bounds(timeline)
    scale = (_WIDTH - _LEFT - 10) / max(1, end_ns - begin_ns)
    height = _TOP + _LANE * len(timeline.lanes) + 30 + _LEGEND
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for number, lane in enumerate(timeline.lanes):
        top = _TOP + number * _LANE
        lines.append(f'<text x="6" y="{top + 22}">{escape(lane.name)}</text>')
        lines += [_box(each, top, begin_ns, scale) for each in lane.spans]
        lines += _numbers(lane, top, begin_ns, scale)
    lines += _axis(_TOP + _LANE * len(timeline.lanes), end_ns - begin_ns, scale)
    lines += _legend(height - 8, timeline)
    return "\n".join([*lines, "</svg>", ""])


def _bounds(timeline: Timeline) -> tuple[int, int]:
    """Bounds from the first work to the last; a long wait before it would fill the picture."""
    spans = [
        each for lane in timeline.lanes for each in lane.spans if LOOKS[each.span][0] != "wait"
    ]
    return min(each.begin_ns for each in spans), max(each.end_ns for each in spans)


def _box(record: SpanRecord, top: int, begin_ns: int, scale: float) -> str:
    name, _, colour = LOOKS[record.span]
    x = _LEFT + max(0.0, (record.begin_ns - begin_ns) * scale)
    right = _LEFT + (record.end_ns - begin_ns) * scale
    tip = f"step {record.step}: {name} {duration_ns(record) / 1e3:.0f} µs"
    return (
        f'<rect x="{x:.2f}" y="{top}" width="{max(0.3, right - x):.2f}" height="{_LANE - 12}"'
        f' fill="{colour}"><title>{escape(tip)}</title></rect>'
    )


def _numbers(lane: Lane, top: int, begin_ns: int, scale: float) -> list[str]:
    """The step's number on what is wide enough to carry it."""
    found = []
    for each in lane.spans:
        if each.span is Span.COMPUTE and duration_ns(each) * scale > 30:
            x = _LEFT + ((each.begin_ns + each.end_ns) / 2 - begin_ns) * scale
            found.append(
                f'<text x="{x:.1f}" y="{top + 21}" fill="white" text-anchor="middle">'
                f"{each.step}</text>"
            )
    return found


def _axis(top: int, length_ns: int, scale: float) -> list[str]:
    lines = []
    for tick in range(_TICKS + 1):
        at_ns = length_ns * tick / _TICKS
        x = _LEFT + at_ns * scale
        lines.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + 5}" stroke="black"/>')
        lines.append(
            f'<text x="{x:.1f}" y="{top + 18}" text-anchor="middle">{at_ns / 1e6:.2f} ms</text>'
        )
    return lines


def _legend(y: int, timeline: Timeline) -> list[str]:
    there = {each.span for lane in timeline.lanes for each in lane.spans}
    seen: dict[str, str] = {LOOKS[s][0]: LOOKS[s][2] for s in LOOKS if s in there}
    lines, x = [], _LEFT
    for name, colour in seen.items():
        lines.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 16}" y="{y}">{escape(name)}</text>')
        x += 100
    return lines


# ---- text


def text_lanes(timeline: Timeline, columns: int = TEXT_COLUMNS) -> list[str]:
    """A line for each lane: in each column the letter of what took most of that time."""
    begin_ns, end_ns = _bounds(timeline)
    cell_ns = max(1.0, (end_ns - begin_ns) / columns)
    lines = []
    for lane in timeline.lanes:
        cells = [_cell(lane, begin_ns + i * cell_ns, cell_ns) for i in range(columns)]
        lines.append(f"{lane.name:>7} |{''.join(cells)}|")
    there = {each.span for lane in timeline.lanes for each in lane.spans}
    letters = {LOOKS[s][1]: LOOKS[s][0] for s in LOOKS if s in there}
    words = "  ".join(f"{letter} {name}" for letter, name in letters.items())
    lines.append(f"{'':>9}{(end_ns - begin_ns) / 1e6:.2f} ms, a column {cell_ns / 1e3:.0f} µs")
    return [*lines, f"{'':>9}{words}"]


def _cell(lane: Lane, begin_ns: float, length_ns: float) -> str:
    best, most = " ", 0.0
    for each in lane.spans:
        covered = min(each.end_ns, begin_ns + length_ns) - max(each.begin_ns, begin_ns)
        # The inner one of spans within each other counts: it comes later.
        if covered > 0 and covered >= most:
            best, most = LOOKS[each.span][1], covered
    return best


def sentences(figures: StepFigures) -> list[str]:
    """Sentences on the lanes."""
    hidden = figures.engine_hidden_share * 100
    return [
        f"a step every {figures.period_us:.0f} µs, of which the worker computes"
        f" {figures.compute_share * 100:.0f} % and idles {figures.gap_us:.0f} µs between two steps",
        f"the engine works {figures.engine_work_us:.0f} µs a step, {hidden:.0f} % of it while the"
        " worker computes",
    ]
