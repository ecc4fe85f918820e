"""A conversation with a scripted person: what is typed, and when Ctrl-C is pressed."""

import contextlib
import io
import os
import pathlib
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from triolet.api.commands.chat import GREETING, HELP, HINT, NEW, TOO_LONG, TerminalChat, chat
from triolet.api.commands.options import ChatOptions
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.runtime.events import ChildReady, OnEvent

from ...leaks import check_no_leaks
from ...runtime.acting import Diary

PARAMS = SamplingParams(max_tokens=6, seed=3)
LONG = SamplingParams(max_tokens=300, seed=3, ignore_eos=True)
# A line that is not typed by then is never typed.
TYPE_BOUND_S = 60.0
DEADLINE_S = 60.0


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Screen(io.StringIO):
    """stdout; `at_write` is called after so many writes: the first is the first prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.more = threading.Condition()
        self.writes = 0
        self.at_write: dict[int, Callable[[], None]] = {}

    def write(self, text: str) -> int:
        with self.more:
            count = super().write(text)
            self.more.notify_all()
        self.writes += 1
        self.at_write.get(self.writes, lambda: None)()
        return count

    def wait_for(self, words: str) -> None:
        with self.more:
            assert self.more.wait_for(lambda: words in self.getvalue(), TYPE_BOUND_S)


@attrs.define(eq=False)
class Keyboard:
    """stdin; a line may be made by a function, which runs in the reading thread."""

    lines: list[str | Callable[[], str]]

    def isatty(self) -> bool:
        return False

    def readline(self) -> str:
        if not self.lines:
            return ""
        line = self.lines.pop(0)
        return line if isinstance(line, str) else line()


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, screen: Screen) -> Callable[..., None]:
    """Sits the scripted person down; in the test itself, since pytest changes stdout before it."""

    def type_lines(*lines: str | Callable[[], str]) -> None:
        monkeypatch.setattr("sys.stdin", Keyboard(list(lines)))
        monkeypatch.setattr("sys.stdout", screen)

    return type_lines


@asynccontextmanager
async def open_conversation(
    folder: pathlib.Path, params: SamplingParams = PARAMS, system: str = "", **bed: Any
) -> AsyncIterator[TerminalChat]:
    with trio.fail_after(DEADLINE_S):
        opened: contextlib.AbstractAsyncContextManager[Bed] = open_bed(folder, **bed)
        async with opened as made:
            yield TerminalChat(made.frontend, params, system)


def roles(conversation: TerminalChat) -> list[str]:
    return [message["role"] for message in conversation.messages]


async def test_it_asks_answers_and_remembers(
    null_folder: pathlib.Path, screen: Screen, typed: Callable[..., None]
) -> None:
    typed("hello\n", "\n", "and you?\n")
    async with open_conversation(null_folder, system="be brief") as conversation:
        await conversation.run()
    assert roles(conversation) == ["system", "user", "assistant", "user", "assistant"]
    answers = [m["content"] for m in conversation.messages if m["role"] == "assistant"]
    assert screen.getvalue() == f"> {answers[0]}\n> > {answers[1]}\n> \n"


async def test_new_forgets_what_was_said_and_quit_leaves(
    null_folder: pathlib.Path, screen: Screen, typed: Callable[..., None]
) -> None:
    typed("hello\n", "/new\n", "hello\n", "/quit\n", "never read\n")
    async with open_conversation(null_folder, system="be brief") as conversation:
        await conversation.run()
    assert roles(conversation) == ["system", "user", "assistant"]
    assert f"> {NEW}\n> " in screen.getvalue()
    assert screen.getvalue().endswith("\n> ")


async def test_help_and_words_that_are_no_command_are_not_asked_of_the_model(
    null_folder: pathlib.Path, screen: Screen, typed: Callable[..., None]
) -> None:
    typed("/help\n", "/ne w\n", "/etc/passwd?\n", " /help\n", "/exit\n", "never read\n")
    async with open_conversation(null_folder) as conversation:
        await conversation.run()
    asked = [m["content"] for m in conversation.messages if m["role"] == "user"]
    assert asked == ["/etc/passwd?", "/help"]
    assert screen.getvalue().startswith(
        f"> {HELP}\n> there is no command /ne; /help shows them\n> "
    )


async def test_ctrl_c_ends_the_answer_and_not_the_program(
    null_folder: pathlib.Path, screen: Screen, typed: Callable[..., None]
) -> None:
    typed("hello\n", "again\n")
    async with open_conversation(null_folder, LONG, window_tokens=4) as conversation:
        screen.at_write[2] = press_ctrl_c  # at the first piece of the first answer
        await conversation.run()
    answers = [m["content"] for m in conversation.messages if m["role"] == "assistant"]
    assert len(answers) == 2
    assert 0 < len(answers[0]) < len(answers[1]) / 2


async def test_ctrl_c_at_the_prompt_says_how_to_leave_and_spares_the_next_answer(
    null_folder: pathlib.Path, screen: Screen, typed: Callable[..., None]
) -> None:
    def type_after_ctrl_c() -> str:
        press_ctrl_c()
        screen.wait_for(HINT)
        return "hello\n"

    typed(type_after_ctrl_c)
    async with open_conversation(null_folder) as conversation:
        await conversation.run()
        alone = TerminalChat(conversation.runtime, PARAMS, "")
        typed("hello\n")
        await alone.run()
    assert conversation.messages == alone.messages  # the answer is whole


async def test_a_failed_answer_is_shown_and_not_remembered(
    null_folder: pathlib.Path, screen: Screen, typed: Callable[..., None]
) -> None:
    typed("word " * 600 + "\n", "hello\n")
    async with open_conversation(null_folder) as conversation:
        await conversation.run()
    assert "maximum context length" in screen.getvalue()
    assert f"; {TOO_LONG}]" in screen.getvalue()
    assert [m["content"] for m in conversation.messages if m["role"] == "user"] == ["hello"]


@pytest.mark.slow
async def test_the_whole_command(
    null_folder: pathlib.Path, screen: Screen, typed: Callable[..., None]
) -> None:
    typed("hello\n", "/bye\n")
    diary = Diary()
    report: contextlib.AbstractContextManager[OnEvent] = contextlib.nullcontext(diary)
    options = ChatOptions(temperature=0.0, max_tokens=5)
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        await chat(str(null_folder), options, engine={"executor": "null"}, report=report)
    assert screen.getvalue().startswith(f"{null_folder.name}: {GREETING}\n> ")
    assert len(diary.of(ChildReady)) == 1
