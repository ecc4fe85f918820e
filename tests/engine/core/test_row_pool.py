"""The row pool: smallest first, and free only when a step has named the row."""

import pytest

from triolet.engine.core.row_pool import RowPool


def test_smallest_free_row_is_taken() -> None:
    pool = RowPool(3)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    pool.release(2)
    pool.release(0)
    assert pool.name_released() == [2, 0]
    assert pool.take() == 0
    pool.check_invariants([0, 1])


def test_row_is_not_free_before_it_was_named() -> None:
    pool = RowPool(1)
    row = pool.take()
    pool.release(row)
    pool.check_invariants([])
    with pytest.raises(IndexError):
        pool.take()
    assert pool.name_released() == [row]
    assert pool.name_released() == []
    assert pool.take() == row


def test_row_that_nobody_has_cannot_be_released() -> None:
    with pytest.raises(KeyError):
        RowPool(1).release(0)


def test_lost_row_fails_the_invariants() -> None:
    pool = RowPool(2)
    pool.take()
    with pytest.raises(AssertionError):
        pool.check_invariants([])
