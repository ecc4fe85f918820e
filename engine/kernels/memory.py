"""Memory for weights, keys and values: mapped, zero, in huge pages where the kernel gives them.

Must not know what is put into it.
"""

import mmap

import numpy
from numpy.typing import NDArray

Bytes = NDArray[numpy.uint8]
# A huge page of x86-64; kernels walk hundreds of megabytes, and a page of 4 KiB costs a look-up.
HUGE_PAGE_BYTES = 2 * 2**20


def take_memory(size: int) -> Bytes:
    """`size` zero bytes that begin at a huge page; freed when the last view of them is gone.

    Untouched pages cost nothing. Raises `MemoryError` or `OSError` where there is no room.
    """
    mapped = mmap.mmap(-1, max(size, 1) + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE)
    advise_huge_pages(mapped)
    whole = numpy.frombuffer(mapped, dtype=numpy.uint8)
    begin = -address_of(whole) % HUGE_PAGE_BYTES
    return whole[begin : begin + size]


def advise_huge_pages(mapped: mmap.mmap) -> None:
    """Ask for huge pages; a kernel without them is as right and slower."""
    try:
        mapped.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return


def address_of(array: NDArray[numpy.generic]) -> int:
    """Where the array's first item is."""
    return int(array.__array_interface__["data"][0])
