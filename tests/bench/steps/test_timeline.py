"""Records of engine and worker joined: medians, what hides, and what is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.bench.steps.timeline import TimelineEmpty, duration_ns, join_records, overlap_ns
from triolet.engine.step_recorder import Span, SpanRecord

from .step_records import span, two_steps


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


def test_lanes_are_in_order_with_the_outer_span_first() -> None:
    engine, worker = join_records(reversed_records()).lanes
    assert [each.span for each in worker.spans] == [
        Span.READ,
        Span.COMPUTE,
        Span.SAMPLE,
        Span.ANSWER,
        Span.COMPUTE,
    ]
    assert engine.name == "engine"


def reversed_records() -> list[SpanRecord]:
    return two_steps()[::-1]


def test_only_steps_of_the_window_and_of_the_first_of_several_engines_count() -> None:
    others = [span("engine-9", Span.SCHEDULE, 1, 0, 1000), *two_steps()]
    others.append(span("worker-8", Span.COMPUTE, 3, 230, 330))
    assert join_records(others, 2, 3).figures.steps == 2
    assert join_records(others).figures.engine_work_us == pytest.approx(20 / 3)


def test_steps_can_be_cut_out_for_a_picture() -> None:
    cut = join_records(two_steps()).clip(2, 2)
    assert {each.step for lane in cut.lanes for each in lane.spans} == {2}
    assert cut.figures.steps == 2


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
