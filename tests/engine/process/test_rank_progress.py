"""All ranks are as far as the last of them; nobody goes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.process.rank_progress import RankProgress

PHASES = ("start", "load", "check")


@pytest.mark.parametrize(
    ("reports", "told"),
    [
        ([(0, "start", 1.0), (1, "start", 1.0)], [("start", 0.0), ("start", 1.0)]),
        ([(0, "load", 0.5), (1, "load", 0.2)], [("start", 0.0), ("load", 0.2)]),
        (
            [(1, "load", 1.0), (1, "check", 1.0), (0, "load", 1.0), (0, "check", 1.0)],
            [("start", 0.0), ("start", 0.0), ("load", 1.0), ("check", 1.0)],
        ),
        (
            [(0, "load", 0.5), (1, "load", 0.9), (0, "load", 0.1)],
            [("start", 0.0), ("load", 0.5), ("load", 0.5)],
        ),
        (
            [(0, "load", 0.5), (1, "load", 0.5), (0, "start", 1.0)],
            [("start", 0), *[("load", 0.5)] * 2],
        ),
    ],
)
def test_two_ranks(reports: list[tuple[int, str, float]], told: list[tuple[str, float]]) -> None:
    progress = RankProgress(2)
    assert [progress.handle_report(*report) for report in reports] == told


reports_of_ranks = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(PHASES), st.floats(0, 1)), max_size=30
)


@given(reports_of_ranks)
def test_what_is_told_never_goes_back(reports: list[tuple[int, str, float]]) -> None:
    progress = RankProgress(3)
    before, begun = (0, 0.0), ["start"]
    for rank, phase, fraction in reports:
        begun += [phase] if phase not in begun else []
        told, least = progress.handle_report(rank, phase, fraction)
        progress.check_invariants()
        assert (begun.index(told), least) >= before
        before = begun.index(told), least
