"""The step ring: every message once, in order; full, stopped and broken are exact."""

import contextlib
import fcntl
import itertools
import os
import select
import struct
from collections.abc import Callable, Iterator

import hypothesis
import hypothesis.strategies as st
import pytest
import trio

from triolet.transports.codec import MessageTooLarge
from triolet.transports.control.passed_fds import close_fds
from triolet.transports.rings import shm_ring
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
from triolet.transports.rings.shm_ring import RingClosed, RingFull, RingReader, RingWriter

from ...leaks import open_fds

SLOT_BYTES = 100


@contextlib.contextmanager
def open_ring(
    readers: int = 1, slots: int = 4
) -> Iterator[tuple[RingWriter, list[RingReader], RingMemory]]:
    with contextlib.ExitStack() as stack:
        with create_ring(readers=readers, slots=slots, slot_bytes=SLOT_BYTES) as parts:
            writer = stack.enter_context(RingWriter.attach(parts.writer_fds()))
            sides = [
                stack.enter_context(RingReader.attach(parts.reader_fds(rank), rank))
                for rank in range(readers)
            ]
            memory = RingMemory(parts.memory_fd)
            stack.callback(memory.close)
        yield writer, sides, memory


@pytest.mark.parametrize("size", [0, 1, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 1, 70_000])
def test_sizes_around_a_slot(size: int) -> None:
    before = open_fds()
    with open_ring(readers=2) as (writer, readers, _):
        for fill in (b"a", b"b"):
            writer.write(fill * size)
        for reader in readers:
            assert [reader.read_nowait(), reader.read_nowait()] == [b"a" * size, b"b" * size]
    assert open_fds() == before


def test_a_reader_that_left_fills_the_ring_and_never_blocks() -> None:
    with open_ring(readers=2, slots=2) as (writer, readers, _):
        readers[1].close()
        for size in (1, 1000):
            writer.write(b"x" * size)
            assert readers[0].read_nowait() == b"x" * size
        for size in (1, 1000):
            with pytest.raises(RingFull, match="lag: 1"):
                writer.write(b"x" * size)


def test_unread_messages_outlive_their_writer() -> None:
    with open_ring() as (writer, readers, _):
        writer.write(b"small")
        writer.write(b"l" * 1000)
        writer.close()
        writer.close()
        assert readers[0].read_nowait() == b"small"
        assert readers[0].read_nowait() == b"l" * 1000


def test_a_message_cannot_be_larger_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_ring, "OVERSIZE_BYTES_MAX", 500)
    with open_ring() as (writer, readers, _):
        with pytest.raises(MessageTooLarge, match="500"):
            writer.write(b"x" * 600)
        writer.write(b"after")
        assert readers[0].read_nowait() == b"after"


def test_an_oversize_payload_that_was_not_announced_is_dropped() -> None:
    """The first reader has the payload of a write that failed at the second."""
    with open_ring(readers=2) as (writer, readers, _):
        good = writer._sides[1]
        with writer._sides[0].dup() as duplicate:
            writer._sides[1] = duplicate
            duplicate.setblocking(False)
            writer._sides[1].close()
            with pytest.raises(OSError, match="Bad file"):
                writer.write(b"lost" * 100)
        writer._sides[1] = good
        writer.write(b"kept" * 100)
        assert [reader.read_nowait() for reader in readers] == [b"kept" * 100] * 2


def test_a_stopped_reader_stays_stopped_even_with_messages_left() -> None:
    with open_ring() as (writer, readers, _):
        writer.write(b"x")
        assert readers[0].read() == b"x"
        writer.write(b"y")
        readers[0].stop()
        for _ in range(3):
            with pytest.raises(RingClosed, match="stopped"):
                readers[0].read()


async def test_a_blocked_thread_is_woken_by_a_message_and_by_stop() -> None:
    got: list[bytes | bytearray] = []

    def run_reader(reader: RingReader) -> None:
        with contextlib.suppress(RingClosed):
            while True:
                got.append(reader.read())
                trio.from_thread.run_sync(seen.set)

    with open_ring() as (writer, readers, _):
        async with trio.open_nursery() as nursery:
            seen = trio.Event()
            nursery.start_soon(trio.to_thread.run_sync, run_reader, readers[0])
            writer.write(b"x")
            with trio.fail_after(60):
                await seen.wait()
                readers[0].stop()
    assert got == [b"x"]


@pytest.mark.parametrize("attempt", range(10))  # trio runs the tasks of one burst in any order
async def test_a_wait_ends_when_it_is_stopped_and_closed_also_in_the_burst_of_its_wake_up(
    attempt: int,
) -> None:
    with (
        create_ring(readers=1, slots=4, slot_bytes=SLOT_BYTES) as parts,
        RingWriter.attach(parts.writer_fds()) as writer,
    ):
        reader = RingReader.attach(parts.reader_fds(0), 0)
        both = trio.Event()

        async def read() -> None:
            if attempt % 2:
                with pytest.raises(RingClosed):
                    await reader.wait_read()
                return
            with contextlib.suppress(RingClosed):
                assert await reader.wait_read() == b"x"

        async def stop() -> None:
            await both.wait()
            reader.stop_wait()
            reader.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(stop)
            await trio.testing.wait_all_tasks_blocked()
            if attempt % 2 == 0:
                writer.write(b"x")
                trio.lowlevel.add_instrument(_SetAfterWait(both))
            else:
                both.set()
        with pytest.raises(RingClosed):
            await reader.wait_read()


class _SetAfterWait(trio.abc.Instrument):
    """Sets the event between the wait for I/O and the tasks that it wakes."""

    def __init__(self, event: trio.Event) -> None:
        self.event = event

    def after_io_wait(self, timeout: float) -> None:
        trio.lowlevel.remove_instrument(self)
        self.event.set()


class _Thief(trio.abc.Instrument):
    """Takes a count that has made an eventfd readable before the task that it wakes runs."""

    def __init__(self, eventfd: int) -> None:
        self.eventfd = eventfd
        self.stolen = 0

    def after_io_wait(self, timeout: float) -> None:
        if not self.stolen and select.select([self.eventfd], [], [], 0)[0]:
            self.stolen = os.eventfd_read(self.eventfd)


async def test_a_wake_up_without_a_message_does_not_block_the_loop() -> None:
    with create_ring(readers=1, slots=4, slot_bytes=SLOT_BYTES) as parts:
        writer = RingWriter.attach(parts.writer_fds())
        with writer, RingReader.attach(parts.reader_fds(0), 0) as reader:
            thief = _Thief(parts.eventfds[0])
            trio.lowlevel.add_instrument(thief)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_write_later, writer)
                with trio.move_on_after(0.05):
                    pytest.fail(f"there was no count, but {await reader.wait_read()!r}")
            assert thief.stolen == 1
            os.eventfd_write(parts.eventfds[0], 1)
            assert await reader.wait_read() == b"later"


async def _write_later(writer: RingWriter) -> None:
    await trio.testing.wait_all_tasks_blocked()
    writer.write(b"later")


def _spoil_sequence(memory: RingMemory) -> None:
    memory.store(memory.geometry.slot_offset(0), 7)


def _spoil_length(memory: RingMemory) -> None:
    memory.store(memory.geometry.slot_offset(0) + 16, SLOT_BYTES + 1)


def _spoil_oversize(memory: RingMemory) -> None:
    memory.store(memory.geometry.slot_offset(0) + 8, 1)


@pytest.mark.parametrize("spoil", [_spoil_sequence, _spoil_length, _spoil_oversize])
def test_a_reader_notices_a_broken_slot(spoil: Callable[[RingMemory], None]) -> None:
    with open_ring() as (writer, readers, memory):
        writer.write(b"x")
        spoil(memory)
        with pytest.raises(RingBroken, match="the ring is broken"):
            readers[0].read_nowait()


@pytest.mark.parametrize("count", [0, 6, 2**63])
def test_a_writer_notices_a_count_that_cannot_be(count: int) -> None:
    with open_ring() as (writer, readers, memory):
        for number in (b"0", b"1", b"2", b"3"):
            writer.write(number)
        readers[0].read_nowait()
        writer.write(b"4")  # there is room as the writer has seen that one was read
        memory.store(memory.geometry.consumed_offset(0), count)
        with pytest.raises(RingBroken, match="reader 0"):
            writer.write(b"5")


def test_attaching_to_something_else_leaves_nothing_open() -> None:
    with create_ring(readers=2, slots=2, slot_bytes=10) as parts:
        before = open_fds()
        for attach in (
            lambda: RingWriter.attach(parts.writer_fds()[:-1]),
            lambda: RingWriter.attach([*parts.writer_fds()[:-1], 987_654]),
            lambda: RingReader.attach(parts.reader_fds(0), 2),
            lambda: RingReader.attach(parts.reader_fds(0)[:2], 0),
            lambda: RingReader.attach([*parts.reader_fds(0)[:2], 987_654], 0),
        ):
            with pytest.raises((RingBroken, OSError)):
                attach()
        assert open_fds() == before


operations = st.lists(
    st.tuples(st.integers(-1, 2), st.integers(0, 3 * SLOT_BYTES)), min_size=1, max_size=60
)


@pytest.mark.slow
@hypothesis.settings(deadline=None)
@hypothesis.given(operations, st.integers(1, 5))
def test_three_readers_at_their_own_pace(events: list[tuple[int, int]], slots: int) -> None:
    """-1 writes a message of the given size, 0 to 2 read at that rank; the model is three lists."""
    queues: list[list[bytes]] = [[], [], []]
    with open_ring(readers=3, slots=slots) as (writer, readers, _):
        for number, (actor, size) in enumerate(events):
            if actor >= 0:
                expected = queues[actor].pop(0) if queues[actor] else None
                assert readers[actor].read_nowait() == expected
                continue
            data = bytes((number % 256,)) * size
            longest = max(map(len, queues))
            if longest == slots:
                with pytest.raises(RingFull) as caught:
                    writer.write(data)
                slowest = [r for r, queue in enumerate(queues) if len(queue) == longest]
                assert list(caught.value.lagging) == slowest
            else:
                writer.write(data)
                for queue in queues:
                    queue.append(data)
        for reader, queue in zip(readers, queues, strict=True):
            assert [reader.read_nowait() for _ in queue] == queue
            assert reader.read_nowait() is None


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
