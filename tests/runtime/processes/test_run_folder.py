"""A run's folder: private, found again, gone afterwards; a dead owner's is cleared away."""

import json
import os
import pathlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager

import msgspec
import pytest
import trio
import trio.testing

from triolet.runtime.errors import RunNotFound
from triolet.runtime.messages import ControlCall, ControlQuestion
from triolet.runtime.processes.control_server import (
    NEWS_TIMEOUT_S,
    VIEWERS_MAX,
    ControlCallFailed,
    ask_run,
    serve_control,
    watch_run,
)
from triolet.runtime.processes.news import News, NewsQueue
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
        make_run_folder("aa", url="http://x:1", model="m", version=""),
        make_run_folder("bb", url="http://x:2", model="n", version=""),
    ):
        with pytest.raises(RunNotFound, match=r"^name one of the running servers") as caught:
            find_run()
        lines = str(caught.value).splitlines()[1:]
        forms = [r"  aa  http://x:1  m, up for \d+ (s|min|h)", r"  bb  http://x:2  n, up for "]
        assert all(re.match(form, line) for form, line in zip(forms, lines, strict=True))
        with pytest.raises(RunNotFound, match="not exactly one is, or begins with, 'c'"):
            find_run("c")
        for address in ("2", "x:2", "http://x:2", "http://x:2/"):
            assert find_run(address).facts.run_id == "bb"
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


def test_a_folder_that_others_may_write_to_is_refused() -> None:
    base_folder().mkdir(mode=0o700)
    base_folder().chmod(0o777)
    with (
        pytest.raises(PermissionError, match="chmod 700"),
        make_run_folder("mine", url="", model="", version=""),
    ):
        pass


# More than a socket holds.
SNAPSHOT = "a snapshot" * 100_000


@pytest.fixture
async def folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> AsyncIterator[RunFolder]:
    deep = tmp_path / ("deep" * 30)  # more than the address of a socket has room for
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))

    async def answer(question: ControlQuestion) -> str:
        return f"the {question.call}"

    @contextmanager
    def view() -> Iterator[NewsQueue]:
        queue = NewsQueue(lambda: queue.put(SNAPSHOT, is_whole=True))
        yield queue

    with make_run_folder("ab", url="", model="", version="") as made:
        await nursery.start(serve_control, made, answer, view)
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


async def test_news_come_until_the_viewer_leaves(folder: RunFolder) -> None:
    news: list[News] = []
    with trio.fail_after(5), trio.CancelScope() as scope:

        def handle(each: News) -> None:
            news.append(each)
            scope.cancel("seen")

        await watch_run(folder, handle)
    assert news == [News([SNAPSHOT], is_whole=True)]
    assert await ask_run(folder, ControlCall.TREE) == "the tree"


async def test_a_viewer_that_is_killed_with_news_unread_ends_itself_alone(
    folder: RunFolder,
) -> None:
    """Its end of the socket is reset then, and is no end of a stream."""
    with trio.fail_after(5):
        with folder.socket_address() as address:
            stream = await trio.open_unix_socket(address)
        question = msgspec.json.encode(ControlQuestion(ControlCall.WATCH))
        await stream.send_all(question + b"\n")
        await trio.lowlevel.wait_readable(stream.socket)
        await stream.aclose()
        assert await ask_run(folder, ControlCall.TREE) == "the tree"


async def test_viewers_leave_room_for_calls(folder: RunFolder) -> None:
    question = msgspec.json.encode(ControlQuestion(ControlCall.WATCH))
    with trio.fail_after(5):
        async with AsyncExitStack() as streams:
            for _ in range(VIEWERS_MAX):
                with folder.socket_address() as address:
                    stream = await streams.enter_async_context(await trio.open_unix_socket(address))
                await stream.send_all(question + b"\n")
                await stream.receive_some(1)
            assert await ask_run(folder, ControlCall.TREE) == "the tree"
            with pytest.raises(ControlCallFailed, match="it has 8 viewers already"):
                await watch_run(folder, print)


@pytest.mark.parametrize("question", [ControlQuestion(ControlCall.WATCH), None])
async def test_who_takes_or_says_nothing_loses_the_connection(
    folder: RunFolder, question: ControlQuestion | None, autojump_clock: trio.testing.MockClock
) -> None:
    with folder.socket_address() as address:
        stream = await trio.open_unix_socket(address)
    if question is not None:
        await stream.send_all(msgspec.json.encode(question) + b"\n")
    await trio.sleep(NEWS_TIMEOUT_S + 1)
    heard = b""
    with trio.fail_after(60):
        while more := await stream.receive_some():
            heard += more
    assert len(heard) < len(SNAPSHOT)
    await stream.aclose()
    assert await ask_run(folder, ControlCall.TREE) == "the tree"


async def test_no_server_is_a_typed_error(tmp_path: pathlib.Path) -> None:
    with (
        make_run_folder("cd", url="", model="", version="") as made,
        pytest.raises(ControlCallFailed, match="could not answer"),
    ):
        await ask_run(made, ControlCall.TREE)
