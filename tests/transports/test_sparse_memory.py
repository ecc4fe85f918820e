"""Sparse memory: its size is fixed, and what is given back takes no pages."""

import errno
import os
from collections.abc import Iterator

import pytest

from triolet.transports.sparse_memory import create_sparse_memory, punch_hole

PAGE = 4096
SIZE = 2**40


@pytest.fixture
def fd() -> Iterator[int]:
    fd = create_sparse_memory("test", SIZE, b"head")
    yield fd
    os.close(fd)


def pages(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512 // PAGE


def test_only_what_is_stored_takes_pages(fd: int) -> None:
    assert os.pread(fd, 6, 0) == b"head\0\0"
    os.pwrite(fd, bytes(PAGE), SIZE - PAGE)
    assert pages(fd) == 2
    assert not os.get_inheritable(fd)


def test_its_size_is_sealed(fd: int) -> None:
    for size in (0, SIZE + 1):
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(fd, size)


def test_a_hole_is_zeros_and_no_pages(fd: int) -> None:
    os.pwrite(fd, b"x" * 4 * PAGE, 0)
    punch_hole(fd, PAGE, 3 * PAGE)
    assert pages(fd) == 2
    assert os.pread(fd, 2 * PAGE + 2, PAGE - 1) == b"x" + bytes(2 * PAGE) + b"x"
    punch_hole(fd, PAGE, PAGE)  # nothing
    assert os.pread(fd, 1, 3 * PAGE) == b"x"


def test_what_cannot_be_given_back_is_an_error(fd: int) -> None:
    with pytest.raises(OSError, match="given back: Invalid argument") as caught:
        punch_hole(fd, -1, PAGE)
    assert caught.value.errno == errno.EINVAL
