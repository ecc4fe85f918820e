"""Masks of several rows, and a row that has ended."""

import pytest

from triolet.engine.core.grammar import fill_masks, mask_bytes

from .grammars import CountingGrammar


@pytest.mark.parametrize(("vocab_size", "size"), [(1, 4), (32, 4), (33, 8), (2048, 256)])
def test_a_row_is_whole_words(vocab_size: int, size: int) -> None:
    assert mask_bytes(vocab_size) == size


def test_rows_are_in_order_and_an_ended_one_allows_all() -> None:
    first = CountingGrammar([{0, 33}], length=2, vocab_size=40)
    last = CountingGrammar([{1}, {39}], length=2, vocab_size=40)
    assert last.accept(1)
    words = fill_masks([first, None, last], 40)
    rows = [int.from_bytes(words[begin : begin + 8], "little") for begin in (0, 8, 16)]
    assert rows == [1 | 1 << 33, 2**64 - 1, 1 << 39]
    assert fill_masks([], 40) == b""
