"""Connection slots: each has room of its own, what is freed is gone, and limits leave room."""

import os
import resource
import subprocess
import sys

import pytest

from triolet.transports.takeover.memory import (
    FREE_SHARE,
    MAPPED_SLOTS,
    SLOT_BYTES,
    SLOTS,
    create_slot_memory,
    free_slot,
    map_slots,
    refuse_slot,
)
from triolet.transports.takeover.slot import ConnectionSlot

GIB = 2**30
# Uses slots until it is refused one; prints how many it had, and the address space that it uses.
FILLER = """
import os, mmap
from triolet.transports.takeover.memory import SLOTS, create_slot_memory, map_slots
with map_slots(create_slot_memory(0)) as slots:
    number = 0
    try:
        for number in range(SLOTS):
            with slots.view(number) as view:
                view[0] = 1
    except OSError as error:
        print(error)
    print(number, int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE)
"""


def blocks(fd: int) -> int:
    return os.fstat(fd).st_blocks


def test_a_freed_slot_is_empty_and_its_neighbours_are_not() -> None:
    fd = create_slot_memory(3)
    used = (0, 1, 2, SLOTS - 1)
    try:
        with map_slots(fd) as writer, map_slots(fd) as reader:
            assert blocks(fd) == 0
            for slot in used:
                with writer.view(slot) as view:
                    view[0], view[-1] = slot % 251 + 1, 9
            one = blocks(fd) // 4
            free_slot(fd, 1)
            free_slot(fd, SLOTS - 1)
            assert blocks(fd) == 2 * one
            found = [bytes(reader.view(slot)[:: SLOT_BYTES - 1]) for slot in used]
            assert found == [b"\x01\x09", b"\0\0", b"\x03\x09", b"\0\0"]
    finally:
        os.close(fd)


def test_other_memory_is_refused() -> None:
    fd = os.memfd_create("empty")
    try:
        with map_slots(fd) as slots, pytest.raises(ValueError, match="mmap"):
            slots.view(0)
    finally:
        os.close(fd)


def test_slots_are_mapped_when_they_are_used() -> None:
    fd = create_slot_memory(0)
    try:
        with map_slots(fd) as slots:
            for number in range(MAPPED_SLOTS + 1):
                slots.view(number).release()
            assert len(slots._mapped) == 2
    finally:
        os.close(fd)


def test_a_slot_that_is_refused_is_not_held() -> None:
    fd = create_slot_memory(0)
    try:
        refuse_slot(fd, 5)
        with map_slots(fd) as slots:
            slot = ConnectionSlot.found(slots.view(5))
            record = slot.record()
            assert record is not None
            assert (record.state, record.output) == (b"", b"")
            slot.release()
    finally:
        os.close(fd)


@pytest.mark.slow
def test_a_limit_of_address_space_is_met_with_room_left() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILLER],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 * GIB, 2 * GIB)),
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    refused, said = done.stdout.splitlines()
    count, used = map(int, said.split())
    assert "ulimit -v" in refused
    assert count >= 64
    assert used <= (1 - FREE_SHARE) * 2 * GIB
