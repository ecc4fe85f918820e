"""Histogram of gaps: each in the bar of the first edge that is not below it."""

from triolet.fuzz.chaos.report.gaps import (
    EDGES_MS,
    counts_of,
    gap_lines,
    gaps_as_json,
    percentiles_of,
)


def test_a_gap_on_an_edge_is_not_beyond_it() -> None:
    counts = counts_of([0.06, 0.0601, 99.0])
    assert counts[EDGES_MS.index(60)] == counts[EDGES_MS.index(100)] == counts[-1] == 1
    assert sum(counts) == 3


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert percentiles_of([]) == []
    assert percentiles_of([0.1] * 99 + [3.0]) == [0.1, 0.1, 3.0]


def test_bars_go_from_the_first_to_the_last_that_is_not_empty() -> None:
    assert gap_lines([]) == []
    lines = gap_lines([0.03] * 100 + [0.09])
    assert [line.split()[:4] for line in lines] == [
        ["<=", "40", "ms", "100"],
        ["<=", "60", "ms", "0"],
        ["<=", "100", "ms", "1"],
    ]
    assert [line.count("#") for line in lines] == [50, 0, 1], "one is seen, however many others"
    assert gaps_as_json([0.03])["bars"]["<= 40 ms"] == 1
