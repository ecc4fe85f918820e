"""kill -9 of frontends in mid-stream: connections go on, or clients come back by number.

One server with its default settings but for the number of frontends, and the bundled model.
"""

import os
import pathlib
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
import trio

from triolet.fuzz.observers import abstract_sockets
from triolet.runtime.messages import ControlCall, Place, Role
from triolet.runtime.processes.control_server import ask_run

from .resumed import ask_all, check_same
from .server import DEADLINE_S, open_server, wait_until

pytestmark = pytest.mark.slow

GUESSES = 40


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


async def test_names_that_others_bind_first_take_no_recovery_away(tmp_path: pathlib.Path) -> None:
    """Every user of the machine can read the names of sockets, and bind what may come next."""
    with trio.fail_after(2 * DEADLINE_S):
        async with open_server(tmp_path, "--frontends", "1") as server:
            await server.wait_linked(1, 1)
            names = abstract_sockets(server.run_id)
            assert {name.rpartition("-")[2] for name in names} >= {"input", "output"}
            with taken_names(guessed(server.run_id, names)) as count:
                assert count >= GUESSES

                before = (await server.pids())["frontend 0"]
                os.kill(before, signal.SIGKILL)

                async def is_back() -> bool:
                    pids = await server.pids()
                    return pids.get("frontend 0", before) != before and await server.is_ready()

                await wait_until(is_back, "the frontend is back")
                assert server.popen.poll() is None


@contextmanager
def taken_names(names: set[str]) -> Iterator[int]:
    """These are ours, as far as they are free: how many."""
    count = 0
    with ExitStack() as bound:
        for name in names:
            one = bound.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            with suppress(OSError):  # it is the server's
                one.bind("\0" + name)
                count += 1
        yield count


def guessed(run_id: str, names: list[str]) -> set[str]:
    """The names that the next lives would have if they followed from these, or from the run."""
    found = set[str]()
    for name in (name.removeprefix("@") for name in names):
        shape = re.fullmatch(r"(.*-)(\d+)-(\w+)", name)
        assert shape is not None, name
        head, epoch, kind = shape.groups()
        for more in range(1, GUESSES):
            found.add(f"{head}{int(epoch) + more}-{kind}")
            found.add(f"triolet-{run_id}-frontend-0-{int(epoch) + more}-{kind}")
    return found
