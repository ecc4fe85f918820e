"""Last words are bounded by the kernel and never an error for want of room."""

import os
from collections.abc import Iterator

import pytest

from triolet.nurseries.processes.last_words import LAST_WORDS_BYTES_MAX, LastWords, write_last_words

from ...leaks import check_no_leaks


@pytest.fixture
def words() -> Iterator[LastWords]:
    with check_no_leaks():
        words = LastWords.create()
        yield words
        words.close()
        words.close()


def test_what_is_written_is_read_and_writing_goes_on(words: LastWords) -> None:
    assert words.read() == ""
    write_last_words(words.fd, "first ")
    assert words.read() == "first "
    write_last_words(words.fd, "tränen")
    assert words.read() == "first tränen"


def test_a_text_too_long_keeps_its_end(words: LastWords) -> None:
    write_last_words(words.fd, "start")
    write_last_words(words.fd, "x" * LAST_WORDS_BYTES_MAX + "the error")
    read = words.read()
    assert len(read) == LAST_WORDS_BYTES_MAX
    assert read.startswith("startx")
    assert read.endswith("the error")
    write_last_words(words.fd, "no room left")
    assert words.read() == read


def test_the_memory_cannot_grow(words: LastWords) -> None:
    with pytest.raises(PermissionError):
        os.pwrite(words.fd, b"x", LAST_WORDS_BYTES_MAX)


def test_half_a_character_is_shown_not_raised(words: LastWords) -> None:
    os.write(words.fd, "ä".encode()[:1])
    assert words.read() == "�"
