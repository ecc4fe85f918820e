"""Logprobs as columns: what was appended token by token comes back in one part."""

import pytest

from triolet.engine.messages import TokenLogprobs
from triolet.runtime.journal.logprob_columns import LogprobColumns


def one(number: int, width: int = 2) -> TokenLogprobs:
    """Of one token, whose bytes tell it from others."""
    item = bytes([number]) * 4
    return TokenLogprobs(width, item * width, item * width, item)


def joined(numbers: range) -> TokenLogprobs:
    ones = [one(number) for number in numbers]
    return TokenLogprobs(
        2,
        b"".join(each.token_ids for each in ones),
        b"".join(each.logprobs for each in ones),
        b"".join(each.ranks for each in ones),
    )


@pytest.mark.parametrize(
    ("cut", "counts"), [(None, [5]), (0, [5]), (5, [5]), (2, [2, 3]), (4, [4, 1])]
)
def test_tokens_that_came_one_by_one_are_one_part_but_for_a_cut(
    cut: int | None, counts: list[int]
) -> None:
    columns = LogprobColumns.of([one(number) for number in range(5)])
    assert len(columns) == 5
    found = columns.parts(cut)
    assert [count for count, _ in found] == counts
    begin = 0
    for count, part in found:
        assert part == joined(range(begin, begin + count))
        begin += count


def test_another_width_begins_another_part() -> None:
    columns = LogprobColumns.of([one(0), one(1, width=3), one(2, width=3)])
    assert [(count, part.width) for count, part in columns.parts()] == [(1, 2), (2, 3)]


def test_none_has_no_part() -> None:
    assert not LogprobColumns()
    assert LogprobColumns().parts(0) == []
