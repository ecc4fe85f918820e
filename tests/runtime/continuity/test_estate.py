"""What processes leave behind: found by their successors, unless it may be wrong."""

import os

from triolet.engine.place_memory import PlaceMemory
from triolet.nurseries.processes.counter_page import open_counter_page
from triolet.nurseries.processes.counter_slot import COUNTER, GAUGE, Name
from triolet.runtime.continuity.estate import EngineEstate, FrontendCounters
from triolet.runtime.launch.child import BecameFailing, GivenUp, Gone, Suspected

from ..acting import FAULT, KILLED

DONE: Name = (COUNTER, "done")
ACTIVE: Name = (GAUGE, "active")


def test_gauges_end_with_their_process_and_counters_stay() -> None:
    counters = FrontendCounters()
    with counters.open(2):
        first, second = (counters.handle_starting(rank, 1 + rank)["counters"] for rank in (0, 1))
        assert first == second, "all of them write one page"
        with (
            open_counter_page(first, 0, 1, {DONE: 3, ACTIVE: 1}),
            open_counter_page(second, 1, 1, {DONE: 4, ACTIVE: 1}) as page,
        ):
            counters.handle(0, BecameFailing("hangs"))
            assert page.total() == {DONE: 7, ACTIVE: 2}
            counters.handle(0, Gone(KILLED))
            assert page.total() == {DONE: 7, ACTIVE: 1}


def test_memory_is_found_again_until_it_may_be_wrong() -> None:
    estate = EngineEstate()
    with estate.open(2):
        passed = [estate.handle_starting(rank, 1) for rank in (0, 1)]
        assert passed[0]["weights"] == passed[1]["weights"], "all engines share them"
        memory = PlaceMemory.of(list(passed[0].values()))
        assert memory == PlaceMemory(**passed[0])
        for fd in (memory.cache, memory.names, passed[1]["names"]):
            os.pwrite(fd, b"left", 0)
        estate.handle(0, Gone(KILLED))
        assert estate.handle_starting(0, 2) == passed[0]
        assert os.pread(memory.names, 4, 0) == b"left"

        estate.handle(0, Suspected(b"", is_itself=True))
        assert os.pread(memory.names, 4, 0) != b"left"
        assert os.pread(memory.cache, 4, 0) == b"left", "without names nobody reads it"
        assert os.pread(passed[1]["names"], 4, 0) == b"left", "of another engine"

        estate.handle(0, GivenUp(FAULT))
        estate.handle(2, GivenUp(FAULT))  # a place that was added, whose memory was never made
        assert os.fstat(memory.cache).st_size == 0
