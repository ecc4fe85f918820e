"""Each task of a request, found by name, cancelled at each of its steps.

Whatever is cancelled: the client sees an end, the blocks are free, no state of the request is on
any floor, no task, thread or descriptor is left, and another request's tokens are exact.
"""

import pathlib

import pytest
import trio

from triolet.tests.contracts.engines import write_sizes
from triolet.tests.leaks import check_no_leaks
from triolet.tests.runtime.model_folders import CHAT_TEMPLATE, byte_level_tokenizer, write_folder

from .exchanges import EXCHANGES
from .requests import cancel_at_each_step, open_request_bed, tasks_of

DEADLINE_S = 120.0
# Every kind of task that a request has, in some exchange; a new one must be added, and is then
# cancelled like the others.
KINDS = {
    "connection",
    "connection-reader",
    "response",
    "choice",
    "lane",
    "socket-writer",
    "socket-ping",
    "socket-retirement",
}


@pytest.fixture(scope="session")
def null_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A tokenizer with a chat template, and sizes for the null executor."""
    folder = tmp_path_factory.mktemp("requests")
    write_folder(folder, byte_level_tokenizer(), chat_template=CHAT_TEMPLATE)
    return write_sizes(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXCHANGES)
async def test_every_task_of_a_request_at_each_step(name: str, null_folder: pathlib.Path) -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_request_bed(null_folder) as bed:
            kinds = await tasks_of(bed, EXCHANGES[name])
            assert set(kinds) <= KINDS
            for kind in kinds:
                steps = await cancel_at_each_step(bed, EXCHANGES[name], kind)
                assert steps > 0, kind


async def test_every_kind_is_in_some_exchange(null_folder: pathlib.Path) -> None:
    seen: set[str] = set()
    async with open_request_bed(null_folder) as bed:
        for exchange in EXCHANGES.values():
            seen |= set(await tasks_of(bed, exchange))
    assert seen == KINDS
