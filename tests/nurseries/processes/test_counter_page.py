"""The counter page: processes sum what all have stored, and its size is fixed."""

import os

import pytest

from triolet.nurseries.processes.counter_page import open_counter_memory, open_counter_page
from triolet.nurseries.processes.counter_slot import COUNTER, GAUGE, SLOT_BYTES, Name

from ...leaks import check_no_leaks

LAYOUT = 7
DONE: Name = (COUNTER, "done")
ACTIVE: Name = (GAUGE, "active")


def test_each_sees_the_sum() -> None:
    with check_no_leaks(), open_counter_memory(2) as memory:
        with (
            open_counter_page(memory.fd, 0, LAYOUT, {DONE: 1, ACTIVE: 1}) as first,
            open_counter_page(memory.fd, 1, LAYOUT, {DONE: 2, ACTIVE: 0}) as second,
        ):
            assert first.publish({DONE: 5, ACTIVE: 1})
            assert not first.publish({DONE: 5, ACTIVE: 1})
            assert first.total() == second.total() == {DONE: 7, ACTIVE: 1}
        with open_counter_page(memory.fd, 1, LAYOUT, {DONE: 0, ACTIVE: 0}) as successor:
            assert successor.total() == {DONE: 7, ACTIVE: 0}


def test_one_that_is_retired_leaves_its_counters_and_no_gauge() -> None:
    with (
        open_counter_memory(2) as memory,
        open_counter_page(memory.fd, 0, LAYOUT, {DONE: 1, ACTIVE: 1}) as survivor,
        open_counter_page(memory.fd, 1, LAYOUT, {DONE: 3, ACTIVE: 5}),
    ):
        assert survivor.total() == {DONE: 4, ACTIVE: 6}
        memory.retire(1)
        assert survivor.total() == {DONE: 4, ACTIVE: 1}


def test_a_page_is_as_large_as_it_was_made() -> None:
    with check_no_leaks(), open_counter_memory(2) as memory:
        for size in (SLOT_BYTES, 3 * SLOT_BYTES):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.fd, size)
        with (
            pytest.raises(ValueError, match="no place 2"),
            open_counter_page(memory.fd, 2, LAYOUT, {}),
        ):
            pytest.fail("it has two places")
