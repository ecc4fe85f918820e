"""Records of engine and worker joined: medians, what hides, and what is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.bench.steps.timeline import (
    SpanRecord,
    TimelineEmpty,
    duration_ns,
    join_records,
    overlap_ns,
)
from triolet.engine.step_recorder import Span


def span(process: str, kind: Span, step: int, begin_us: int, end_us: int) -> SpanRecord:
    return SpanRecord(process, kind, step, begin_us * 1000, end_us * 1000)


def two_steps() -> list[SpanRecord]:
    """The worker computes from 10 to 110 and from 120 to 220; half of the engine's work hides."""
    return [
        span("engine-7", Span.SCHEDULE, 1, 0, 6),
        span("engine-7", Span.SUBMIT, 1, 6, 10),
        span("worker-8", Span.READ, 1, 0, 10),
        span("worker-8", Span.COMPUTE, 1, 10, 110),
        span("worker-8", Span.SAMPLE, 1, 100, 110),
        span("engine-7", Span.SCHEDULE, 2, 12, 18),
        span("engine-7", Span.SUBMIT, 2, 18, 22),
        span("engine-7", Span.WAIT, 1, 22, 112),
        span("worker-8", Span.ANSWER, 1, 110, 112),
        span("worker-8", Span.COMPUTE, 2, 120, 220),
    ]


def test_figures_of_two_steps() -> None:
    timeline = join_records(two_steps())
    figures = timeline.figures
    assert (timeline.first, timeline.last, figures.steps) == (1, 2, 2)
    assert figures.period_us == 110
    assert figures.gap_us == 10
    assert figures.engine_work_us == 10
    assert figures.engine_hidden_share == 0.5
    assert figures.compute_share == pytest.approx(100 / 110)
    assert figures.spans_us == {
        "schedule": 6,
        "submit": 4,
        "wait": 90,
        "read": 10,
        "compute": 100,
        "sample": 10,
        "answer": 2,
    }


def test_only_steps_of_the_window_and_of_the_first_of_several_engines_count() -> None:
    others = [span("engine-9", Span.SCHEDULE, 1, 0, 1000), *two_steps()]
    others.append(span("worker-8", Span.COMPUTE, 3, 230, 330))
    assert join_records(others, 2, 3).figures.steps == 2
    assert join_records(others).figures.engine_work_us == pytest.approx(20 / 3)


def test_nothing_recorded_is_said() -> None:
    for records in ([], two_steps()[:1], [span("worker-1", Span.COMPUTE, 1, 0, 1)]):
        with pytest.raises(TimelineEmpty, match="more tokens"):
            join_records(records)


TIMES = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted)


@given(TIMES, st.lists(TIMES, max_size=4))
def test_an_overlap_is_at_most_the_span_where_others_do_not_overlap(
    ours: list[int], others: list[list[int]]
) -> None:
    record = span("e", Span.APPLY, 0, *ours)
    end = 0
    by_step = {}
    for step, (begin, length) in enumerate(others):
        by_step[step] = span("w", Span.COMPUTE, step, end + begin, end + begin + length)
        end += begin + length
    assert 0 <= overlap_ns(record, by_step) <= duration_ns(record)
