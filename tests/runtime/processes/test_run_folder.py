"""A run's folder: private, found again, gone afterwards; a dead owner's is cleared away."""

import json
import os
import pathlib
from collections.abc import AsyncIterator

import pytest
import trio

from triolet.runtime.errors import RunNotFound
from triolet.runtime.messages import ControlCall, Place
from triolet.runtime.processes.control_server import ControlCallFailed, ask_run, serve_control
from triolet.runtime.processes.run_folder import (
    RunFolder,
    base_folder,
    find_run,
    live_runs,
    make_run_folder,
)


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_run_is_found_by_its_id_and_leaves_nothing() -> None:
    with make_run_folder("abcd", url="http://x", model="m", version="1") as folder:
        assert folder.path.stat().st_mode & 0o777 == 0o700
        assert find_run().facts == folder.facts
        assert find_run("ab").path == folder.path
        with pytest.raises(RunNotFound, match="abcd"):
            find_run("zz")
    assert list(base_folder().iterdir()) == []


def test_two_runs_must_be_told_apart() -> None:
    with (
        make_run_folder("aa", url="", model="", version=""),
        make_run_folder("bb", url="", model="", version=""),
    ):
        with pytest.raises(RunNotFound, match="say which one"):
            find_run()
        assert find_run("b").facts.run_id == "bb"
        assert [run.facts.run_id for run in live_runs()] == ["aa", "bb"]


def test_what_a_dead_owner_left_is_removed_and_never_found() -> None:
    with make_run_folder("dead", url="", model="", version="") as folder:
        facts = json.loads((folder.path / "run.json").read_text())
        facts["start_ticks"] += 1  # the pid was used again by another process
        (folder.path / "run.json").write_text(json.dumps(facts))
        with pytest.raises(RunNotFound):
            find_run()
        with make_run_folder("next", url="", model="", version=""):
            assert os.listdir(base_folder()) == ["next"]


def test_a_folder_in_the_making_is_left_alone(runtime_folder: pathlib.Path) -> None:
    making = base_folder() / ".making-other"
    making.mkdir(parents=True)
    with make_run_folder("mine", url="", model="", version=""):
        assert making.is_dir()
        assert find_run().facts.run_id == "mine"


def test_what_is_no_run_is_left_alone() -> None:
    """Somebody keeps a folder of his own there, or the base has become a folder of his."""
    kept = base_folder() / "thesis"
    kept.mkdir(parents=True)
    (kept / "chapter-1").write_text("years of work")
    (base_folder() / "notes").write_text("")
    with make_run_folder("mine", url="", model="", version=""):
        assert sorted(os.listdir(base_folder())) == ["mine", "notes", "thesis"]
    # A run of which a removal left half is one.
    (kept / "chapter-1").rename(kept / "control.sock")
    with make_run_folder("mine", url="", model="", version=""):
        assert sorted(os.listdir(base_folder())) == ["mine", "notes"]


def test_a_link_is_not_followed(tmp_path: pathlib.Path) -> None:
    """In a temporary folder of everybody's, somebody else may have put one there."""
    home = tmp_path / "home"
    home.mkdir()
    base_folder().symlink_to(home)
    with (
        pytest.raises(PermissionError, match="set XDG_RUNTIME_DIR"),
        make_run_folder("mine", url="", model="", version=""),
    ):
        pass
    assert list(home.iterdir()) == []


@pytest.fixture
async def folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> AsyncIterator[RunFolder]:
    deep = tmp_path / ("deep" * 30)  # more than the address of a socket has room for
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))

    async def answer(call: ControlCall, place: Place | None) -> str:
        return f"the {call}"

    with make_run_folder("ab", url="", model="", version="") as made:
        await nursery.start(serve_control, made, answer)
        yield made
        nursery.cancel_scope.cancel("the test is over")


async def test_a_question_is_answered(folder: RunFolder) -> None:
    assert await ask_run(folder, ControlCall.TREE) == "the tree"
    assert folder.socket_path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "question", [b"\n", b"nonsense\n", b'{"call": "rm"}\n', b"[]\n", b"[" * 4090 + b"\n", b"\xff\n"]
)
async def test_nonsense_is_refused_and_the_server_stays(folder: RunFolder, question: bytes) -> None:
    with folder.socket_address() as address:
        connection = await trio.open_unix_socket(address)
    async with connection as stream:
        await stream.send_all(question)
        reply = json.loads(await stream.receive_some())
    assert "call" in reply["error"]
    assert await ask_run(folder, ControlCall.TREE) == "the tree"


async def test_no_server_is_a_typed_error(tmp_path: pathlib.Path) -> None:
    with (
        make_run_folder("cd", url="", model="", version="") as made,
        pytest.raises(ControlCallFailed, match="could not answer"),
    ):
        await ask_run(made, ControlCall.TREE)
