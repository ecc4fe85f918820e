"""Memory that processes share in huge pages: what the kernel gives, and what it refuses."""

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from triolet.engine.kernels.binding import HUGE_PAGE_BYTES, take_memory
from triolet.engine.kernels.shared_memory import (
    SharedMapping,
    has_all_pages,
    has_huge_pages,
    protect,
    whole_pages,
)

SIZE = 3 * HUGE_PAGE_BYTES


@pytest.fixture
def fd() -> Iterator[int]:
    memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, SIZE)
    yield memory
    os.close(memory)


needs_huge_pages = pytest.mark.skipif(not has_huge_pages(), reason="the kernel merges none")


def huge_bytes(address: int) -> int:
    """How much of the mapping at this address lies in huge pages."""
    lines = iter(pathlib.Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{address:x}-"):
            fact = next(each for each in lines if each.startswith("ShmemPmdMapped"))
            return int(fact.split()[1]) * 1024
    raise AssertionError("it is not mapped")


@needs_huge_pages
def test_every_piece_gets_its_huge_page_and_keeps_its_values(fd: int) -> None:
    os.pwrite(fd, b"here", HUGE_PAGE_BYTES + 5)
    mapping = SharedMapping.of(fd, SIZE, writable=True)
    fractions: list[float] = []
    assert not has_all_pages(fd, SIZE)
    assert mapping.take_huge_pages(fractions.append)
    assert has_all_pages(fd, SIZE)
    assert not has_all_pages(fd, SIZE - HUGE_PAGE_BYTES)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert bytes(mapping.bytes[HUGE_PAGE_BYTES + 4 : HUGE_PAGE_BYTES + 10]) == b"\0here\0"
    assert huge_bytes(mapping.address) == SIZE
    assert mapping.take_huge_pages(fractions.append)  # again: nothing to do
    mapping.close()


@needs_huge_pages
def test_another_mapping_has_the_same_huge_pages(fd: int) -> None:
    first = SharedMapping.of(fd, SIZE, writable=True)
    first.take_huge_pages(lambda fraction: None)
    first.bytes[:] = 7
    second = SharedMapping.of(fd, SIZE, writable=False)
    assert second.bytes.sum() == 7 * SIZE
    assert huge_bytes(second.address) == SIZE
    for mapping in first, second:
        mapping.close()


def test_whole_pages_hold_the_size() -> None:
    assert [whole_pages(size) for size in (1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1)] == [
        HUGE_PAGE_BYTES, HUGE_PAGE_BYTES, 2 * HUGE_PAGE_BYTES,
    ]  # fmt: skip


def test_what_is_no_memory_cannot_be_mapped() -> None:
    with pytest.raises(OSError, match="mmap"):
        SharedMapping.of(-1, SIZE, writable=True)


def test_memory_that_is_protected_is_read_as_before() -> None:
    memory = take_memory(100_000)
    memory[:] = 3
    protect(memory)
    assert memory.sum() == 300_000
    take_memory(0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["protected", "shared"])
def test_a_wild_write_ends_the_process(fd: int, kind: str) -> None:
    """And does not change a byte: a stream must not go on with another token."""
    program = (
        "import ctypes, sys;"
        "from triolet.engine.kernels.binding import address_of, take_memory;"
        "from triolet.engine.kernels.shared_memory import SharedMapping, protect;"
        f"shared = SharedMapping.of({fd}, {SIZE}, writable=False).bytes;"
        "own = take_memory(8192); protect(own);"
        f"memory = shared if '{kind}' == 'shared' else own;"
        "print('here', flush=True);"
        "ctypes.memset(address_of(memory), 1, 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], pass_fds=[fd], capture_output=True, check=False
    )
    assert done.stdout == b"here\n"
    assert done.returncode == -signal.SIGSEGV
    assert os.pread(fd, 1, 0) == b"\0"
