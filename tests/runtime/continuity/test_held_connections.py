"""Connections outlive their frontend: real sockets, passed to acting frontends that die."""

import resource
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, cast

import attrs
import pytest
import trio

from triolet.runtime.config import RuntimeTimes
from triolet.runtime.continuity.held_connections import HeldConnections
from triolet.runtime.events import (
    ChildGone,
    ChildProgress,
    ChildReady,
    ChildStopped,
)
from triolet.runtime.launch.child import BecameFailing, Child, Gone
from triolet.runtime.messages import PassConnection
from triolet.transports.takeover.memory import map_slots, read_lives, write_lives

from ...nurseries.child_programs import look_again
from ..acting import FAULT, KILLED, facts_of, fill, running
from ..fleet.test_frontend_fleet import Bed, answer_of


@contextmanager
def accepted() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client of TCP, and the root's end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    client.setblocking(False)
    with client, server:
        yield client, server


# Passes a connection to some frontend; returns its client.
Connect = Callable[[], Awaitable[socket.socket]]


@asynccontextmanager
async def serving(
    *acts: list[str], pass_timeout_s: float = 0.5, **settings: Any
) -> AsyncIterator[tuple[Bed, Connect]]:
    """Frontends that are all up."""
    bed = Bed(acts, changes=settings)
    bed.connections.pass_timeout_s = pass_timeout_s
    async with running(bed.fleet):
        with ExitStack() as clients:

            async def connect() -> socket.socket:
                client, server = clients.enter_context(accepted())
                await bed.connections.pass_connection(server)
                server.close()
                return client

            await bed.diary.wait_for(ChildReady, len(acts))
            yield bed, connect


async def end_of(client: socket.socket) -> str:
    """What comes before the end of a connection, or its reset."""
    heard = ""
    while True:
        try:
            if not (more := await answer_of(client)):
                return heard
        except ConnectionResetError:
            return f"{heard} reset"
        heard += more


async def test_a_connection_outlives_two_deaths_and_ends_with_a_drain() -> None:
    async with serving(["keep"]) as (bed, connect):
        client = await connect()
        assert await answer_of(client) == "0 1 1 0"
        bed.kill(0)
        assert await answer_of(client) == "0 2 1 0 again"
        other = await connect()
        assert await answer_of(other) == "0 2 2 1"
        bed.kill(0)
        assert {await answer_of(each) for each in (client, other)} == {
            "0 3 1 0 again",
            "0 3 2 1 again",
        }
        await bed.connections.drain()
        assert [await end_of(each) for each in (client, other)] == ["", ""]
        await bed.connections.wait_drained()
        assert bed.connections.held.ranks() == set()


async def test_a_restart_hands_connections_over_and_is_no_death() -> None:
    async with serving(["leaves", "keep"]) as (bed, connect):
        client = await connect()
        assert await answer_of(client) == "0 1 1 0"
        bed.fleet.restart(0)
        assert await answer_of(client) == "0 2 1 0 again"
        assert await answer_of(await connect()) == "0 2 2 1"
        assert bed.diary.of(ChildGone) == []
        assert bed.diary.of(ChildStopped) == [ChildStopped("frontend 0", 1)]


async def test_a_restart_in_the_moment_of_a_death_ends_no_connection() -> None:
    async with serving(["keep"]) as (bed, connect):
        client = await connect()
        assert await answer_of(client) == "0 1 1 0"
        bed.fleet.handle(0, BecameFailing("a test"))  # known, and its end not yet
        bed.fleet.restart(0)
        assert await answer_of(client) == "0 2 1 0 again"


async def test_a_drain_waits_for_those_that_wait_for_a_successor() -> None:
    drained = trio.Event()

    async def wait_drained() -> None:
        await bed.connections.wait_drained()
        drained.set()

    async with serving(["keep", "late"]) as (bed, connect):
        client = await connect()
        assert await answer_of(client) == "0 1 1 0"
        bed.kill(0)
        async with trio.open_nursery() as nursery:
            await bed.diary.wait_for(ChildProgress, 1)
            nursery.start_soon(wait_drained)
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            assert not drained.is_set()
            bed.fleet.processes.booting[0].signal(signal.SIGUSR1)
            assert await end_of(client) == "0 2 1 0 again"


async def test_one_that_was_never_read_is_passed_to_the_successor() -> None:
    async with serving(["stunned", "ready"]) as (bed, connect):
        client = await connect()
        bed.kill(0)
        assert await end_of(client) == "0 2 1 0 again"
        await bed.connections.wait_drained()


async def test_one_that_was_not_sent_frees_its_slot() -> None:
    async with serving(["stunned"], ["keep"]) as (bed, connect):
        await fill(bed.fleet.processes.ready[0])
        clients = [await connect() for _ in range(3)]
        heard = [await answer_of(client) for client in clients]
        assert {each[0] for each in heard} == {"1"}
        assert bed.connections.held.ranks() == {1}


async def test_what_was_ended_is_closed_and_its_slot_is_empty() -> None:
    async with serving(["ready"]) as (bed, connect):
        memory = bed.connections.held.handle_starting(0, 0)["connections"]
        assert memory is not None
        with map_slots(memory) as slots, slots.view(0) as one, slots.view(1) as other:
            one[0] = other[0] = 7
            assert await end_of(await connect()) == "0 1 1 0"
            while bed.connections.held.ranks():
                await bed.connections.changed.wait()
            assert (one[0], other[0]) == (0, 7)
        assert await end_of(await connect()) == "0 1 2 0"


async def test_more_are_passed_again_than_a_control_socket_holds() -> None:
    async with serving(["keep"]) as (bed, connect):
        clients = [await connect() for _ in range(400)]
        first = [await answer_of(client) for client in clients]
        bed.kill(0)
        again = [await answer_of(client) for client in clients]
        assert [each.split()[2:] for each in first] == [each.split()[2:4] for each in again]
        await bed.connections.drain()
        assert {await end_of(client) for client in clients} == {""}


@asynccontextmanager
async def waiting_for_a_slow_one() -> AsyncIterator[tuple[Bed, list[socket.socket]]]:
    """Many connections, whose process died, and whose next one takes no message yet."""
    async with serving(["keep", "slow", "keep"], pass_timeout_s=0.01) as (bed, connect):
        clients = [await connect() for _ in range(400)]
        assert {(await answer_of(client)).split()[1] for client in clients} == {"1"}
        bed.kill(0)
        await bed.diary.wait_for(ChildReady, 2)
        for _ in range(5):  # until its control socket is full, and some timeouts more
            await look_again()
        yield bed, clients


async def test_a_slow_successor_takes_all_in_the_end() -> None:
    async with waiting_for_a_slow_one() as (bed, clients):
        bed.fleet.processes.ready[0].signal(signal.SIGUSR1)
        assert {(await answer_of(client)).split()[1] for client in clients} == {"2"}


async def test_when_the_successor_dies_in_the_middle_the_next_one_takes_all() -> None:
    async with waiting_for_a_slow_one() as (bed, clients):
        bed.kill(0)
        assert {(await answer_of(client)).split()[1] for client in clients} == {"3"}


async def test_what_outlasts_the_grace_of_a_restart_goes_on() -> None:
    times = RuntimeTimes(grace_s=0.05)
    async with serving(["stunned", "ready"], times=times) as (bed, connect):
        client = await connect()
        bed.fleet.restart(0)
        assert (await end_of(client)).endswith(" again")
        await bed.diary.wait_for(ChildReady, 2)


async def test_clients_see_the_end_when_the_successor_has_no_slots() -> None:
    async with serving(["keep", "plain"]) as (bed, connect):
        client = await connect()
        assert await answer_of(client) == "0 1 1 0"
        bed.kill(0)
        assert await end_of(client) == ""
        assert await answer_of(await connect()) == "0 2"
        assert bed.connections.held.ranks() == set()


async def test_clients_see_the_end_of_the_server() -> None:
    with accepted() as (client, server):
        async with serving(["keep"]) as (bed, _):
            await bed.connections.pass_connection(server)
            server.close()
            assert await answer_of(client) == "0 1 1 0"
        assert await end_of(client) == ""


async def test_without_takeover_a_connection_ends_with_its_process() -> None:
    async with serving(["keep"], takeover=False) as (bed, connect):
        client = await connect()
        assert await answer_of(client) == "0 1"
        bed.kill(0)
        assert await end_of(client) == ""
        await bed.diary.wait_for(ChildReady, 2)
        assert (await facts_of(bed.fleet.processes.ready[0]))["journal"] == "noted: 1 "


@pytest.fixture
def connections() -> Iterator[HeldConnections]:
    held = HeldConnections()
    with held.open(1):
        yield held


def test_one_that_its_process_had_ended_is_closed_when_that_is_gone(
    connections: HeldConnections,
) -> None:
    connections.handle_starting(0, 1)
    connections.handle_ready(0, 1)
    with accepted() as (client, server), accepted() as (_, other):
        for number, each in enumerate((server, other)):
            held = connections.offer(0, each.fileno(), number)
            assert held is not None
            connections.handle_taken(0, held, 1)
        server.shutdown(socket.SHUT_WR)
        server.close()
        connections.handle(0, Gone(KILLED))
        client.send(b"late")
        assert client.recv(10) == b""
        with pytest.raises(BrokenPipeError):  # the kernel has answered by a reset
            client.send(b"later")
        assert [each.slot for each in connections.handle_ready(0, 2)] == [1]


@pytest.mark.parametrize("is_fault", [True, False])
async def test_who_is_killed_from_outside_has_died_of_no_connection(
    connections: HeldConnections, is_fault: bool
) -> None:
    memory = connections.handle_starting(0, 1)["connections"]
    connections.handle_ready(0, 1)
    with accepted() as (_, server):
        held = connections.offer(0, server.fileno(), 1)
        assert held is not None
        connections.handle_taken(0, held, 1)
        found = []
        for epoch in range(2, 5):
            connections.handle(0, Gone(FAULT if is_fault else KILLED))
            waiting = connections.handle_ready(0, epoch)
            found.append(read_lives(memory, held.slot))
            await connections.pass_again(0, cast(Child, Taker(epoch)), waiting, 1.0)
            write_lives(memory, held.slot, found[-1] + 1)  # as who goes on with it does
        assert found == ([0, 1, 2] if is_fault else [0, 0, 0])
        # Who lives for a while says that it did not die of it.
        write_lives(memory, held.slot, 0)
        connections.handle(0, Gone(KILLED))
        assert read_lives(memory, held.slot) == 0


@attrs.frozen
class Taker:
    """A process that takes what it is sent."""

    epoch: int

    @property
    def control(self) -> "Taker":
        return self

    async def send(self, message: PassConnection, timeout_s: float, fds: Sequence[int]) -> None:
        assert message.is_taken_over


def test_other_sockets_and_too_many_are_not_held() -> None:
    connections = HeldConnections()
    one, other = socket.socketpair()
    with one, other, accepted() as (_, server):
        with connections.open(1):
            connections.handle_starting(0, 1)
            assert connections.handle_ready(0, 1) == connections.handle_ready(1, 2) == []
            before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            assert connections.offer(0, one.fileno(), 1) is None
            assert connections.offer(1, server.fileno(), 1) is None  # a rank without slots
            assert connections.message(1, None).unheld == ""  # nothing was promised
            resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard))
            try:
                assert connections.offer(0, server.fileno(), 1) is None
                assert "20 descriptors" in connections.message(1, None).unheld
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
            assert connections.offer(0, server.fileno(), 1) is not None
            assert connections.message(1, None).unheld == ""
        assert connections.offer(0, server.fileno(), 1) is None
