"""The hang watch against a simulated engine with workers: stops, quotas, a late watcher."""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.nurseries.processes.hang_watch import (
    BLOCKED_S,
    DEADLINE_MIN_S,
    DYING_S,
    PERIOD_BUSY_S,
    PERIOD_IDLE_S,
    Hang,
    HangWatch,
    ProcessLook,
    ProcessState,
)
from triolet.nurseries.processes.progress_page import SlotState

GONE, TRACED, STOPPED, RUNNABLE, D_STATE, ASLEEP = ProcessState
PATIENCE_S = 60.0
# Of what is found late: a look to see it, one more to begin with, and what is between idle ones.
SLACK_S = 2 * PERIOD_BUSY_S + PERIOD_IDLE_S + 1e-6


@attrs.define
class Simulated:
    """One process: its slot, and what /proc would say."""

    pid: int
    slot: SlotState = attrs.field(init=False)
    state: ProcessState = ASLEEP
    cpu_s: float = 0.0
    runs: int = 0

    def __attrs_post_init__(self) -> None:
        self.slot = SlotState(pid=self.pid)

    def show(self, **changes: Any) -> None:
        self.slot = attrs.evolve(self.slot, **changes)
        self.run(0.0)

    def run(self, cpu_s: float) -> None:
        self.cpu_s += cpu_s
        self.runs += 1

    def look(self) -> ProcessLook:
        return ProcessLook(self.state, {self.pid: self.cpu_s}, self.runs)


@attrs.define
class Bed:
    """Processes, a watch over them, and a clock that goes from one of its looks to the next."""

    workers: int = 1
    now: float = 100.0
    blocked_s: float | None = None
    watch: HangWatch = attrs.field(init=False)
    all: list[Simulated] = attrs.field(init=False)
    hangs: list[Hang] = attrs.field(factory=list)
    pids: dict[int, int] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.watch = HangWatch(1 + self.workers, PATIENCE_S, self.blocked_s)
        self.all = [Simulated(10 + place) for place in range(1 + self.workers)]
        self.tick()

    def tick(self, late_s: float = 0.0) -> None:
        self.now += self.watch.period_s + late_s
        slots = [process.slot for process in self.all]
        still = self.watch.handle_page(slots, self.now, self.pids)
        looks = {place: self.all[place].look() for place in still}
        self.hangs += self.watch.handle_looks(looks)
        self.watch.check_invariants()

    def compute(self, place: int) -> None:
        """For a thousand looks, in one pass; it is no hang."""
        self.all[place].show(passes=2)
        self.all[place].state = RUNNABLE
        for _ in range(1000):
            self.tick()
            self.all[place].run(self.watch.period_s)
        assert self.hangs == []

    def until_hang(self, limit_s: float) -> float:
        """Seconds until the first hang."""
        began = self.now
        while not self.hangs:
            self.tick()
            assert self.now - began <= limit_s, "no hang was found"
        return self.now - began

    def in_step(self, predicted_s: float = 0.0) -> None:
        """All workers compute step 7."""
        self.all[0].show(step=7, change=1, predicted_s=predicted_s)
        for worker in self.all[1:]:
            worker.show(step=7, change=1, passes=2)
        self.tick()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_that_is_stopped_for_ever_hangs_also_without_work(place: int) -> None:
    bed = Bed(workers=2)
    bed.all[place].state = STOPPED
    assert bed.until_hang(DEADLINE_MIN_S + SLACK_S) >= DEADLINE_MIN_S
    assert [(hang.place, hang.pid) for hang in bed.hangs] == [(place, 10 + place)]
    assert bed.hangs[0].reason == "hung: stopped for 0.5 s"


def test_in_a_step_it_is_found_within_200_ms_of_the_deadline() -> None:
    bed = Bed()
    bed.in_step(predicted_s=0.01)
    bed.all[1].state = STOPPED
    bed.until_hang(DEADLINE_MIN_S + 0.2)
    assert bed.hangs[0].reason == "hung in step 7: stopped for 0.5 s"


@pytest.mark.parametrize("state", [ASLEEP, D_STATE])
def test_a_worker_that_sleeps_over_its_step_has_five_times_what_was_predicted(
    state: ProcessState,
) -> None:
    bed = Bed(workers=2)
    bed.in_step(predicted_s=0.4)
    bed.all[1].show(passes=3)  # it has answered
    bed.all[2].state = state
    assert bed.until_hang(2.0 + 0.2) >= 2.0
    assert bed.hangs[0].place == 2


def test_a_step_of_which_nothing_is_known_has_patience() -> None:
    bed = Bed()
    bed.in_step()
    assert bed.until_hang(PATIENCE_S + 0.2) >= PATIENCE_S


def test_a_worker_that_has_not_taken_its_step_owes_it() -> None:
    bed = Bed()
    bed.all[1].show(step=6, change=6)
    bed.all[0].show(step=7, change=7, predicted_s=0.01)
    bed.until_hang(DEADLINE_MIN_S + SLACK_S)
    assert bed.hangs[0].place == 1


def test_one_that_waits_for_another_is_not_to_blame() -> None:
    bed = Bed()
    bed.in_step(predicted_s=0.01)
    bed.all[1].show(awaits=0)
    for _ in range(1000):
        bed.tick()
    assert bed.hangs == []
    bed.all[1].state = STOPPED
    bed.until_hang(DEADLINE_MIN_S + 0.2)


def test_an_engine_whose_loop_stands_still_hangs() -> None:
    bed = Bed()
    bed.all[0].show(passes=2)
    bed.until_hang(DEADLINE_MIN_S + SLACK_S)
    assert bed.hangs == [Hang(0, 10, "hung: asleep for 0.5 s")]


def test_a_loop_that_may_compute_is_blocked_when_it_sleeps_for_seconds() -> None:
    bed = Bed(workers=0, blocked_s=BLOCKED_S)
    bed.all[0].show(passes=2)
    assert bed.until_hang(BLOCKED_S + SLACK_S + PERIOD_IDLE_S) >= BLOCKED_S
    assert bed.hangs == [Hang(0, 10, "hung: asleep for 5.0 s")]


@pytest.mark.parametrize("place", [0, 1])
def test_one_that_does_not_show_yet_starts(place: int) -> None:
    """Whatever the one before it has left in the slot."""
    bed = Bed(blocked_s=BLOCKED_S)
    bed.all[place].show(passes=2)
    bed.all[place].pid, bed.pids = 12, {place: 12}
    bed.all[place].state = RUNNABLE
    for _ in range(1000):  # it imports
        bed.tick()
        bed.all[place].run(bed.watch.period_s)
    assert bed.hangs == []
    bed.all[place].state = ASLEEP
    assert bed.until_hang(BLOCKED_S + SLACK_S + PERIOD_IDLE_S) >= BLOCKED_S - 2 * SLACK_S
    assert bed.hangs == [Hang(place, 12, "hung: asleep for 5.0 s")]


@pytest.mark.parametrize("place", [0, 1])
def test_one_that_is_stopped_before_it_shows_hangs(place: int) -> None:
    bed = Bed(blocked_s=BLOCKED_S)
    bed.all[place].pid, bed.pids = 12, {place: 12}
    bed.all[place].state = STOPPED
    assert bed.until_hang(DEADLINE_MIN_S + SLACK_S + PERIOD_IDLE_S) >= DEADLINE_MIN_S
    assert bed.hangs == [Hang(place, 12, "hung: stopped for 0.5 s", is_own_fault=False)]


def test_a_worker_that_boots_has_a_loop_too() -> None:
    bed = Bed()
    bed.compute(place=1)
    bed.all[1].state = ASLEEP
    assert bed.until_hang(BLOCKED_S + SLACK_S + PERIOD_IDLE_S) >= BLOCKED_S - 2 * SLACK_S
    assert bed.hangs == [Hang(1, 11, "hung: asleep for 5.0 s")]


def test_a_loop_that_may_compute_does_so_for_as_long_as_it_likes() -> None:
    Bed(workers=0, blocked_s=BLOCKED_S).compute(place=0)


def test_other_threads_of_a_blocked_loop_do_not_hide_it() -> None:
    """As those do that answer heartbeats."""
    bed = Bed(workers=0, blocked_s=BLOCKED_S)
    bed.all[0].show(passes=2)
    while not bed.hangs:
        for _ in range(20):
            bed.tick()
        bed.all[0].run(0.001)
        assert bed.now < 100 + 2 * BLOCKED_S


def test_a_stop_of_a_loop_that_may_compute_is_found_as_soon_as_another() -> None:
    bed = Bed(workers=0, blocked_s=BLOCKED_S)
    bed.all[0].show(passes=2)
    bed.tick()
    bed.all[0].state = STOPPED
    assert bed.until_hang(DEADLINE_MIN_S + SLACK_S) >= DEADLINE_MIN_S
    assert bed.hangs[0].reason == "hung: stopped for 0.5 s"


def test_one_that_outlives_its_death_takes_the_engine_along() -> None:
    """In uninterruptible sleep no signal ends it."""
    bed = Bed()
    bed.in_step(predicted_s=0.01)
    bed.all[1].state = D_STATE
    for _ in range(40):
        bed.tick()
    assert [hang.place for hang in bed.hangs] == [1, 0]
    assert bed.hangs[1].reason.startswith(
        "waits for rank 0, which hung in step 7: in uninterruptible sleep for 0.5 s"
    )


def test_one_that_is_gone_or_debugged_is_left_alone() -> None:
    bed = Bed(workers=2)
    bed.in_step(predicted_s=0.01)
    bed.all[1].state, bed.all[2].state = GONE, TRACED
    for _ in range(1000):
        bed.tick()
    assert bed.hangs == []


def test_one_that_is_dying_for_too_long_hangs_in_the_kernel_by_no_fault_of_its_own() -> None:
    bed = Bed()
    bed.all[0].state = GONE
    assert bed.until_hang(DYING_S + 2 * SLACK_S) >= DYING_S
    assert bed.hangs == [Hang(0, 10, "hung: dying for 10.0 s", is_own_fault=False)]


def test_a_torn_slot_that_stays_torn_does_not_move() -> None:
    bed = Bed()
    bed.in_step(predicted_s=0.01)
    bed.all[1].show(change=2, step=99, is_torn=True)
    bed.all[1].state = STOPPED
    bed.until_hang(DEADLINE_MIN_S + 0.2)


@given(st.floats(0.05, 1.0), st.floats(0.1, 3.0))
def test_a_process_with_a_small_quota_is_never_late(share: float, cpu_s: float) -> None:
    """Throttled it is runnable, and its step takes as much CPU time as always."""
    bed = Bed()
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


def test_computing_without_end_is_counted_by_the_busiest_thread() -> None:
    bed = Bed()
    bed.in_step(predicted_s=0.2)
    bed.all[1].state = RUNNABLE
    used = 0.0
    while not bed.hangs:
        bed.tick()
        used += 0.02
        bed.all[1].run(0.02)
        assert used < 1.2
    assert used >= 1.0


# Stops of at most 0.3 s, each after which it runs for a moment.
STOPS = st.lists(st.tuples(st.floats(0.001, 0.3), st.floats(0.001, 0.3)), min_size=1, max_size=60)


@given(STOPS, st.sampled_from([0, 1]), st.booleans(), st.floats(0.0, 0.05))
def test_short_stops_are_no_hang_however_often_they_come(
    stops: list[tuple[float, float]], place: int, in_step: bool, late_s: float
) -> None:
    bed = Bed()
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
    bed = Bed()
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
    bed = Bed()
    bed.in_step(predicted_s=0.01)
    bed.all[1].state = STOPPED
    for late_s in late:
        bed.tick(late_s)
    assert [hang.place for hang in bed.hangs][:1] == [1]


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
    bed = Bed(workers=3)
    for number, (place, state, cpu_s, busy, late_s) in enumerate(moves):
        process = bed.all[place]
        process.state = state
        process.show(passes=process.slot.passes + (2 if busy else 1), step=number)
        process.run(cpu_s)
        bed.all[3].show(change=number + 1, step=number, passes=2 * number + 2)
        bed.tick(late_s)
    assert all(hang.place != 3 for hang in bed.hangs)
