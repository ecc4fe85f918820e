"""Lines as a person types them, over a pipe in a terminal's place."""

import os
import pathlib
from collections.abc import Iterator

import pytest
import trio
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from triolet.api.commands.lines import EditedLines

DEADLINE_S = 30.0
UP, LEFT, CTRL_C, CTRL_D = "\x1b[A", "\x1b[D", "\x03", "\x04"


@pytest.fixture(autouse=True)
def state(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "triolet"


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe:
        yield pipe


def runs(lines: EditedLines) -> bool:
    return lines.session.app.is_running


async def read(lines: EditedLines) -> str | None:
    with trio.fail_after(DEADLINE_S):
        return await lines.read()


async def test_a_line_is_edited_and_the_one_before_comes_back(
    keys: PipeInput, state: pathlib.Path
) -> None:
    lines = EditedLines.of(keys, DummyOutput())
    keys.send_text(f"helo{LEFT}l\r")
    assert await read(lines) == "hello"
    keys.send_text(f"{UP}!\r")
    assert await read(lines) == "hello!"
    later = EditedLines.of(keys, DummyOutput())
    keys.send_text(f"{UP}\r")
    assert await read(later) == "hello!"
    assert os.listdir(state) == ["history"]


async def test_the_end_and_ctrl_c(keys: PipeInput) -> None:
    lines = EditedLines.of(keys, DummyOutput())
    keys.send_text(CTRL_C)
    with pytest.raises(KeyboardInterrupt):
        await read(lines)
    keys.send_text(CTRL_D)
    assert await read(lines) is None


async def test_cancelled_it_gives_the_terminal_back(keys: PipeInput) -> None:
    lines = EditedLines.of(keys, DummyOutput())
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lines.read)
            while not runs(lines):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel("the engine is lost")
    assert not runs(lines)
    keys.send_text("hello\r")
    assert await read(lines) == "hello"


async def test_without_a_place_for_a_history_there_is_one_all_the_same(
    keys: PipeInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    lines = EditedLines.of(keys, DummyOutput())
    keys.send_text("a\r")
    assert await read(lines) == "a"
    keys.send_text(f"{UP}b\r")
    assert await read(lines) == "ab"
