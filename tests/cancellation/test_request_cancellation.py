"""Every kind of task that a request has is in the table, and nothing else.

A row of `table` cancels all tasks of its kind, found by name, at each of their steps, in every
exchange. Whatever is cancelled: the client sees an end, the blocks are free, no state of the
request is on any floor, no task, thread or descriptor is left, and another request's tokens are
exact.
"""

import pathlib

from .exchanges import EXCHANGES
from .requests import open_request_bed, tasks_of
from .table import REQUEST_TASKS, write_null_folder


async def test_every_kind_is_in_some_exchange_and_in_the_table(tmp_path: pathlib.Path) -> None:
    seen: set[str] = set()
    async with open_request_bed(write_null_folder(tmp_path)) as bed:
        for exchange in EXCHANGES.values():
            seen |= set(await tasks_of(bed, exchange))
    assert seen == set(REQUEST_TASKS)
