"""Connection slots: each has room of its own, and what is freed is gone."""

import os

import pytest

from triolet.transports.takeover.memory import (
    SLOT_BYTES,
    SLOTS,
    create_slot_memory,
    free_slot,
    map_slots,
)


def blocks(fd: int) -> int:
    return os.fstat(fd).st_blocks


def test_a_freed_slot_is_empty_and_its_neighbours_are_not() -> None:
    fd = create_slot_memory(3)
    try:
        with map_slots(fd) as writer, map_slots(fd) as reader:
            assert blocks(fd) == 0
            for slot in (0, 1, 2, SLOTS - 1):
                begin = slot * SLOT_BYTES
                writer[begin] = slot % 251 + 1
                writer[begin + SLOT_BYTES - 1] = 9
            one = blocks(fd) // 4
            free_slot(fd, 1)
            free_slot(fd, SLOTS - 1)
            assert blocks(fd) == 2 * one
            assert [reader[slot * SLOT_BYTES] for slot in (0, 1, 2, SLOTS - 1)] == [1, 0, 3, 0]
            ends = [reader[(slot + 1) * SLOT_BYTES - 1] for slot in (0, 1, 2, SLOTS - 1)]
            assert ends == [9, 0, 9, 0]
    finally:
        os.close(fd)


def test_other_memory_is_refused() -> None:
    fd = os.memfd_create("empty")
    try:
        with pytest.raises(ValueError, match="mmap length is greater"), map_slots(fd):
            pass
    finally:
        os.close(fd)
