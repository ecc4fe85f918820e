"""The file of a journal on disk does what its double does, and is synced by a task."""

import os
import pathlib
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from triolet.fuzz.doubles.journal_disk import SectorDisk
from triolet.runtime.errors import Overloaded
from triolet.runtime.journal import disk_file
from triolet.runtime.journal.disk import (
    DISK_HEADER_BYTES,
    MACHINE_DIED,
    DiskJournal,
    read_disk_header,
)
from triolet.runtime.journal.disk_file import (
    JournalDiskFile,
    boot_id,
    open_disk_journal,
    prepare_disk_journal,
)
from triolet.runtime.journal.records import SEGMENT_BYTES, JournalUnreadable
from triolet.runtime.journal.writer import JournalLimits

from .making import admit

PAGE = 4096
LIMITS = JournalLimits()


@pytest.fixture
def fd(tmp_path: pathlib.Path) -> Iterator[int]:
    fd = os.open(tmp_path / "journal", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def names_in(fd: int) -> list[str]:
    _, contents = DiskJournal.read(JournalDiskFile(fd), boot_id())
    return list(contents.streams.streams)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """What a write beyond is answered is an `OSError`, as that of a full disk is."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_double_does_what_the_file_does(fd: int) -> None:
    file, double = JournalDiskFile(fd), SectorDisk()
    for each in (file, double):
        each.write(10, b"a" * 600)
        each.write(3 * PAGE + 5, b"b" * PAGE)
        each.write(300, b"c" * 300)
        each.free(PAGE, 2 * PAGE)
        each.truncate(4 * PAGE + 1)
        each.sync()
        each.truncate(3 * PAGE + 100)
        each.write(3 * PAGE + 200, b"d")
        each.free(0, 0)
    size = file.size()
    assert size == double.size() == 3 * PAGE + 201
    assert file.load(0, 10 * PAGE) == double.load(0, 10 * PAGE)
    assert file.load(size - 3, 100) == double.load(size - 3, 100)
    assert file.load(size + 3, 100) == double.load(size + 3, 100) == b""
    assert file.load(2**63, 1) == b""


def test_an_empty_file_is_made_a_journal_and_a_journal_stays_one(fd: int) -> None:
    prepare_disk_journal(fd, 3)
    header, checkpoint = read_disk_header(JournalDiskFile(fd))
    assert (header.home, header.begin, header.fill) == (3, SEGMENT_BYTES, SEGMENT_BYTES)
    assert checkpoint.boot == boot_id()
    before = os.pread(fd, DISK_HEADER_BYTES, 0)
    prepare_disk_journal(fd, 3)
    assert os.pread(fd, DISK_HEADER_BYTES, 0) == before
    with pytest.raises(JournalUnreadable, match="frontend 3"):
        prepare_disk_journal(fd, 4)
    os.pwrite(fd, b"?", 0)
    with pytest.raises(JournalUnreadable):
        prepare_disk_journal(fd, 3)


def test_boots_are_distinguished(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert boot_id() == boot_id()
    monkeypatch.setattr(disk_file, "BOOT_ID", tmp_path / "none")
    assert boot_id() != boot_id()


async def test_what_is_written_is_there_for_the_next_life_and_is_synced(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_disk_journal(fd, 0)
    async with open_disk_journal(fd, 1, LIMITS, 0.001) as journal:
        assert journal.is_whole
        admit(journal, "one")
        assert names_in(fd) == ["one"]
        assert isinstance(journal.writer.memory, DiskJournal)
        while not journal.writer.memory.is_synced:
            await trio.lowlevel.checkpoint()
        admit(journal, "two")
    async with open_disk_journal(fd, 2, LIMITS, 100) as journal:
        assert [stream.admission.name for stream in journal.streams()] == ["one", "two"]
        assert isinstance(journal.writer.memory, DiskJournal)
        disk = journal.writer.memory
        journal.forget("one")
        assert not disk.is_synced
    assert disk.is_synced  # once more at the end


async def test_what_had_ended_is_loaded_from_a_journal_that_was_given_up(fd: int) -> None:
    prepare_disk_journal(fd, 0)
    async with open_disk_journal(fd, 1, LIMITS, 0.001) as journal:
        admit(journal, "one")
        journal.end("one", b"said")
        journal.keep_value("long", bytes(2 * SEGMENT_BYTES))  # all before it could be freed
    async with open_disk_journal(fd, 2, LIMITS, 0.001) as journal:
        (stream,) = journal.streams()
        journal.give_up(OSError(28, "No space left on device"))
        disk = journal.writer.memory
        assert isinstance(disk, DiskJournal)
        while not disk.is_synced:
            await trio.lowlevel.checkpoint()
    assert stream.choices[0].request.request_id == "one#0"
    assert names_in(fd) == []


async def test_of_another_boot_it_may_lack_something(
    fd: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prepare_disk_journal(fd, 0)
    for term, boot, is_whole in ((1, b"1", False), (2, b"1", True), (3, b"2", False)):
        monkeypatch.setattr(disk_file, "boot_id", lambda boot=boot: boot * 16)
        async with open_disk_journal(fd, term, LIMITS, 0.001) as journal:
            assert journal.is_whole is is_whole
            assert (MACHINE_DIED in caplog.text) is not is_whole
        caplog.clear()


@pytest.mark.parametrize("term", [1, 2])
async def test_a_journal_that_is_no_older_is_left_alone(fd: int, term: int) -> None:
    prepare_disk_journal(fd, 0)
    async with open_disk_journal(fd, 2, LIMITS, 100) as journal:
        admit(journal, "one")
    before = os.fstat(fd).st_size
    with pytest.raises(JournalUnreadable, match=f"of term 2 is not before term {term}"):
        async with open_disk_journal(fd, term, LIMITS, 100):
            raise AssertionError("not reached")
    assert os.fstat(fd).st_size == before


async def test_a_write_that_fails_gives_the_journal_up(fd: int) -> None:
    prepare_disk_journal(fd, 0)
    async with open_disk_journal(fd, 1, LIMITS, 0.001) as journal:
        admit(journal, "one")
        with file_size_limit(os.fstat(fd).st_size + 20):
            admit(journal, "two")
        assert journal.failure == "File too large"
        admit(journal, "three")
        assert not journal.streams()
        assert names_in(fd) == []
    async with open_disk_journal(fd, 2, LIMITS, 100) as journal:
        admit(journal, "four")
        assert names_in(fd) == ["four"]


async def test_a_sync_that_fails_gives_the_journal_up(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_disk_journal(fd, 0)
    async with open_disk_journal(fd, 1, LIMITS, 0.001) as journal:

        def fail(fd: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fdatasync", fail)
        admit(journal, "one")
        while not journal.failure:
            await trio.lowlevel.checkpoint()
        assert journal.failure == "Input/output error"
        assert names_in(fd) == []


async def test_a_disk_that_is_full_when_there_is_no_room_refuses_the_request_alone(
    fd: int,
) -> None:
    prepare_disk_journal(fd, 0)
    limits = JournalLimits(bytes_max=900, clean_above_bytes=0, turn_bytes=2000)
    async with open_disk_journal(fd, 1, limits, 100) as journal:
        admit(journal, "one")
        with file_size_limit(os.fstat(fd).st_size), pytest.raises(Overloaded):
            admit(journal, "two")
        assert journal.failure == "File too large"
