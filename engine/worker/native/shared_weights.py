"""Weights that exist once: one memfd of a run, filled by the first of its workers, read by all.

    not sealed   who has the lock fills it; one that dies leaves it not sealed and not locked
    sealed       complete, and the same for ever: all map it read-only

The seals are the whole protocol. No process can change a byte any more, so that a wild write is a
SIGSEGV and not another token, and no owner has to live: who holds a descriptor holds the weights.
Whether they are what a worker would have packed itself is said by the *key*, a hash of all that
decides; the files are named beside it, so that a folder which was exchanged meanwhile is noticed.
"""

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import msgspec

from ...kernels.binding import Bytes
from ...kernels.shared_memory import SharedMapping, whole_pages
from ..executor_interface import Pause

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
# How often the lock is asked for; who waits for it has seconds to wait.
LOCK_POLL_S = 0.02
_LENGTH = struct.Struct("<Q")
# Room behind the weights for name, size and time of each file: thousands at most.
RECORD_BYTES_MAX = 2**20
Progress = Callable[[float], None]


@attrs.frozen(kw_only=True)
class WeightsRecord:
    """Record of weights: the `key` they were made for, the files they were made from.

    `files` are names, sizes and times of change; `numerics_id` is what a worker with them promises.
    """

    key: str
    numerics_id: str
    files: list[tuple[str, int, int]]


@attrs.frozen(eq=False)
class SharedWeights:
    """`memory` is read-only, and mapped until the process ends."""

    memory: Bytes
    record: WeightsRecord


def is_sealed(fd: int) -> bool:
    """Whether the memfd is complete."""
    return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS


def share_weights(
    fd: int,
    key: str,
    size: int,
    *,
    fill: Callable[[Bytes], WeightsRecord],
    pause: Pause,
    progress: Progress,
) -> SharedWeights | None:
    """The run's weights, `size` bytes of this key; filled by `fill` unless another worker has.

    None where they cannot be shared: those that are there have another key, or the kernel has no
    huge pages for them. `progress` gets 0 while another worker fills. Raises what `fill` and
    `pause` raise, and `MemoryError` or `OSError` where there is no room.
    """
    while not is_sealed(fd):
        with _try_lock(fd) as ours:
            # The one before us may have ended between the two lines.
            if ours and not is_sealed(fd) and not _fill(fd, size, fill, progress):
                return None
        if not ours:
            progress(0.0)
            pause(LOCK_POLL_S)
    record = _read_record(fd, size)
    if record is None or record.key != key:
        return None
    return SharedWeights(SharedMapping.of(fd, size, writable=False).bytes, record)


@contextmanager
def _try_lock(fd: int) -> Iterator[bool]:
    """The lock of the process, which ends with it; False if another one has it."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        yield False
        return
    try:
        yield True
    finally:
        fcntl.lockf(fd, fcntl.LOCK_UN)


def _fill(fd: int, size: int, fill: Callable[[Bytes], WeightsRecord], progress: Progress) -> bool:
    """Fill and seal; False, and empty, where there are no huge pages."""
    whole = whole_pages(size + RECORD_BYTES_MAX)
    os.ftruncate(fd, whole)
    mapping = SharedMapping.of(fd, whole, writable=True)
    try:
        if not mapping.take_huge_pages(lambda fraction: progress(0.0)):
            os.ftruncate(fd, 0)
            return False
        record = msgspec.msgpack.encode(fill(mapping.bytes[:size]))
    finally:
        mapping.close()  # memory that is mapped for writing cannot be sealed
    if len(record) > RECORD_BYTES_MAX - _LENGTH.size:
        raise ValueError(f"a record of {len(record)} bytes")
    os.pwrite(fd, record, size)
    os.pwrite(fd, _LENGTH.pack(len(record)), whole - _LENGTH.size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return True


def _read_record(fd: int, size: int) -> WeightsRecord | None:
    """The record behind so many bytes; None if it is that of other weights."""
    whole = os.fstat(fd).st_size
    if whole != whole_pages(size + RECORD_BYTES_MAX):
        return None
    (length,) = _LENGTH.unpack(os.pread(fd, _LENGTH.size, whole - _LENGTH.size))
    try:
        return msgspec.msgpack.decode(os.pread(fd, length, size), type=WeightsRecord)
    except msgspec.MsgspecError:
        return None  # of weights that happen to be as large
