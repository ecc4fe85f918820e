"""kill -9 of frontends and engines in mid-stream: every kind of stream is the same as without.

Connections go on, or clients come back by number: a server for each. Steps take their time, so that
streams are under way when they are to be, whatever else the machine does.
"""

import os
import pathlib
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import attrs
import pytest
import trio

from triolet.fuzz.observers import abstract_sockets
from triolet.runtime.control.calls import ControlCall, Place, Role
from triolet.runtime.control.client import ask_run

from .resumed import Stream, ask_all, check_same
from .server import DEADLINE_S, Server, module_server, recovered, wait_until

pytestmark = pytest.mark.slow

SLOWLY = ("--executor", "null", "--null-step", "0.01")
GUESSES = 40
GO_ON = "requests go on at"


@attrs.frozen
class Started:
    """A server of two frontends, and what it answers undisturbed."""

    server: Server
    wanted: dict[str, Stream]
    engines: int
    # Connections outlive a frontend; else clients come back by number.
    is_held: bool
    # Looked at before streams begin: the look may outlast them.
    pids: dict[str, int] = attrs.field(factory=dict)

    async def check(self, salt: str, disturb: Callable[[], Awaitable[None]]) -> None:
        """Every kind of stream is what it was when this happens to it."""
        with trio.fail_after(3 * DEADLINE_S):
            self.pids.update(await self.server.pids())
            found = await ask_all(self.server, salt, disturb)
            check_same(found, self.wanted, is_held=self.is_held)

    async def kill(self, *places: str) -> None:
        await trio.lowlevel.checkpoint()
        for place in places:
            os.kill(self.pids[place], signal.SIGKILL)


@contextmanager
def open_started(folder: pathlib.Path, engines: int, *options: str) -> Iterator[Started]:
    """Frontends that are restarted have no time for their streams."""
    more = ("--engines", str(engines), "--frontends", "2", "--grace", "0.1", *options)
    with module_server(folder, *more) as server:
        trio.run(server.wait_linked, 2, engines)
        wanted = trio.run(ask_all, server, "undisturbed")
        yield Started(server, wanted, engines, is_held="--no-takeover" not in options)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("held")
    with open_started(folder, 2, "--restart-limit", "100", *SLOWLY) as started:
        yield started


@pytest.fixture
async def beside(started: Started) -> Started:
    await recovered(started.server, 2, started.engines)
    return started


async def test_connections_outlive_frontends_that_die_with_their_engines(beside: Started) -> None:
    places = ("frontend 0", "frontend 1", "engine 0", "engine 1")
    await beside.check("all killed", partial(beside.kill, *places))


async def test_every_answer_is_the_same_with_its_engine_killed(beside: Started) -> None:
    """The second when it has taken over from the first: then none is left."""
    before = beside.server.log().count(GO_ON)

    async def kill_engines() -> None:
        await beside.kill("engine 0")
        await wait_until(lambda: beside.server.log().count(GO_ON) > before, GO_ON)
        await beside.kill("engine 1")

    await beside.check("engines killed", kill_engines)
    counts = await beside.server.metrics()
    assert sum(v for name, v in counts.items() if "request_migrations_total" in name) >= 3
    assert sum(v for name, v in counts.items() if "requests_failed_total" in name) == 0


async def test_a_stream_that_outlasts_the_grace_of_a_restart_goes_on(beside: Started) -> None:
    async def restart_both() -> None:
        for rank in range(2):
            place = Place(Role.FRONTEND, rank)
            await ask_run(beside.server.run_folder(), ControlCall.RESTART, place)

    await beside.check("restarted", restart_both)


@pytest.fixture
def by_number(tmp_path: pathlib.Path) -> Iterator[Started]:
    with open_started(tmp_path, 1, "--no-takeover", *SLOWLY) as started:
        yield started


async def test_a_stream_of_a_killed_frontend_goes_on(by_number: Started) -> None:
    await by_number.check("killed", partial(by_number.kill, "frontend 0", "frontend 1"))


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
            await server.wait_replaced("frontend 0", before)
            await server.wait_linked(2, 2)
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
