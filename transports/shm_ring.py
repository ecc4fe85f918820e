"""The step ring: one writer, a few readers, each of which gets every message, in order.

    writer                                   reader r
    payload, sequence, then length  ->  slot
    eventfd of r  +1 ------------------------> wakes; one count is one message
                    consumed[r]  <------------ copied out, slot may be written again

The eventfd's two system calls order the memory, so a reader that was woken sees the whole message;
a message half written by a writer that died is never announced. The consumed counts make "full"
exact: a write succeeds or raises `RingFull` at once, naming who lags. A reader that died never
blocks the writer for longer than the ring has slots; what to do then is the caller's decision.

A payload larger than a slot goes in a sealed memfd through a side socket, before the slot that
announces it. Waiting burns nothing: `poll` in a worker's thread, trio's in the engine core. Must
not know processes or what a step is. x86-64's store order is relied on for `consumed`.
"""

import os
import select
import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import attrs
import trio

from .array import Frame
from .codec import MalformedMessage, MessageTooLarge
from .frames import frame_bytes, pack_frames, unpack_frames
from .passed_fds import (
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
_LENGTH_OFFSET = SLOT_HEADER.size


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
    """The stop descriptor was written while a read waited, or before."""

    def __str__(self) -> str:
        return "the ring was closed by its stop signal"


@attrs.frozen
class RingReadTimeout(Exception):
    """No message came in time; the ring is as before."""

    timeout_s: float

    def __str__(self) -> str:
        return f"no message in the ring within {self.timeout_s:g} s"


class _Side:
    """What both sides have in common: a `with` block that ends in `close`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class RingWriter(_Side):
    """The only writer. All methods belong to one thread and none of them waits."""

    def __init__(self, memory: RingMemory, eventfds: list[int], sides: list[socket.socket]) -> None:
        self._memory = memory
        self._eventfds = eventfds
        self._sides = sides
        self._oversize_sent = 0
        readers = memory.geometry.readers
        # Consumed counts as last seen: they only grow, and never past `written`.
        self._consumed = [0] * readers
        self._consumed_offsets = list(map(memory.geometry.consumed_offset, range(readers)))
        self.written = 0

    @classmethod
    def attach(cls, fds: Sequence[int]) -> Self:
        """From `RingParts.writer_fds()`, duplicated: the caller still owns what it passed.

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

    @property
    def unread(self) -> int:
        """Messages that the slowest reader has not taken yet."""
        return self.written - min(self._look_at_consumed())

    def write(self, frames: Sequence[Frame]) -> None:
        """Hand one message to every reader.

        Raises `RingFull` (nothing was written), `MessageTooLarge`, `OSError` where no memfd for an
        oversize payload can be had (nothing was written), `RingBroken`.
        """
        geometry = self._memory.geometry
        consumed = self._look_at_consumed()
        oldest = min(consumed)
        if self.written - oldest >= geometry.slots:
            raise RingFull(tuple(r for r, count in enumerate(consumed) if count == oldest))
        parts = pack_frames(frames)
        length = sum(map(frame_bytes, parts))
        offset = geometry.slot_offset(self.written)
        if length <= geometry.slot_bytes:
            oversize = 0
            self._copy_in(offset + SLOT_HEADER_BYTES, parts)
        else:
            oversize = self._send_beside(parts, length)
        SLOT_HEADER.pack_into(self._memory.bytes, offset, self.written, oversize)
        self._memory.store(offset + _LENGTH_OFFSET, length)
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

    def _copy_in(self, offset: int, parts: list[Frame]) -> None:
        memory = self._memory.bytes
        for part in parts:
            end = offset + frame_bytes(part)
            memory[offset:end] = part
            offset = end

    def _send_beside(self, parts: list[Frame], length: int) -> int:
        """Pass a sealed memfd to every reader; returns its number, which is never used again.

        When one of several sends fails, readers that have the memfd already see by its number that
        no slot announced it, and drop it.
        """
        if length > OVERSIZE_BYTES_MAX:
            raise MessageTooLarge("a ring message", length, OVERSIZE_BYTES_MAX, "bytes")
        self._oversize_sent += 1
        number = self._oversize_sent
        fd = seal_in_memfd(parts, "triolet-ring-oversize")
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
    """One reader. Used by one thread or one task at a time."""

    def __init__(self, memory: RingMemory, rank: int, *, eventfd: int, side: socket.socket) -> None:
        self._memory = memory
        self._eventfd = eventfd
        self._side = side
        self._consumed_offset = memory.geometry.consumed_offset(rank)
        self._poll: tuple[int | None, select.poll] | None = None
        self.rank = rank
        # A reader that attaches to a ring in use (none does today) goes on where its count stands.
        self.read_count = memory.load(self._consumed_offset)

    @classmethod
    def attach(cls, fds: Sequence[int], rank: int) -> Self:
        """From `RingParts.reader_fds(rank)`, duplicated: the caller still owns what it passed.

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

    def read_nowait(self) -> list[Frame] | None:
        """The next message's frames, or None if there is none yet. Raises `RingBroken`."""
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return None
        return self._take()

    def read(self, stop_fd: int | None = None, timeout_s: float | None = None) -> list[Frame]:
        """Wait for the next message, blocking this thread; not for trio's thread.

        Raises `RingClosed` once `stop_fd` (an eventfd, not consumed here) is readable, even if
        messages are left; `RingReadTimeout`, `RingBroken`.
        """
        poll = self._poll_for(stop_fd)
        timeout_ms = None if timeout_s is None else timeout_s * 1000
        while True:
            ready = poll.poll(timeout_ms)
            if not ready:
                assert timeout_s is not None
                raise RingReadTimeout(timeout_s)
            if any(fd == stop_fd for fd, _ in ready):
                raise RingClosed
            frames = self.read_nowait()
            if frames is not None:
                return frames

    async def wait_read(self) -> list[Frame]:
        """Wait for the next message in trio.

        Cancellation: either the message is returned or it is still in the ring. Raises
        `RingBroken`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            frames = self.read_nowait()
            if frames is not None:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return frames
            await trio.lowlevel.wait_readable(self._eventfd)

    def close(self) -> None:
        """Unmap and close; no read may be waiting. Twice is harmless."""
        self._memory.close()
        if self._eventfd >= 0:
            os.close(self._eventfd)
        self._eventfd = -1
        self._poll = None
        self._side.close()

    def _poll_for(self, stop_fd: int | None) -> select.poll:
        if self._poll is None or self._poll[0] != stop_fd:
            poll = select.poll()
            poll.register(self._eventfd, select.POLLIN)
            if stop_fd is not None:
                poll.register(stop_fd, select.POLLIN)
            self._poll = (stop_fd, poll)
        return self._poll[1]

    def _take(self) -> list[Frame]:
        """Copy out the message that a count announced, then give its slot back."""
        memory = self._memory
        offset = memory.geometry.slot_offset(self.read_count)
        sequence, oversize = SLOT_HEADER.unpack_from(memory.bytes, offset)
        length = memory.load(offset + _LENGTH_OFFSET)
        if sequence != self.read_count:
            raise RingBroken(f"slot holds message {sequence}, expected {self.read_count}")
        data: Frame
        if oversize:
            data = self._receive_beside(oversize)
        elif length <= memory.geometry.slot_bytes:
            start = offset + SLOT_HEADER_BYTES
            data = bytes(memory.bytes[start : start + length])
        else:
            raise RingBroken(f"{length} bytes in a slot of {memory.geometry.slot_bytes}")
        self.read_count += 1
        memory.store(self._consumed_offset, self.read_count)
        try:
            return unpack_frames(data)
        except MalformedMessage as error:
            raise RingBroken(error.reason) from error

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
