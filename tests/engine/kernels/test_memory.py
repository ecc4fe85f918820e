"""Memory is zero, begins at a huge page, and lives as long as a view of it."""

import numpy
import pytest

from triolet.engine.kernels.memory import HUGE_PAGE_BYTES, address_of, take_memory


@pytest.mark.parametrize("size", [1, HUGE_PAGE_BYTES + 5])
def test_memory_is_zero_and_aligned(size: int) -> None:
    memory = take_memory(size)
    assert len(memory) == size
    assert address_of(memory) % HUGE_PAGE_BYTES == 0
    assert not memory.any()


def test_a_view_keeps_it() -> None:
    view = take_memory(64).view(numpy.int32)[4:]
    view[:] = 7
    assert view.tolist() == [7] * 12
