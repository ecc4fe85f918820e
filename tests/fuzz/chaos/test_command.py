"""The command's exit code, and what it says."""

import os
import signal

import pytest
import trio

from triolet.fuzz.chaos.clients import Lost
from triolet.fuzz.chaos.command import EXIT_TERMINATED, exit_code, show, until_terminated
from triolet.fuzz.chaos.history import Violation
from triolet.fuzz.chaos.options import ChaosOptions
from triolet.fuzz.chaos.report import Report


def test_green_and_red(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(7, "abc", ChaosOptions(seed=7, faults=3).words_of_replay())
    assert exit_code(report) == 0
    report.violations.append(Violation("I5", "process [4] is left"))
    assert exit_code(report) == 1
    show(report)
    assert "--seed 7 --faults 3" in capsys.readouterr().out.replace("\n", " ")
    assert report.as_json()["violations"][0]["invariant"] == "I5"


async def test_sigterm_cancels_and_lets_it_clean_up() -> None:
    cleaned = False

    async def main() -> None:
        nonlocal cleaned
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await trio.sleep_forever()
        finally:
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
