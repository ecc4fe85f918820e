"""The cancellation table: each row, and that it has every task of a request and of a real server.

A row cancels all tasks of its kind, found by name, at their first steps and at some later ones
(`python -m tests.cancellation`: at every one). Whatever is cancelled:
the client sees an end, the blocks are free, no state of the request is on any floor, no task,
thread or descriptor is left, and another request's tokens are exact.
"""

import pathlib
import re
from collections.abc import Iterator

import pytest

from triolet.fuzz.chaos.served_run import is_apart
from triolet.nurseries.tasks.task_tree import ProcessTree, TaskNode
from triolet.tests.cancellation.table import REQUEST_TASKS, ROWS, Row, write_null_folder
from triolet.tests.end_to_end.server import open_server, places

from .requests import EXCHANGES, open_request_bed, tasks_of

# {(process, service): the background task that it is a part of, and ends; `test_local_child`}.
PARTS = {
    ("root", "engine 0/control"): "engine-0",
    ("root", "engine 0/membership"): "engine-0",
    ("root", "engine 0/hang-watcher"): "engine-0",
    ("root", "frontend 0/control"): "frontend-0",
    ("root", "frontend 0/membership"): "frontend-0",
    ("root", "frontend 0/hang-watcher"): "frontend-0",
    ("root", "forms 0/control"): "forms-0",
    ("root", "forms 0/membership"): "forms-0",
    ("root", "forms 0/hang-watcher"): "forms-0",
}
# May be seen in a server that is ready, but need not; its readiness was asked for by a request.
PASSING = {
    ("engine", "progress"),
    ("root", "tree-request"),
    ("root", "form-link"),
    ("forms", "form-link"),
    ("forms", "form-check"),
    ("frontend", "form-sender"),
    *(("frontend", name) for name in REQUEST_TASKS),
}
PROCESSES = ("root", "frontend", "engine", "worker", "forms")
# What trio calls by its function is a helper of the task above, or trio's own.
UNNAMED = re.compile(r"<init>|[\w<>]+(\.[\w<>]+)+")


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.where}-{row.name}")
async def test_cancelled_at_each_step(row: Row) -> None:
    assert await row.run(every=False) >= 1, "the use needs every one of these tasks"


@pytest.mark.slow
def test_no_row_is_there_twice() -> None:
    keys = [(row.where, row.name) for row in ROWS]
    assert len(keys) == len(set(keys))


def _named(node: TaskNode) -> Iterator[str]:
    if not UNNAMED.fullmatch(node.name):
        yield node.name
    for child in node.children:
        yield from _named(child)


def _tasks_of(tree: ProcessTree) -> set[tuple[str, str]]:
    """(kind of process, task) of everything that has a name."""
    found = set()
    for place, process in places(tree):
        if is_apart(place):
            continue  # it comes a second after all is ready, and cannot be asked
        assert process.tasks is not None, place
        kind = place.rpartition("/")[2].split()[0]
        found |= {(kind, name) for name in _named(process.tasks)}
    return found


@pytest.mark.slow
async def test_the_table_has_every_task_of_a_real_server(tmp_path: pathlib.Path) -> None:
    folder = write_null_folder(tmp_path / "model")
    journal = ("--journal", str(tmp_path / "journal"))
    model = ("--executor", "null", "--model", str(folder))
    events = ("--kv-events-endpoint", f"ipc://{tmp_path}/kv")
    past = ("--kv-events-replay-endpoint", f"ipc://{tmp_path}/past")
    async with open_server(tmp_path, *model, *journal, *events, *past) as server:
        tree = await server.tree()
        while any(
            process.tasks is None for _, process in places(tree) if process.name == "forms 0"
        ):
            tree = await server.tree()  # no start waits for it
        seen = _tasks_of(tree)
    listed = {(row.where, row.name) for row in ROWS if row.where in PROCESSES}
    assert seen - set(PARTS) - PASSING == listed - PASSING
    assert set(PARTS) <= seen
    assert {(where, task) for (where, _), task in PARTS.items()} <= listed


async def test_every_kind_is_in_some_exchange_and_in_the_table(tmp_path: pathlib.Path) -> None:
    seen: set[str] = set()
    async with open_request_bed(write_null_folder(tmp_path)) as bed:
        for exchange in EXCHANGES.values():
            seen |= set(await tasks_of(bed, exchange))
    assert seen == set(REQUEST_TASKS)
