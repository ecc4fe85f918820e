"""Hang watch: short stops, quotas, a late watcher; cases are in `tests/scenarios/hang_watch`."""

from hypothesis import given
from hypothesis import strategies as st

from triolet.nurseries.processes.hang_watch import ProcessState

from ...scenarios.hang_watch.driver import HangWatchDriver

STOPPED, RUNNABLE, ASLEEP = ProcessState.STOPPED, ProcessState.RUNNABLE, ProcessState.ASLEEP


@given(st.floats(0.05, 1.0), st.floats(0.1, 3.0))
def test_a_process_with_a_small_quota_is_never_late(share: float, cpu_s: float) -> None:
    """Throttled it is runnable, and its step takes as much CPU time as always."""
    bed = HangWatchDriver()
    for step in range(3):
        bed.all[0].show(step=step + 1, change=step, predicted_s=cpu_s / 2)
        bed.all[1].show(step=step + 1, change=step, passes=2 * step + 2)
        bed.all[1].state = RUNNABLE
        used = 0.0
        while used < cpu_s:
            bed.tick()
            used += share * bed.watch.period_s
            bed.all[1].run(share * bed.watch.period_s)
    assert bed.hangs == []


# Stops of at most 0.3 s, each after which it runs for a moment.
STOPS = st.lists(st.tuples(st.floats(0.001, 0.3), st.floats(0.001, 0.3)), min_size=1, max_size=60)


@given(STOPS, st.sampled_from([0, 1]), st.booleans(), st.floats(0.0, 0.05))
def test_short_stops_are_no_hang_however_often_they_come(
    stops: list[tuple[float, float]], place: int, in_step: bool, late_s: float
) -> None:
    bed = HangWatchDriver()
    if in_step:
        bed.in_step(predicted_s=0.01)
        bed.all[1].show(awaits=0)
    process = bed.all[place]
    times = [bed.now]
    for stop_s, run_s in stops:
        times += [times[-1] + stop_s, times[-1] + stop_s + run_s]
    passed = 0
    while bed.now < times[-1]:
        ahead = bed.now + bed.watch.period_s + late_s
        while passed < len(times) and times[passed] <= ahead:
            process.state = ASLEEP if passed % 2 else STOPPED
            process.runs += passed % 2
            passed += 1
        bed.tick(late_s)
    assert bed.hangs == []


@given(st.floats(0.5, 100.0), st.booleans())
def test_a_watcher_that_stood_still_knows_nothing_of_that_time(late_s: float, busy: bool) -> None:
    """The whole tree is stopped; some go on before the others."""
    bed = HangWatchDriver()
    if busy:
        bed.in_step(predicted_s=0.01)
    for process in bed.all:
        process.state = STOPPED
    bed.tick()
    bed.tick(late_s)
    bed.tick(late_s)
    for process in bed.all:
        process.state = RUNNABLE
        process.run(0.001)
    bed.tick()
    assert bed.hangs == []


@given(st.lists(st.floats(0.0, 20.0), min_size=20, max_size=60))
def test_a_watcher_that_is_always_late_forgets_nothing(late: list[float]) -> None:
    bed = HangWatchDriver()
    bed.in_step(predicted_s=0.01)
    bed.all[1].state = STOPPED
    for late_s in late:
        bed.tick(late_s)
    assert [hang.number for hang in bed.hangs][:1] == [1]


MOVES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(list(ProcessState)),
        st.floats(0.0, 0.3),
        st.booleans(),
        st.floats(0.0, 2.0),
    ),
    max_size=80,
)


@given(MOVES)
def test_who_moves_on_is_never_suspected(
    moves: list[tuple[int, ProcessState, float, bool, float]],
) -> None:
    """Whatever the others do: worker 2 ends a step between any two looks."""
    bed = HangWatchDriver(workers=3)
    for number, (place, state, cpu_s, busy, late_s) in enumerate(moves):
        process = bed.all[place]
        process.state = state
        process.show(passes=process.slot.passes + (2 if busy else 1), step=number)
        process.run(cpu_s)
        bed.all[3].show(change=number + 1, step=number, passes=2 * number + 2)
        bed.tick(late_s)
    assert all(hang.number != 3 for hang in bed.hangs)
