"""File of a journal on disk, and the task that syncs it.

Written by `pwrite`: a full disk, a quota or a broken disk is an `OSError` of the one call, where a
store into a mapped file would end the process by SIGBUS.
"""

import logging
import os
import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import open_service
from ...transports.sparse_memory import punch_hole
from .disk import DiskJournal, fresh_disk_journal, read_disk_header
from .journal import Journal
from .records import SEGMENT_BYTES, JournalUnreadable
from .writer import JournalLimits, JournalWriter

logger = logging.getLogger(__name__)
BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
# Time for the last records, when this process ends in order; a disk that takes longer hangs.
LAST_SYNC_S = 1.0


@attrs.frozen
class JournalDiskFile:
    """The `DiskFile` behind a descriptor, which the caller owns."""

    fd: int

    def load(self, position: int, size: int) -> bytes:
        return os.pread(self.fd, size, position) if position < self.size() else b""

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def write(self, position: int, data: bytes) -> None:
        """Write all of it: a full disk may take a part, and refuses the rest. Raises `OSError`."""
        done = os.pwrite(self.fd, data, position)
        while done < len(data):
            done += os.pwrite(self.fd, data[done:], position + done)

    def truncate(self, size: int) -> None:
        """Make it as large."""
        os.ftruncate(self.fd, size)

    def sync(self) -> None:
        """Data, and what of its size and extents is needed to find it again."""
        os.fdatasync(self.fd)

    def free(self, begin: int, end: int) -> None:
        """Punch a hole. Raises `OSError`."""
        punch_hole(self.fd, begin, end)


def boot_id() -> bytes:
    """Id of this boot of the machine; an id that equals no other where it cannot be had."""
    try:
        return bytes.fromhex(BOOT_ID.read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return os.urandom(16)


def prepare_disk_journal(fd: int, home: int, segment_bytes: int = SEGMENT_BYTES) -> None:
    """Make an empty file a journal; one that is a journal of this home stays as it is.

    Raises `JournalUnreadable`, `OSError`: also where the file system cannot free what a file
    begins with.
    """
    file = JournalDiskFile(fd)
    if file.size():
        header, _ = read_disk_header(file)
        if header.home != home:
            raise JournalUnreadable(f"this is the journal of frontend {header.home}")
        return
    file.truncate(segment_bytes)
    file.free(0, segment_bytes)
    file.write(0, fresh_disk_journal(home, boot_id(), segment_bytes))
    os.fsync(fd)


@attrs.define(eq=False)
class JournalSync:
    """Syncs a journal some time after it was written to, in a thread; asleep otherwise.

    `unsynced` is rung by the disk, and at the start.
    """

    journal: Journal
    disk: DiskJournal
    unsynced: Doorbell
    period_s: float

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `journal-sync`. A failure gives up the journal, and ends nothing else.

        Cancellation: it syncs once more, for a bounded time.
        """
        task_status.started()
        is_good = True
        try:
            while is_good:
                with waiting_for("records"):
                    await self.unsynced.wait()
                await trio.sleep(self.period_s)
                is_good = await self._sync()
            await trio.sleep_forever()
        finally:
            if is_good and not self.disk.is_synced:
                with trio.move_on_after(LAST_SYNC_S, shield=True):
                    await self._sync()

    async def _sync(self) -> bool:
        """Whether it could.

        Cancelled, it is waited for: a process of which a thread hangs in the kernel cannot end
        either, and no other may have the descriptor before.
        """
        self.unsynced.clear()
        order = self.disk.begin_sync()
        if self.journal.failure:
            # Given up; what has ended is loaded from it for as long as this life lasts.
            order = attrs.evolve(order, free_end=order.free_begin)
        try:
            await trio.to_thread.run_sync(order.carry_out, self.disk.file)
            self.disk.end_sync(order)
        except OSError as error:
            self.journal.give_up(error)
            return False
        return True


@asynccontextmanager
async def open_disk_journal(
    fd: int, term: int, limits: JournalLimits, sync_s: float
) -> AsyncIterator[Journal]:
    """Open a journal in a file, which is synced `sync_s` after something was written.

    Raises `JournalUnreadable`, `OSError`.
    """
    unsynced = Doorbell()
    unsynced.ring()
    disk, contents = DiskJournal.read(JournalDiskFile(fd), boot_id(), unsynced.ring)
    if contents.fault:
        logger.error("the journal ends before its end: %s", contents.fault)
    if not contents.is_before(term):
        reason = f"record {contents.number} of term {contents.term} is not before term {term}"
        raise JournalUnreadable(f"the journal's {reason}")
    writer = JournalWriter.resume(disk, contents, term, limits)
    sync = JournalSync(Journal.resume(writer, contents), disk, unsynced, sync_s)
    async with open_service(sync.run, name="journal-sync"):
        yield sync.journal
