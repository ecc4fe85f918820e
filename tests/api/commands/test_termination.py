"""A signal cancels a command, which cleans up."""

import os
import signal

import pytest
import trio

from triolet.api.commands.termination import EXIT_TERMINATED, TERMINATIONS, until_terminated
from triolet.fuzz.chaos.clients import Lost


@pytest.mark.parametrize("number", TERMINATIONS)
async def test_a_signal_cancels_and_lets_it_clean_up(number: signal.Signals) -> None:
    cleaned = False

    async def main() -> None:
        nonlocal cleaned
        os.kill(os.getpid(), number)
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
