"""Phases end once, in order, and their times add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.launch.boot_progress import BootProgress, EndedPhase

Report = tuple[str, float, float]


@pytest.mark.parametrize(
    ("reports", "ended"),
    [
        ([("load", 0.0, 2.0)], [EndedPhase("start", 2.0)]),
        ([("start", 1.0, 2.0)], [EndedPhase("start", 2.0)]),
        ([("start", 1.0, 2.0), ("load", 0.0, 3.0)], [EndedPhase("start", 2.0)]),
        # The time of a phase begins where the one before ended, also if it was reported late.
        (
            [("start", 1.0, 2.0), ("load", 1.0, 3.0)],
            [EndedPhase("start", 2.0), EndedPhase("load", 1.0)],
        ),
        ([("load", 1.0, 3.0)], [EndedPhase("start", 3.0), EndedPhase("load", 0.0)]),
        # Without its last report a phase ends where the next one begins.
        (
            [("load", 0.5, 1.0), ("check", 0.0, 3.0)],
            [EndedPhase("start", 1.0), EndedPhase("load", 2.0)],
        ),
        # Said again, it is no news.
        (
            [("load", 1.0, 1.0), ("load", 1.0, 2.0), ("check", 0.5, 3.0), ("load", 1.0, 4.0)],
            [EndedPhase("start", 1.0), EndedPhase("load", 0.0)],
        ),
    ],
)
def test_phases_end(reports: list[Report], ended: list[EndedPhase]) -> None:
    progress = BootProgress(0.0)
    assert [phase for report in reports for phase in progress.handle_report(*report)] == ended


def test_ready_ends_what_goes_on_but_not_the_start() -> None:
    progress = BootProgress(1.0)
    assert progress.handle_ready(2.0) == []
    progress.handle_report("load", 0.5, 3.0)
    assert (progress.phase, progress.fraction, progress.phase_s(4.5)) == ("load", 0.5, 1.5)
    assert progress.handle_ready(5.0) == [EndedPhase("load", 2.0)]
    assert progress.handle_ready(6.0) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "load", "check"]),
            st.sampled_from([0.0, 0.5, 1.0]),
            st.floats(0, 10),
        ),
        max_size=20,
    )
)
def test_the_times_add_up_and_no_phase_ends_twice(reports: list[Report]) -> None:
    progress, now, ended = BootProgress(0.0), 0.0, list[EndedPhase]()
    for phase, fraction, seconds in reports:
        now += seconds
        ended += progress.handle_report(phase, fraction, now)
        progress.check_invariants()
        assert sum(each.seconds for each in ended) + progress.phase_s(now) == pytest.approx(now)
    assert len({each.phase for each in ended}) == len(ended)
