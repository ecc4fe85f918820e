"""Control socket of a running server and its client: answers, news, and callers that do wrong."""

import json
import pathlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager

import msgspec
import pytest
import trio
import trio.testing

from triolet.runtime.control.calls import ControlCall, ControlQuestion, News
from triolet.runtime.control.client import ControlCallFailed, ask_run, watch_run
from triolet.runtime.control.run_folder import RunFolder, make_run_folder
from triolet.runtime.fleet.control_server import NEWS_TIMEOUT_S, VIEWERS_MAX, serve_control
from triolet.runtime.fleet.news import NewsQueue

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
