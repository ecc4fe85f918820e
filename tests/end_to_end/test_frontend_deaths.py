"""kill -9 of frontends in mid-stream: connections go on, or clients come back by number.

One server with its default settings but for the number of frontends, and the bundled model.
"""

import os
import pathlib
import signal

import pytest
import trio

from triolet.runtime.messages import ControlCall, Place, Role
from triolet.runtime.processes.control_server import ask_run

from .resumed import ask_all, check_same
from .server import DEADLINE_S, open_server

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("is_held", [True, False], ids=["connections go on", "by number"])
@pytest.mark.parametrize("with_engine", [False, True], ids=["alone", "with the engine"])
async def test_a_stream_of_a_killed_frontend_goes_on(
    tmp_path: pathlib.Path, with_engine: bool, is_held: bool
) -> None:
    options = [] if is_held else ["--no-takeover"]
    with trio.fail_after(3 * DEADLINE_S):
        async with open_server(tmp_path, "--frontends", "2", *options) as server:
            await server.wait_linked(2, 1)
            wanted = await ask_all(server, "undisturbed")
            pids = await server.pids()
            victims = [pids["frontend 0"], pids["frontend 1"]]

            async def kill() -> None:
                for pid in victims + [pids["engine 0"]] * with_engine:
                    os.kill(pid, signal.SIGKILL)

            check_same(await ask_all(server, "killed", kill), wanted, is_held=is_held)


@pytest.mark.parametrize("is_held", [True, False], ids=["connections go on", "by number"])
async def test_a_stream_that_outlasts_the_grace_of_a_restart_goes_on(
    tmp_path: pathlib.Path, is_held: bool
) -> None:
    options = [] if is_held else ["--no-takeover"]
    with trio.fail_after(3 * DEADLINE_S):
        async with open_server(tmp_path, "--frontends", "2", "--grace", "0.1", *options) as server:
            await server.wait_linked(2, 1)
            wanted = await ask_all(server, "undisturbed")

            async def restart_both() -> None:
                for rank in range(2):
                    place = Place(Role.FRONTEND, rank)
                    await ask_run(server.run_folder(), ControlCall.RESTART, place)

            found = await ask_all(server, "restarted", restart_both)
            check_same(found, wanted, is_held=is_held)
