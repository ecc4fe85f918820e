"""A disk that is full, and journals that lose their end: what they do is seen, or refused."""

import os
import pathlib
import subprocess
import sys
from random import Random

import pytest

from triolet.fuzz.chaos.faults import Void
from triolet.fuzz.chaos.surroundings.disk import fault_of, full_disk, tear
from triolet.runtime.journal.disk import DiskJournal
from triolet.runtime.journal.disk_file import JournalDiskFile, boot_id, prepare_disk_journal
from triolet.runtime.journal.journal import Journal
from triolet.runtime.journal.writer import JournalLimits, JournalWriter

APPENDS = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
while input():
    try:
        print(os.write(fd, b"more"), flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""
VALUES = 12


def journal_at(path: pathlib.Path) -> JournalDiskFile:
    """With a record for each of some values."""
    file = JournalDiskFile(os.open(path, os.O_RDWR | os.O_CREAT))
    prepare_disk_journal(file.fd, 0)
    disk, contents = DiskJournal.read(file, boot_id())
    journal = Journal.resume(JournalWriter.resume(disk, contents, 1, JournalLimits()), contents)
    for number in range(VALUES):
        journal.keep_value(f"value {number}", bytes(100))
    return file


def values_in(file: JournalDiskFile) -> list[str]:
    return list(DiskJournal.read(file, boot_id())[1].streams.values)


def test_a_file_on_a_full_disk_does_not_grow_until_there_is_room(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "frontend-0"
    path.write_text("some")
    with subprocess.Popen(
        [sys.executable, "-c", APPENDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as popen:

        def append() -> bytes:
            assert popen.stdin is not None
            assert popen.stdout is not None
            popen.stdin.write(b"go\n")
            popen.stdin.flush()
            return popen.stdout.readline()

        try:
            assert append() == b"4\n"
            with full_disk(popen.pid, path) as proof:
                assert "beyond 8 bytes" in proof
                assert append() == b"File too large\n"
            assert append() == b"4\n"
            assert path.read_text() == "somemoremore"
        finally:
            popen.kill()


def test_a_process_that_is_gone_has_no_disk(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Void), full_disk(2**22 + 1, tmp_path):
        pass


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_journal_has_lost_its_end_and_says_so(tmp_path: pathlib.Path, seed: int) -> None:
    file = journal_at(tmp_path / "frontend-0")
    try:
        whole = values_in(file)
        proof = tear(tmp_path / "frontend-0", Random(seed))
        assert fault_of(file) in proof
        assert fault_of(file) != ""
        left = values_in(file)
        assert left == whole[: len(left)]
        assert 0 < len(left) < VALUES
    finally:
        os.close(file.fd)


def test_a_journal_without_records_has_none_to_lose(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "frontend-0"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    prepare_disk_journal(fd, 0)
    os.close(fd)
    before = path.read_bytes()
    assert tear(path, Random(1)) == ""
    assert path.read_bytes() == before
