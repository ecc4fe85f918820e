"""A journal in a memfd: what it holds is there for others, whenever its writer is killed."""

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from triolet.fuzz.doubles.journal_memory import NotedMemory
from triolet.runtime.journal.memory import (
    SIZE_BYTES,
    JournalFile,
    create_journal,
    open_mapped_journal,
)
from triolet.runtime.journal.reader import read_journal
from triolet.runtime.journal.records import (
    FILL_AT,
    HEADER_BYTES,
    SEGMENT_BYTES,
    Deletion,
    JournalHeader,
)
from triolet.runtime.journal.writer import JournalLimits, JournalWriter

from .making import admission, placement, rows, say, tokens_in

PAGE = 4096


@pytest.fixture
def fd() -> Iterator[int]:
    """A journal of small segments."""
    fd = create_journal(3, segment_bytes=PAGE)
    yield fd
    os.close(fd)


def pages(fd: int) -> int:
    """That it takes."""
    return os.fstat(fd).st_blocks * 512 // PAGE


def test_a_new_journal_is_an_empty_one_of_one_page() -> None:
    fd = create_journal(3)
    try:
        header = JournalHeader.of(JournalFile(fd).load(0, HEADER_BYTES))
        assert (header.home, header.segment_bytes) == (3, SEGMENT_BYTES)
        assert (header.begin, header.fill) == (SEGMENT_BYTES, SEGMENT_BYTES)
        assert pages(fd) == 1
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_its_size_is_sealed(fd: int) -> None:
    for size in (0, SIZE_BYTES + 1):
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(fd, size)


def test_the_double_does_what_the_memfd_does(fd: int) -> None:
    noted = NotedMemory.fresh(PAGE, home=3)
    with open_mapped_journal(fd, PAGE) as mapped:
        for memory in (noted, mapped):
            for position, size in ((PAGE, 10), (PAGE + 4000, 9000), (PAGE + 13_000, 3384)):
                memory.store(position, bytes([position % 251 + 1]) * size)
            memory.store(PAGE + 5, b"again")
            memory.publish(FILL_AT, 2**56 + 3)
            memory.free(2 * PAGE, 3 * PAGE)
            # By the system call what was stored through the mapping is there at once.
            assert memory.load(PAGE + 4000, 9000) == noted.load(PAGE + 4000, 9000)
            assert memory.load(PAGE + 4000, 1) == bytes([(PAGE + 4000) % 251 + 1])
    assert JournalFile(fd).load(0, 5 * PAGE) == noted.load(0, 5 * PAGE)
    assert JournalFile(fd).load(5 * PAGE, 10) == bytes(10)
    assert JournalFile(fd).load(SIZE_BYTES, 10) == b""
    assert JournalFile(fd).load(SIZE_BYTES - 3, 10) == bytes(3)


WITHOUT_MEMORY = """
import resource, sys
from triolet.runtime.journal.memory import open_mapped_journal
with open_mapped_journal(int(sys.argv[1]), 4096) as journal:
    journal.store(4096, b"mapped")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**20, before[1]))
    journal.store(3 * 4096 - 5, b"over two segments")
    resource.setrlimit(resource.RLIMIT_AS, before)
    journal.store(4 * 4096, b"mapped again")
"""


def test_a_process_without_memory_stores_all_the_same(fd: int) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_MEMORY, str(fd)], pass_fds=[fd], check=True)
    file = JournalFile(fd)
    for position, data in (
        (PAGE, b"mapped"),
        (3 * PAGE - 5, b"over two segments"),
        (4 * PAGE, b"mapped again"),
    ):
        assert file.load(position, len(data)) == data


def test_what_is_freed_takes_no_pages(fd: int) -> None:
    limits = JournalLimits(clean_above_bytes=4 * PAGE, turn_bytes=PAGE)
    with open_mapped_journal(fd, PAGE) as mapped:
        writer = JournalWriter.resume(mapped, read_journal(JournalFile(fd)), 1, limits)
        writer.append(admission("long"))
        writer.append(placement("long#0", 1))
        for index in range(2000):
            say(writer, rows((1, index, index)))
            for name in writer.due():
                stream = read_journal(JournalFile(fd)).streams.streams[name]
                writer.append(stream.snapshot())
        assert writer.end > 40 * PAGE
        assert pages(fd) < 12
        assert tokens_in(read_journal(JournalFile(fd))) == {"long#0": list(range(2000))}
        writer.append(Deletion(["long"]))
        assert pages(fd) <= 2


def test_a_descriptor_that_is_no_journal_is_refused() -> None:
    fd = os.memfd_create("empty")
    try:
        with (
            pytest.raises(ValueError, match="mmap length is greater"),
            open_mapped_journal(fd, PAGE),
        ):
            pass
    finally:
        os.close(fd)


WORD = """
import sys
from triolet.runtime.journal.memory import open_mapped_journal
with open_mapped_journal(int(sys.argv[1]), 4096) as journal:
    journal.publish(128, 2**64 - 1)
    print("ready", flush=True)
    while True:
        journal.publish(128, 1)
        journal.publish(128, 2**64 - 1)
"""
WRITER = """
import itertools, sys
from triolet.runtime.journal.memory import JournalFile, open_mapped_journal
from triolet.runtime.journal.reader import read_journal
from triolet.runtime.journal.writer import JournalLimits, JournalWriter
from tests.runtime.journal.making import admission, placement, rows, say
fd, term = int(sys.argv[1]), int(sys.argv[2])
limits = JournalLimits(clean_above_bytes=16384, turn_bytes=4096)
with open_mapped_journal(fd, 4096) as mapped:
    contents = read_journal(JournalFile(fd))
    writer = JournalWriter.resume(mapped, contents, term, limits)
    streams = contents.streams
    if not streams.streams:
        writer.append(admission("s"))
        writer.append(placement("s#0", 1))
    choice = read_journal(JournalFile(fd)).streams.choice("s#0")
    print("ready", flush=True)
    for index in itertools.count(len(choice.token_ids)):
        say(writer, rows((1, index, index % 1000)))
        if writer.due():
            writer.append(read_journal(JournalFile(fd)).streams.streams["s"].snapshot())
"""


def started(program: str, fd: int, *words: str) -> "subprocess.Popen[bytes]":
    """A process that has the journal and writes."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(fd), *words], pass_fds=[fd], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def end(process: "subprocess.Popen[bytes]") -> None:
    """By SIGKILL."""
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.slow
def test_a_word_is_published_by_one_store(fd: int) -> None:
    """Who looks all the time sees one value or the other. (Of `struct` also 0, between them.)"""
    process = started(WORD, fd)
    try:
        with mmap.mmap(fd, PAGE) as header, memoryview(header).cast("Q") as words:
            seen = [words[FILL_AT // 8]]
            while len(seen) < 300:  # on one processor both take turns, and each turn is one look
                word = words[FILL_AT // 8]
                if word != seen[-1]:
                    seen.append(word)
        assert set(seen) == {1, 2**64 - 1}
    finally:
        end(process)


@pytest.mark.slow
def test_a_writer_is_killed_again_and_again(fd: int) -> None:
    """Each life goes on behind the last one's tokens; none is lost that was published."""
    tokens = 0
    for term in range(1, 4):
        process = started(WRITER, fd, str(term))
        file = JournalFile(fd)
        while len(tokens_in(read_journal(file)).get("s#0", [])) < tokens + 150:
            assert process.poll() is None
        end(process)
        contents = read_journal(file)
        assert not contents.fault
        assert contents.term == term
        found = tokens_in(contents)["s#0"]
        assert found == [index % 1000 for index in range(len(found))]
        assert len(found) >= tokens + 150
        tokens = len(found)
    assert contents.header.begin > 5 * PAGE
