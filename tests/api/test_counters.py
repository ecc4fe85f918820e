"""All counts have names of their own, and become counts again."""

from collections import Counter

import attrs
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.counters import LAYOUT, ApiCounters, FrontendCounts, counts_of, numbers_of
from triolet.nurseries.processes.counter_slot import GAUGE, NUMBERS_MAX, Name
from triolet.runtime.frontend.health import FrontendStatistics

NUMBERS = st.integers(0, 2**40)


def drawn_counts() -> st.SearchStrategy[FrontendCounts]:
    """Any counts; those of labels among few."""
    edge = {field.name: NUMBERS for field in attrs.fields(ApiCounters) if field.type is int}
    runtime = {
        field.name: NUMBERS for field in attrs.fields(FrontendStatistics) if field.type is int
    }
    labels = st.dictionaries(st.sampled_from(["gap", "old attempt"]), NUMBERS)
    answers = st.tuples(st.sampled_from(["GET", "-"]), st.just("/v1/{id}"), st.just(200))
    return st.builds(
        FrontendCounts,
        edge=st.builds(
            ApiCounters, **edge, answers=st.builds(Counter, st.dictionaries(answers, NUMBERS))
        ),
        runtime=st.builds(
            FrontendStatistics, **runtime, outputs_refused_total=labels, link_mishaps_total=labels
        ),
    )


def as_values(counts: FrontendCounts) -> tuple[object, object]:
    return attrs.asdict(counts.edge, recurse=False), counts.runtime


@given(drawn_counts(), st.lists(st.floats(0, 1000), max_size=9))
def test_numbers_become_the_same_counts_again(counts: FrontendCounts, times_s: list[float]) -> None:
    for seconds in times_s:
        counts.runtime.latencies.whole.observe(seconds)
    again = counts_of(numbers_of(counts))
    sums = [each.runtime.latencies.whole.sum for each in (counts, again)]
    assert abs(sums[0] - sums[1]) < 1e-8
    again.runtime.latencies.whole.sum = sums[0]
    assert as_values(again) == as_values(counts)


def test_gauges_are_what_the_classes_call_so() -> None:
    now = {name[-1] for name in numbers_of(FrontendCounts()) if name[0] == GAUGE}
    edge = {f.name for f in attrs.fields(ApiCounters) if f.name.endswith("_active")}
    runtime = {f.name for f in attrs.fields(FrontendStatistics) if not f.name.endswith("_total")}
    assert now == edge | runtime - {"latencies"}


def test_there_is_room_for_all() -> None:
    """Of the answers, for each route and method with some statuses."""
    assert len(numbers_of(FrontendCounts())) < NUMBERS_MAX / 4


def test_what_is_missing_is_zero_and_what_is_strange_is_ignored() -> None:
    strange: Name = ("counter", "edge", "no such field")
    assert as_values(counts_of({strange: 5})) == as_values(FrontendCounts())


def test_a_layout_is_a_number_that_is_never_zero() -> None:
    assert 0 < LAYOUT < 2**64
