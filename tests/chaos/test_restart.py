"""Kills are no crash loop: an engine comes back at once, however often; `restart` revives one."""

import os
import pathlib
import signal
import sys

import pytest
import trio

from ..end_to_end.server import DEADLINE_S, open_server, wait_until
from ..end_to_end.streams import check_serves

# None is granted: the first that counted would give it up. More than one, as that may be luck.
KILLS = 3


@pytest.mark.slow
async def test_kills_never_give_an_engine_up_and_restart_revives_what_crashed(
    tmp_path: pathlib.Path,
) -> None:
    options = ("--engines", "2", "--executor", "null", "--restart-limit", "0")
    with trio.fail_after(3 * DEADLINE_S):
        async with open_server(tmp_path, *options) as server:
            killed: set[int] = set()

            async def is_up_again() -> bool:
                return (await server.pids()).get("engine 0", 0) not in {0, *killed} and (
                    (await server.health())[0]["state"] == "ready"
                )

            for _ in range(KILLS):
                await wait_until(is_up_again, f"engine 0 is up after {len(killed)} kills")
                killed.add(pid := (await server.pids())["engine 0"])
                os.kill(pid, signal.SIGKILL)
                await check_serves(server)
            await wait_until(is_up_again, "engine 0 is up after the last kill")
            assert "given up" not in server.log()

            os.kill((await server.pids())["engine 0"], signal.SIGSEGV)
            await wait_until(lambda: "engine 0: given up" in server.log(), "it is given up")
            words = [sys.executable, "-m", "triolet", "restart", "--engine", "0"]
            environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
            done = await trio.run_process(words, env=environment, capture_stdout=True)
            assert done.stdout.decode().strip() == "engine 0 was failed, and is restarted"
            await wait_until(is_up_again, "engine 0 is revived")
            wrong = await trio.run_process(
                [*words[:-1], "7"], env=environment, capture_stderr=True, check=False
            )
            sentence = "triolet: there is no engine 7: this server has engine 0 to 1\n"
            assert (wrong.returncode, wrong.stderr.decode()) == (1, sentence)
