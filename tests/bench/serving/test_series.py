"""Medians, spreads and ratios of a few numbers."""

import math

from hypothesis import given
from hypothesis import strategies as st

from triolet.bench.serving.series import Series, ratios

NUMBERS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20)


def test_the_median_and_its_spread() -> None:
    series = Series.of([3.0, 1.0, 2.5])
    assert (series.median, series.least, series.most, series.runs) == (2.5, 1.0, 3.0, 3)
    assert series.text(1) == "2.5 [1.0..3.0]"


def test_one_run_has_no_spread_and_none_no_figure() -> None:
    assert Series.of([4.2]).text() == "4"
    empty = Series.of([])
    assert math.isnan(empty.median)
    assert empty.text() == ""


def test_ratios_are_taken_run_by_run() -> None:
    # The machine was half as fast in the second run, for both.
    assert ratios([100.0, 50.0], [20.0, 10.0]) == Series(5.0, 5.0, 5.0, 2)


@given(NUMBERS)
def test_the_median_is_within_the_spread(values: list[float]) -> None:
    series = Series.of(values)
    assert series.least <= series.median <= series.most
    assert ratios(values, values) == Series(1.0, 1.0, 1.0, len(values))
