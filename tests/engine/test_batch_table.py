"""The batch table: what was written before a step is read after a death, torn halves are not."""

import os
from typing import Any

import pytest

from triolet.engine.batch_table import (
    BatchRow,
    content_hash,
    open_batch_table,
    read_batches,
    table_bytes,
)
from triolet.engine.messages import AddRequest
from triolet.engine.sampling_params import SamplingParams
from triolet.nurseries.processes.progress_page import open_page
from triolet.transports.array import Array

ROWS = 4


def content(*prompt: int, **fields: Any) -> bytes:
    fields = {"request_id": "r", "attempt": 1, "sampling": SamplingParams(), **fields}
    return content_hash(AddRequest(prompt_token_ids=list(prompt), **fields))


A, B = content(1, 2), content(1, 2, 3)


def test_contents_are_a_principal_and_a_prompt() -> None:
    assert content(1, 2, attempt=2, request_id="another") == A
    rows = [Array("bfloat16", (2, 1), bytes(4)), Array("bfloat16", (2, 1), bytes(3) + b"x")]
    embedded = [content(0, 0, prompt_embeds=each) for each in rows]
    assert len({A, B, content(1, 2, principal="you"), content(0, 0), *embedded}) == 6


def test_both_steps_in_flight_are_read_the_older_one_first() -> None:
    with open_page(2, table_bytes(ROWS)) as page:
        with open_batch_table(page.fd, 2 * 64, ROWS) as table:
            assert read_batches(page.read_table(), ROWS) == []
            table.name_row(3, A, 11)
            table.write_step(7, [3], [5])
            table.name_row(0, B, 12)
            table.write_step(8, [0, 3], [9, 6])
            both = [[BatchRow(A, 11, 5)], [BatchRow(B, 12, 9), BatchRow(A, 11, 6)]]
            assert read_batches(page.read_table(), ROWS) == both
            table.write_step(9, [3], [7])
            assert read_batches(page.read_table(), ROWS) == [both[1], [BatchRow(A, 11, 7)]]
        assert [slot.pid for slot in page.read()] == [0, 0], "the slots are not touched"


def test_a_torn_half_is_passed_over() -> None:
    with open_page(1, table_bytes(ROWS)) as page:
        with open_batch_table(page.fd, 64, ROWS) as table:
            table.name_row(0, A, 1)
            table.write_step(1, [0], [1])
        os.pwrite(page.fd, (9).to_bytes(8, "little"), 64 + len(page.read_table()) // 2)
        for place in range(0, page.table_bytes, 8):  # wherever a store is missing
            os.pwrite(page.fd, (2**63).to_bytes(8, "little"), 64 + place)
            for batch in read_batches(page.read_table(), ROWS):
                assert len(batch) <= ROWS


@pytest.mark.parametrize("fd", [None, "too small"])
def test_without_room_for_a_table_nothing_is_written(fd: str | None) -> None:
    with open_page(1) as page:
        with open_batch_table(None if fd is None else page.fd, 64, ROWS) as table:
            table.name_row(0, A, 1)
            table.write_step(1, [0], [1])
        assert read_batches(page.read_table(), ROWS) == []
