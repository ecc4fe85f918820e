"""Questions over the control socket: answered, refused, or cut off; the server stays."""

import json
import pathlib
from collections.abc import AsyncIterator

import pytest
import trio

from triolet.runtime.messages import ControlCall
from triolet.runtime.processes.control_server import ControlCallFailed, ask_run, serve_control
from triolet.runtime.processes.run_folder import RunFolder, make_run_folder


@pytest.fixture
async def folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> AsyncIterator[RunFolder]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def answer(call: ControlCall) -> str:
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
    async with await trio.open_unix_socket(folder.socket_path) as stream:
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
