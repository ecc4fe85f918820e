"""The ring's memory: words apart, sizes sealed, and nothing else passes for it."""

import fcntl
import itertools
import os
import struct

import hypothesis
import hypothesis.strategies as st
import pytest

from triolet.transports.control.passed_fds import close_fds
from triolet.transports.rings.ring_memory import (
    CACHE_LINE_BYTES,
    READER_FDS,
    SLOT_HEADER_BYTES,
    RingBroken,
    RingGeometry,
    RingMemory,
    create_ring,
    duplicate_fds,
)

from ..control.test_passed_fds import open_fds


@hypothesis.settings(deadline=None)
@hypothesis.given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 200))
def test_places_are_apart_and_aligned(readers: int, slots: int, slot_bytes: int) -> None:
    geometry = RingGeometry(readers=readers, slots=slots, slot_bytes=slot_bytes)
    places = [(0, 24)]
    places += [(geometry.consumed_offset(rank), 8) for rank in range(readers)]
    size = SLOT_HEADER_BYTES + slot_bytes
    places += [(geometry.slot_offset(sequence), size) for sequence in range(slots)]
    for (start, length), (following, _) in itertools.pairwise(places):
        assert start + length <= following
    assert places[-1][0] + size <= geometry.total_bytes
    assert all(start % CACHE_LINE_BYTES == 0 for start, _ in places)
    assert geometry.slot_offset(slots) == geometry.slot_offset(0)


@pytest.mark.parametrize(
    ("readers", "slots", "slot_bytes"), [(0, 1, 1), (1, 0, 1), (1, 1, 0), (257, 1, 1), (1, 9999, 1)]
)
def test_sizes_that_make_no_ring(readers: int, slots: int, slot_bytes: int) -> None:
    before = open_fds()
    with pytest.raises(ValueError):
        create_ring(readers=readers, slots=slots, slot_bytes=slot_bytes)
    assert open_fds() == before


def test_two_mappings_are_one_memory() -> None:
    with create_ring(readers=2, slots=2, slot_bytes=100) as parts:
        left, right = RingMemory(parts.memory_fd), RingMemory(parts.memory_fd)
        left.store(64, 2**64 - 1)
        assert right.load(64) == 2**64 - 1
        assert right.geometry == parts.geometry
        left.close()
        left.close()
        right.close()


def test_parts_close_all_they_opened_once() -> None:
    before = open_fds()
    with create_ring(readers=3, slots=2, slot_bytes=100) as parts:
        assert len(parts.writer_fds()) == 7
        assert len(parts.reader_fds(2)) == READER_FDS
        with pytest.raises(PermissionError):
            os.ftruncate(parts.memory_fd, 1)
    parts.close()
    assert open_fds() == before


def _sealed(content: bytes) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        struct.pack("<IIIIQ", 1, 1, 1, 1, 1),
        struct.pack("<IIIIQ", 0x54524C54, 2, 1, 1, 1),
        struct.pack("<IIIIQ", 0x54524C54, 1, 0, 1, 1),
        struct.pack("<IIIIQ", 0x54524C54, 1, 1, 1, 2**40),
    ],
)
def test_sealed_memory_that_is_no_ring_is_refused(content: bytes) -> None:
    fd = _sealed(content)
    before = open_fds()
    with pytest.raises(RingBroken):
        RingMemory(fd)
    assert open_fds() == before
    os.close(fd)


def test_other_descriptors_are_refused() -> None:
    pipe = os.pipe()
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    for fd in (pipe[0], loose):
        with pytest.raises(RingBroken):
            RingMemory(fd)
    close_fds([*pipe, loose])


def test_duplicating_is_all_or_nothing() -> None:
    before = open_fds()
    with pytest.raises(OSError, match="Bad file"):
        duplicate_fds([0, 987_654])
    assert open_fds() == before
    copies = duplicate_fds([0, 1])
    assert not any(os.get_inheritable(fd) for fd in copies)
    close_fds(copies)
