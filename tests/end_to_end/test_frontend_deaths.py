"""kill -9 of frontends in mid-stream: connections go on, or clients come back by number.

A server for each of the two, with the bundled model.
"""

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import attrs
import pytest
import trio

from triolet.fuzz.observers import abstract_sockets
from triolet.runtime.control.calls import ControlCall, Place, Role
from triolet.runtime.control.client import ask_run

from .resumed import Stream, ask_all, check_same
from .server import DEADLINE_S, Server, module_server, recovered, wait_until

pytestmark = pytest.mark.slow

GUESSES = 40


@attrs.frozen
class Started:
    """A server of two frontends, and what it answers undisturbed."""

    server: Server
    wanted: dict[str, Stream]
    # Connections outlive a frontend; else clients come back by number.
    is_held: bool


@pytest.fixture(scope="module", params=[True, False], ids=["connections go on", "by number"])
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Started]:
    """Frontends that are restarted have no time for their streams."""
    options = ["--frontends", "2", "--grace", "0.1"]
    options += [] if request.param else ["--no-takeover"]
    with module_server(tmp_path_factory.mktemp("two"), *options) as server:
        trio.run(server.wait_linked, 2, 1)
        yield Started(server, trio.run(ask_all, server, "undisturbed"), request.param)


@pytest.fixture
async def beside(started: Started) -> Started:
    await recovered(started.server, 2, 1)
    return started


@pytest.mark.parametrize("with_engine", [False, True], ids=["alone", "with the engine"])
async def test_a_stream_of_a_killed_frontend_goes_on(beside: Started, with_engine: bool) -> None:
    server = beside.server
    with trio.fail_after(3 * DEADLINE_S):
        pids = await server.pids()
        victims = [pids["frontend 0"], pids["frontend 1"]]

        async def kill() -> None:
            for pid in victims + [pids["engine 0"]] * with_engine:
                os.kill(pid, signal.SIGKILL)

        found = await ask_all(server, f"killed {with_engine}", kill)
        check_same(found, beside.wanted, is_held=beside.is_held)


async def test_a_stream_that_outlasts_the_grace_of_a_restart_goes_on(beside: Started) -> None:
    server = beside.server

    async def restart_both() -> None:
        for rank in range(2):
            place = Place(Role.FRONTEND, rank)
            await ask_run(server.run_folder(), ControlCall.RESTART, place)

    with trio.fail_after(3 * DEADLINE_S):
        found = await ask_all(server, "restarted", restart_both)
        check_same(found, beside.wanted, is_held=beside.is_held)


@pytest.mark.parametrize("started", [True], ids=["connections go on"], indirect=True)
async def test_names_that_others_bind_first_take_no_recovery_away(beside: Started) -> None:
    """Every user of the machine can read the names of sockets, and bind what may come next."""
    server = beside.server
    with trio.fail_after(2 * DEADLINE_S):
        names = abstract_sockets(server.run_id)
        assert {name.rpartition("-")[2] for name in names} >= {"input", "output"}
        with taken_names(guessed(server.run_id, names)) as count:
            assert count >= GUESSES
            before = (await server.pids())["frontend 0"]
            os.kill(before, signal.SIGKILL)

            async def is_back() -> bool:
                return (await server.pids()).get("frontend 0", before) != before

            await wait_until(is_back, "the frontend is back")
            await server.wait_linked(2, 1)
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
