"""Step ring in shared memory: one writer, several readers, each gets every message, in order.

    writer                                   reader r
    payload, then its header  ----->  slot
    eventfd of r  +1 ------------------------> wakes; one count is one message
                    consumed[r]  <------------ copied out, slot may be written again

The eventfd's two system calls order the memory, so a reader that was woken sees the whole message;
a message half written by a writer that died is never announced. The consumed counts make "full"
exact: a write succeeds or raises `RingFull` at once, naming those that lag. A dead reader never
blocks the writer for longer than the ring has slots; what to do then is the caller's decision.

A payload larger than a slot goes in a sealed memfd through a side socket, before the slot that
announces it. A message is one run of bytes, copied once on each side: a step costs one system call
a side and nothing is made that is not handed on. Waiting burns nothing: a worker's thread blocks in
reading its eventfd, the engine core's task in trio. x86-64's store order is relied on for
`consumed`.
"""

import os
import socket
import struct
from collections.abc import Sequence
from typing import Self

import attrs
import trio

from ..codec import MalformedMessage, MessageTooLarge
from ..control.passed_fds import (
    ANCILLARY_BYTES,
    RECEIVE_FLAGS,
    close_fds,
    fds_from_ancillary,
    fds_to_ancillary,
    read_sealed,
    seal_in_memfd,
)
from .ring_memory import (
    READER_FDS,
    SLOT_HEADER,
    SLOT_HEADER_BYTES,
    RingBroken,
    RingMemory,
    duplicate_fds,
)

# A step of 1 M prompt tokens is 5 MB; beyond this is a mistake, not a step.
OVERSIZE_BYTES_MAX = 256 * 2**20
_OVERSIZE_NUMBER = struct.Struct("<Q")


@attrs.frozen
class RingFull(Exception):
    """Every slot waits for a reader; `lagging` are the ranks of those that have the oldest unread.

    (Or a lagging reader's side socket is full of oversize payloads.) Nothing was written. The same
    message may be written once a reader has gone on.
    """

    lagging: tuple[int, ...]

    def __str__(self) -> str:
        return f"the ring is full; readers that lag: {', '.join(map(str, self.lagging))}"


@attrs.frozen
class RingClosed(Exception):
    """The reader was stopped while a read waited, or before."""

    def __str__(self) -> str:
        return "the ring's reader was stopped"


class _Side:
    """Common part of both sides: a `with` block that ends in `close`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RingWriter(_Side):
    """The only writer. All methods belong to one thread and none of them waits."""

    def __init__(self, memory: RingMemory, eventfds: list[int], sides: list[socket.socket]) -> None:
        self._memory = memory
        self._eventfds = eventfds
        self._sides = sides
        self._oversize_sent = 0
        geometry = memory.geometry
        self._slots = [geometry.slot_offset(number) for number in range(geometry.slots)]
        # Consumed counts as last seen: they only grow, and never past `written`.
        self._consumed = [0] * geometry.readers
        self._consumed_offsets = list(map(geometry.consumed_offset, range(geometry.readers)))
        # Count up to which messages fit, by the readers' counts as last seen; looked at again once
        # reached.
        self._room_until = geometry.slots
        self.written = 0

    @classmethod
    def attach(cls, fds: Sequence[int]) -> Self:
        """Attach to `RingParts.writer_fds()`, duplicated: the caller still owns what it passed.

        Raises `RingBroken` if these are not a ring's, `OSError`.
        """
        memory = RingMemory(fds[0])
        readers = memory.geometry.readers
        try:
            if len(fds) != 1 + 2 * readers:
                raise RingBroken(f"{len(fds)} descriptors for a writer to {readers} readers")
            copies = duplicate_fds(fds[1:])
        except BaseException:
            memory.close()
            raise
        sides = [_side_socket(fd) for fd in copies[readers:]]
        return cls(memory, copies[:readers], sides)

    def write(self, data: bytes | bytearray) -> None:
        """Hand one message to every reader.

        Raises `RingFull` (nothing was written), `MessageTooLarge`, `OSError` where no memfd for an
        oversize payload can be had (nothing was written), `RingBroken`.
        """
        if self.written == self._room_until:
            self._make_room()
        memory = self._memory.bytes
        offset = self._slots[self.written % len(self._slots)]
        length = len(data)
        oversize = 0
        if length <= self._memory.geometry.slot_bytes:
            start = offset + SLOT_HEADER_BYTES
            memory[start : start + length] = data
        else:
            oversize = self._send_beside(data)
        SLOT_HEADER.pack_into(memory, offset, self.written, oversize, length)
        self.written += 1
        for fd in self._eventfds:
            os.eventfd_write(fd, 1)

    def close(self) -> None:
        """Unmap and close; readers may still take what was written. Twice is harmless."""
        self._memory.close()
        close_fds(self._eventfds)
        self._eventfds = []
        for side in self._sides:
            side.close()

    def _look_at_consumed(self) -> list[int]:
        for rank, before in enumerate(self._consumed):
            count = self._memory.load(self._consumed_offsets[rank])
            if not before <= count <= self.written:
                raise RingBroken(f"reader {rank} says {count} consumed of {self.written}")
            self._consumed[rank] = count
        return self._consumed

    def _make_room(self) -> None:
        consumed = self._look_at_consumed()
        oldest = min(consumed)
        self._room_until = oldest + len(self._slots)
        if self.written == self._room_until:
            raise RingFull(tuple(r for r, count in enumerate(consumed) if count == oldest))

    def _send_beside(self, data: bytes | bytearray) -> int:
        """Pass a sealed memfd to every reader; returns its number, which is never used again.

        When one of several sends fails, readers that have the memfd already see by its number that
        no slot announced it, and drop it.
        """
        if len(data) > OVERSIZE_BYTES_MAX:
            raise MessageTooLarge("a ring message", len(data), OVERSIZE_BYTES_MAX, "bytes")
        self._oversize_sent += 1
        number = self._oversize_sent
        fd = seal_in_memfd([data], "triolet-ring-oversize")
        try:
            for rank, side in enumerate(self._sides):
                try:
                    side.sendmsg([_OVERSIZE_NUMBER.pack(number)], fds_to_ancillary([fd]))
                except (BrokenPipeError, ConnectionResetError):
                    pass  # this reader is gone; its count stands still and fills the ring
                except BlockingIOError:
                    raise RingFull((rank,)) from None
        finally:
            os.close(fd)
        return number


class RingReader(_Side):
    """Reader of a ring, used by one thread with `read`, or after that by one task with the
    others."""

    def __init__(self, memory: RingMemory, rank: int, *, eventfd: int, side: socket.socket) -> None:
        self._memory = memory
        self._eventfd = eventfd
        self._side = side
        geometry = memory.geometry
        self._slots = [geometry.slot_offset(number) for number in range(geometry.slots)]
        self._consumed_offset = geometry.consumed_offset(rank)
        self._stopped = False
        # `read` alone may block; a task's read must never block the loop.
        self._is_blocking = True
        self.rank = rank
        # A reader that attaches to a ring in use (none does today) goes on where its count stands.
        self.read_count = memory.load(self._consumed_offset)

    @classmethod
    def attach(cls, fds: Sequence[int], rank: int) -> Self:
        """Attach to `RingParts.reader_fds(rank)`, duplicated: the caller still owns what it passed.

        Raises `RingBroken` if these are not a ring's, `OSError`.
        """
        if len(fds) != READER_FDS:
            raise RingBroken(f"{len(fds)} descriptors for a reader")
        memory = RingMemory(fds[0])
        try:
            if not 0 <= rank < memory.geometry.readers:
                raise RingBroken(f"no reader {rank} among {memory.geometry.readers}")
            eventfd, side = duplicate_fds(fds[1:])
        except BaseException:
            memory.close()
            raise
        return cls(memory, rank, eventfd=eventfd, side=_side_socket(side))

    def read(self) -> bytes | bytearray:
        """Wait for the next message, blocking this thread; not for trio's thread.

        Raises `RingClosed` once `stop` was called, even if messages are left; `RingBroken`.
        """
        if self._stopped:
            raise RingClosed
        while True:
            try:
                os.eventfd_read(self._eventfd)
                break
            except InterruptedError:
                continue
        if self._stopped:
            raise RingClosed
        return self._take()

    def stop(self) -> None:
        """End `read`, the one that waits and every later one; from any thread, before `close`."""
        self._stopped = True
        # A count that announces nothing: it is spent on waking the read that waits, if one does.
        os.eventfd_write(self._eventfd, 1)

    async def wait_read(self) -> bytes | bytearray:
        """Wait for the next message in trio.

        Cancellation: either the message is returned or it is still in the ring. Raises
        `RingBroken`, or `RingClosed` once `stop_wait` was called.
        """
        while not self._stopped:
            try:
                await trio.lowlevel.wait_readable(self._eventfd)
            except trio.ClosedResourceError:
                break
            # When `stop_wait` came after the wake-up, the descriptor may be closed by now.
            data = None if self._stopped else self.read_nowait()
            if data is not None:  # else the wake-up was spurious
                return data
        raise RingClosed

    def stop_wait(self) -> None:
        """End `wait_read`, the one that waits and every later one; `close` may follow at once."""
        self._stopped = True
        trio.lowlevel.notify_closing(self._eventfd)

    def read_nowait(self) -> bytes | bytearray | None:
        """The next message, or None if there is none yet. Raises `RingBroken`."""
        if self._is_blocking:
            os.set_blocking(self._eventfd, False)
            self._is_blocking = False
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return None
        return self._take()

    def close(self) -> None:
        """Unmap and close; no read may be waiting. Twice is harmless."""
        self._memory.close()
        if self._eventfd >= 0:
            os.close(self._eventfd)
        self._eventfd = -1
        self._side.close()

    def _take(self) -> bytes | bytearray:
        """Copy out the message that a count announced, then give its slot back."""
        memory = self._memory
        number = self.read_count
        offset = self._slots[number % len(self._slots)]
        sequence, oversize, length = SLOT_HEADER.unpack_from(memory.bytes, offset)
        if sequence != number:
            raise RingBroken(f"slot holds message {sequence}, expected {number}")
        data: bytes | bytearray
        if oversize:
            data = self._receive_beside(oversize)
        elif length <= memory.geometry.slot_bytes:
            start = offset + SLOT_HEADER_BYTES
            data = memory.bytes[start : start + length]
        else:
            raise RingBroken(f"{length} bytes in a slot of {memory.geometry.slot_bytes}")
        self.read_count = number + 1
        memory.store(self._consumed_offset, number + 1)
        return data

    def _receive_beside(self, number: int) -> bytearray:
        """The payload with this number; earlier ones were never announced and are dropped."""
        while True:
            try:
                data, ancillary, flags, _ = self._side.recvmsg(
                    _OVERSIZE_NUMBER.size, ANCILLARY_BYTES, RECEIVE_FLAGS
                )
                fds = fds_from_ancillary(ancillary, flags)
            except (BlockingIOError, ConnectionResetError, MalformedMessage) as error:
                raise RingBroken(f"oversize payload {number} did not come") from error
            try:
                if len(data) != _OVERSIZE_NUMBER.size or len(fds) != 1:
                    raise RingBroken(f"oversize payload {number} did not come")
                if _OVERSIZE_NUMBER.unpack(data)[0] == number:
                    return read_sealed(fds[0], OVERSIZE_BYTES_MAX)
            except MalformedMessage as error:
                raise RingBroken(error.reason) from error
            finally:
                close_fds(fds)


def _side_socket(fd: int) -> socket.socket:
    """Owns `fd`. It is non-blocking for both holders: that flag belongs to the open file."""
    side = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)
    side.setblocking(False)
    return side
