"""Deaths of frontends, and what they say of the streams in their homes."""

import os
import pathlib

import pytest

from triolet.runtime.journal.disk import DiskJournal, read_disk_header
from triolet.runtime.journal.disk_file import JournalDiskFile, boot_id
from triolet.runtime.journal.memory import open_mapped_journal
from triolet.runtime.journal.records import (
    HEADER_BYTES,
    REBUILDING_AT,
    SEGMENT_BYTES,
    JournalHeader,
    rebuilding_word,
)
from triolet.runtime.processes.frontend_homes import FrontendHomes
from triolet.runtime.processes.homes.journal_folder import open_journal_folder
from triolet.runtime.processes.membership import FrontendDirectory


def note_rebuilding(fd: int, term: int, *, is_on_disk: bool) -> None:
    """As a frontend does, under this term."""
    word = rebuilding_word(term, "a stream")
    if is_on_disk:
        DiskJournal.read(JournalDiskFile(fd), boot_id())[0].publish(REBUILDING_AT, word)
    else:
        with open_mapped_journal(fd, SEGMENT_BYTES) as memory:
            memory.publish(REBUILDING_AT, word)


def is_rebuilding(fd: int, *, is_on_disk: bool) -> bool:
    """Whether the next life finds that the one before died as it rebuilt a stream."""
    if is_on_disk:
        return bool(read_disk_header(JournalDiskFile(fd))[0].rebuilding)
    return bool(JournalHeader.of(os.pread(fd, HEADER_BYTES, 0)).rebuilding)


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_who_is_killed_from_outside_has_died_of_no_stream(
    tmp_path: pathlib.Path, is_on_disk: bool
) -> None:
    homes = FrontendHomes(FrontendDirectory(), lambda _: None)
    async with open_journal_folder(tmp_path / "journals", model="m", frontends=2) as folder:
        homes.folder = folder if is_on_disk else None
        homes.hold(0)
        homes.handle_gone(0, is_own_fault=False)  # before it had a process
        term, _ = homes.handle_starting(0, 7)
        fd = homes.journal(0)
        assert fd is not None
        for died_of_it, of, is_own_fault in [
            (True, term, True),
            (False, term, False),
            (True, term - 1, False),  # its death is not to forget that of the life before
        ]:
            note_rebuilding(fd, of, is_on_disk=is_on_disk)
            homes.handle_gone(0, is_own_fault=is_own_fault)
            assert is_rebuilding(fd, is_on_disk=is_on_disk) == died_of_it
        homes.close()
