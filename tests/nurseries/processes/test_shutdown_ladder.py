"""The ladder takes each rung once, in order, and ends for good."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.nurseries.processes.shutdown_ladder import (
    Ask,
    Decision,
    Kill,
    LadderState,
    LadderTimes,
    ReportStuck,
    ShutdownLadder,
    Terminate,
)

TIMES = LadderTimes(ask_s=0.5, terminate_s=1, kill_s=2)
WHOLE: list[Decision] = [Ask(), Terminate(), Kill(), ReportStuck(waited_s=2)]


def test_all_the_way_down() -> None:
    ladder = ShutdownLadder(TIMES)
    assert ladder.next_deadline() == math.inf
    assert ladder.begin(10) == Ask()
    assert ladder.next_deadline() == 10.5
    assert ladder.handle_timeout(10.5) == Terminate()
    assert ladder.next_deadline() == 11.5
    assert ladder.handle_timeout(11.5) == Kill()
    assert ladder.next_deadline() == 13.5
    assert ladder.handle_timeout(13.5) == ReportStuck(waited_s=2)
    assert ladder.state is LadderState.STUCK
    assert ladder.next_deadline() == math.inf


@pytest.mark.parametrize("rungs", range(5))
def test_an_exit_on_any_rung_is_the_end(rungs: int) -> None:
    ladder = ShutdownLadder(TIMES)
    now = 0.0
    for rung in range(rungs):
        decision = ladder.begin(now) if rung == 0 else ladder.handle_timeout(now)
        assert decision == WHOLE[rung]
        now = ladder.next_deadline()
    ladder.handle_exit()
    assert ladder.state is LadderState.GONE
    assert ladder.begin(100) is None
    assert ladder.handle_timeout(1e9) is None
    ladder.check_invariants()


def test_spurious_timeouts_and_a_second_beginning_are_harmless() -> None:
    ladder = ShutdownLadder(TIMES)
    assert ladder.handle_timeout(1e9) is None
    ladder.begin(0)
    assert ladder.begin(0) is None
    assert ladder.handle_timeout(0.4) is None
    assert ladder.state is LadderState.ASKED


def test_a_late_timeout_gives_the_next_rung_its_whole_time() -> None:
    ladder = ShutdownLadder(TIMES)
    ladder.begin(0)
    assert ladder.handle_timeout(60) == Terminate()
    assert ladder.next_deadline() == 61


@given(
    st.lists(st.tuples(st.sampled_from(["begin", "timeout", "exit"]), st.floats(0, 3)), max_size=30)
)
def test_any_history_takes_the_rungs_in_order(events: list[tuple[str, float]]) -> None:
    ladder = ShutdownLadder(TIMES)
    now = 0.0
    taken: list[Decision] = []
    for event, elapsed_s in events:
        now += elapsed_s
        decision: Decision | None = None
        if event == "exit":
            ladder.handle_exit()
        else:
            decision = ladder.begin(now) if event == "begin" else ladder.handle_timeout(now)
        if decision is not None:
            taken.append(decision)
        ladder.check_invariants()
    assert taken == WHOLE[: len(taken)]


def test_negative_times_are_refused() -> None:
    with pytest.raises(ValueError, match="ask_s"):
        LadderTimes(ask_s=-1)
