"""Deaths of frontends, and what they say of the streams in their homes."""

import os
import pathlib

import pytest

from triolet.runtime.continuity.frontend_journals import FrontendJournals
from triolet.runtime.continuity.journal_folder import open_journal_folder
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
from triolet.runtime.launch.child import Gone

from ..acting import FAULT, KILLED


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
    journals = FrontendJournals()
    async with open_journal_folder(tmp_path / "journals", model="m", frontends=2) as folder:
        journals.folder = folder if is_on_disk else None
        with journals.open(2):
            journals.handle(0, Gone(KILLED))  # before it had a process
            fd = journals.handle_starting(0, 7)["journal"]
            for died_of_it, term, end in [
                (True, 7, FAULT),
                (False, 7, KILLED),
                (True, 6, KILLED),  # its death is not to forget that of the life before
            ]:
                note_rebuilding(fd, term, is_on_disk=is_on_disk)
                journals.handle(0, Gone(end))
                assert is_rebuilding(fd, is_on_disk=is_on_disk) == died_of_it


async def test_what_is_lost_is_found_by_nobody(tmp_path: pathlib.Path) -> None:
    journals = FrontendJournals()
    async with open_journal_folder(tmp_path / "journals", model="m", frontends=1) as folder:
        journals.folder = folder
        with journals.open(1):
            passed = journals.handle_starting(0, 1)
            assert passed["lock"] == folder.lock_fd
            note_rebuilding(passed["journal"], 1, is_on_disk=True)
            journals.lose(0)
            assert not is_rebuilding(journals.handle_starting(0, 2)["journal"], is_on_disk=True)
