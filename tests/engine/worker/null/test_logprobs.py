"""The null executor's logprobs are each token's own, wherever it is computed."""

import struct

from triolet.engine.step_messages import RowLogprobs
from triolet.engine.worker.null.logprobs import null_logprob, null_rows


def unpacked(rows: RowLogprobs) -> tuple[list[int], list[float], list[int]]:
    items = len(rows.token_ids) // 4
    return (
        list(struct.unpack(f"<{items}i", rows.token_ids)),
        list(struct.unpack(f"<{items}f", rows.logprobs)),
        list(struct.unpack(f"<{len(rows.ranks) // 4}i", rows.ranks)),
    )


def test_a_token_first_and_those_that_follow_it() -> None:
    ids, values, ranks = unpacked(null_rows(3, 5, [9, 7], 2, vocab_size=10))
    assert ids == [9, 9, 0, 7, 7, 8]
    assert values[:3] == [null_logprob(5, 9), null_logprob(5, 9), null_logprob(5, 0)]
    assert values[3] == null_logprob(6, 7)
    assert ranks == [1, 2]


def test_tokens_one_by_one_are_as_those_together() -> None:
    together = unpacked(null_rows(0, 1, [4, 5, 6], 1, vocab_size=10))
    single = [unpacked(null_rows(0, 1 + i, [4 + i], 1, vocab_size=10)) for i in range(3)]
    for column in range(3):
        assert [item for rows in single for item in rows[column]] == list(together[column])


def test_no_more_alternatives_than_there_are_tokens() -> None:
    assert null_rows(0, 1, [1], 20, vocab_size=3).width == 4
