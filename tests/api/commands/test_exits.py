"""Expected errors are one sentence and a code; bugs keep their traceback; signals cancel."""

import os
import signal
import subprocess
import sys

import pytest
import trio
import trio.testing

from triolet.api.commands.exits import (
    EXIT_ENGINE_LOST,
    EXIT_FAILED,
    EXIT_TERMINATED,
    EXIT_UNREAD,
    EXIT_USAGE,
    TERMINATIONS,
    errors_as_sentences,
    until_terminated,
)
from triolet.engine.errors import BootRefused, InvalidParameter, ModelFolderError
from triolet.fuzz.chaos.clients import Lost
from triolet.runtime.errors import NoEngineLeft, PortInUse

EXPECTED = [
    (ModelFolderError("/m", "has no config.json"), EXIT_FAILED, "config.json"),
    (PortInUse("127.0.0.1", 80, "Address already in use"), EXIT_FAILED, "--port"),
    (NoEngineLeft("exited with code 1"), EXIT_ENGINE_LOST, "no engine is left"),
    (BootRefused("engine 0", "/m: is empty"), EXIT_FAILED, "triolet: /m: is empty"),
    (BootRefused("engine 0", "is bad", "kv_blocks"), EXIT_FAILED, "triolet: --kv-blocks is bad"),
    (InvalidParameter("max_model_len", "is bad"), EXIT_USAGE, "--max-model-len is bad"),
    (InvalidParameter("grace_s", "is bad"), EXIT_USAGE, "--grace is bad"),
]


@pytest.mark.parametrize(("error", "code", "words"), EXPECTED)
def test_an_expected_error_is_a_sentence(
    error: Exception, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught, errors_as_sentences():
        raise ExceptionGroup("of a nursery", [error])
    assert caught.value.code == code
    printed = capsys.readouterr().err
    assert printed.startswith("triolet: ")
    assert words in printed


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), errors_as_sentences():
        raise ZeroDivisionError


def test_a_command_may_expect_errors_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, errors_as_sentences(TimeoutError):
        raise TimeoutError("too late")
    assert caught.value.code == EXIT_FAILED
    assert capsys.readouterr().err == "triolet: too late\n"


def test_an_interrupt_has_the_shells_code() -> None:
    with pytest.raises(SystemExit) as caught, errors_as_sentences():
        raise BaseExceptionGroup("of a nursery", [KeyboardInterrupt()])
    assert caught.value.code == 130


def test_a_reader_who_leaves_ends_the_command_without_a_traceback() -> None:
    program = "from triolet.api.commands.exits import print_whole; print_whole('a line\\n' * 9999)"
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (ended.returncode, ended.stderr) == (EXIT_UNREAD, "")


@pytest.mark.parametrize("number", TERMINATIONS)
async def test_a_signal_cancels_and_no_other_cuts_its_clean_up_short(
    number: signal.Signals,
) -> None:
    cleaned = False

    async def main() -> None:
        nonlocal cleaned
        os.kill(os.getpid(), number)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
                os.kill(os.getpid(), number)
                await trio.testing.wait_all_tasks_blocked()
            cleaned = True

    with pytest.raises(SystemExit) as ended:
        await until_terminated(main)
    assert ended.value.code == EXIT_TERMINATED
    assert cleaned


async def test_without_it_values_and_errors_come_through() -> None:
    async def main() -> int:
        return 7

    async def broken() -> int:
        raise Lost("the server has ended")

    assert await until_terminated(main) == 7
    with pytest.raises(Lost):
        await until_terminated(broken)
