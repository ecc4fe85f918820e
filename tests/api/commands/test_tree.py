"""`triolet tree` over a control socket: as lines, as JSON, and without a server."""

import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest

from triolet.api.commands.tree import tree_text
from triolet.nurseries.tasks.service import open_service
from triolet.nurseries.tasks.task_tree import ProcessTree, TaskNode
from triolet.runtime.errors import RunNotFound
from triolet.runtime.messages import ControlCall
from triolet.runtime.processes.control_server import ControlCallFailed, serve_control
from triolet.runtime.processes.run_folder import make_run_folder

TREE = ProcessTree(
    "root",
    7,
    facts={"model": "m"},
    tasks=TaskNode("main", "parked", children=[TaskNode("accept", "waiting", "connections", 2.0)]),
    processes=[ProcessTree("engine 0", 8, facts={"state": "does not answer"})],
)


@pytest.fixture(autouse=True)
def runs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Short: a socket's path has 107 bytes at most."""
    folder = tmp_path_factory.mktemp("x")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder / "triolet"


async def answer(call: ControlCall) -> str:
    assert call is ControlCall.TREE
    return msgspec.json.encode(TREE).decode()


@asynccontextmanager
async def running(run_id: str) -> AsyncIterator[None]:
    with make_run_folder(run_id, url="http://x", model="m", version="0") as folder:
        async with open_service(partial(serve_control, folder, answer), name="control-server"):
            yield


async def test_lines_name_processes_tasks_and_what_they_wait_for() -> None:
    async with running("ab12"):
        text = await tree_text(None, as_json=False)
    for words in ("root", "7", "model", "accept", "connections", "engine 0", "does not answer"):
        assert words in text
    assert text.index("accept") < text.index("engine 0")


async def test_json_is_the_tree_itself() -> None:
    async with running("ab12"):
        text = await tree_text("ab", as_json=True)
    assert msgspec.json.decode(text, type=ProcessTree) == TREE


async def test_without_a_server_the_way_out_is_told() -> None:
    with pytest.raises(RunNotFound, match="triolet serve"):
        await tree_text(None, as_json=False)


async def test_of_two_servers_one_must_be_named() -> None:
    async with running("ab12"), running("cd34"):
        with pytest.raises(RunNotFound, match="ab12, cd34; say which one"):
            await tree_text(None, as_json=False)
        with pytest.raises(RunNotFound, match="none of them is 'x'"):
            await tree_text("x", as_json=False)
        assert await tree_text("cd", as_json=False)


async def test_a_server_that_is_gone_is_told() -> None:
    with (
        make_run_folder("ab12", url="http://x", model="m", version="0"),
        pytest.raises(ControlCallFailed),
    ):
        await tree_text(None, as_json=False)
