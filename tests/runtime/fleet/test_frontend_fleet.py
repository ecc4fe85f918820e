"""Frontends get connections and memberships, are replaced, and drained: with acting processes."""

import json
import os
import pathlib
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs
import pytest
import trio

from triolet.engine.control_messages import FrontendMembership
from triolet.engine.errors import BootRefused
from triolet.runtime.config import JournalSettings, RuntimeTimes
from triolet.runtime.continuity.journal_folder import open_journal_folder
from triolet.runtime.control.calls import ControlQuestion
from triolet.runtime.errors import NoFrontendLeft
from triolet.runtime.events import (
    ChildFailed,
    ChildGone,
    ChildProgress,
    ChildReady,
    ChildStopped,
)
from triolet.runtime.fleet.connection_dispatcher import ConnectionDispatcher
from triolet.runtime.fleet.fleet_parts import FleetParts
from triolet.runtime.fleet.frontend_fleet import FrontendFleet
from triolet.runtime.messages import EngineMembership

from ..acting import (
    ACTING_FRONTEND,
    ActingKernel,
    Diary,
    acting_settings,
    change_parts,
    facts_of,
    fill,
    process_of,
    running,
)
from ..children.acting_frontend import NOTES_AT


async def no_answer(question: ControlQuestion) -> str:
    return "null"


@attrs.define(eq=False)
class Bed:
    """A fleet of acting frontends, and what it told."""

    acts: tuple[list[str], ...]
    diary: Diary = attrs.field(factory=Diary)
    engines: EngineMembership = attrs.field(factory=lambda: EngineMembership(4, []))
    changes: dict[str, Any] = attrs.field(factory=dict)  # of settings
    fleet: FrontendFleet = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        settings = attrs.evolve(acting_settings(["none"]), frontends=len(self.acts), **self.changes)
        self.fleet = FrontendFleet(
            module=ACTING_FRONTEND,
            parts=FleetParts(settings, self.diary, run_id="r", kernel=ActingKernel()),
            settings_text=json.dumps(dict(enumerate(self.acts))),
            engines=lambda: self.engines,
            on_membership=self.diary,
            answer=no_answer,
        )
        self.connections.pass_timeout_s = 0.5

    @property
    def connections(self) -> ConnectionDispatcher:
        """Of its frontends."""
        return self.fleet.connections

    def passes(self, rank: int) -> Mapping[str, int]:
        """What the next life of a rank is given."""
        estates = self.fleet.processes.estates
        return {k: fd for each in estates for k, fd in each.handle_starting(rank, 0).items()}

    def kill(self, rank: int) -> None:
        """Kill it; nobody has noticed when this returns."""
        self.fleet.processes.ready[rank].signal(signal.SIGKILL)

    async def passed(self) -> str:
        """Pass one connection; "RANK EPOCH" of who took it."""
        with connection() as (client, server):
            await self.connections.pass_connection(server)
            server.close()
            return await answer_of(client)


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    client, server = socket.socketpair()
    client.setblocking(False)
    with client, server:
        yield client, server


async def answer_of(client: socket.socket) -> str:
    await trio.lowlevel.wait_readable(client)
    return client.recv(100).decode()


@asynccontextmanager
async def open_bed(*acts: list[str]) -> AsyncIterator[Bed]:
    bed = Bed(acts)
    async with running(bed.fleet):
        yield bed


async def test_a_connection_goes_to_a_frontend_by_its_descriptor() -> None:
    async with open_bed(["ready"]) as bed:
        assert await bed.passed() == "0 1"  # it waited for the frontend to be up
        await bed.connections.wait_serving()
        await bed.connections.wait_drained()


async def test_connections_spread() -> None:
    async with open_bed(["ready"], ["ready"]) as bed:
        await bed.diary.wait_for(ChildReady, 2)
        # Each gets some once both have said that they are linked to an engine.
        ranks: set[str] = set()
        while ranks != {"0", "1"}:
            ranks.add((await bed.passed())[0])


async def test_a_dead_frontend_is_replaced_and_relisted() -> None:
    async with open_bed(["ready"]) as bed:
        await bed.diary.wait_for(ChildReady)
        bed.kill(0)
        assert await bed.passed() == "0 2"
        listed: list[FrontendMembership] = bed.diary.of(FrontendMembership)
        homes = [([each.term for each in one.frontends], one.awaited) for one in listed]
        assert homes == [([1], []), ([], [0]), ([2], [])]
        assert listed[-1].frontends[0].input_endpoint == "in-2"
        assert bed.diary.of(ChildGone)[0].cause == "was killed by SIGKILL"


async def test_restarts_are_counted_and_when_the_last_life_ended_is_known() -> None:
    began_ns = time.monotonic_ns()
    async with open_bed(["ready"]) as bed:
        await bed.diary.wait_for(ChildReady)
        assert bed.fleet.states().restarts == {0: 0}
        bed.kill(0)
        assert await bed.passed() == "0 2"
        assert bed.fleet.states().restarts == {0: 1}
        assert began_ns < bed.fleet.directory.died_ns(0) < time.monotonic_ns()
        assert bed.fleet.directory.died_ns(1) == 0


async def test_a_connection_goes_to_another_when_one_has_just_died() -> None:
    async with open_bed(["ready"], ["ready"]) as bed:
        await bed.diary.wait_for(ChildReady, 2)
        bed.kill(0)
        ranks = [(await bed.passed())[0] for _ in range(2)]
        assert ranks[0] == "1"


async def test_one_that_hangs_is_passed_by() -> None:
    async with open_bed(["stunned"], ["ready"]) as bed:
        await bed.diary.wait_for(ChildReady, 2)
        await fill(bed.fleet.processes.ready[0])
        assert {await bed.passed() for _ in range(4)} <= {"1 1", "1 2"}
        await bed.connections.wait_drained()  # what it did not take is not counted as under way


async def test_one_frontend_asks_another() -> None:
    async with open_bed(["asks"], ["ready"]) as bed:
        await bed.diary.wait_for(ChildReady, 2)
        while not (await bed.passed()).startswith("0 "):
            pass
        while "found" not in (replies := (await facts_of(bed.fleet.processes.ready[0]))["replies"]):
            pass
        assert replies.startswith("1 found resp of 1;")


async def test_frontends_hear_which_of_them_are_up() -> None:
    async with open_bed(["ready"], ["late", "late", "late"]) as bed:
        await bed.diary.wait_for(ChildProgress)
        child = (await bed.diary.wait_for(ChildReady)) and bed.fleet.processes.ready[0]
        while (up := (await facts_of(child))["up"]) != f"0 {child.epoch};":
            assert up == ""
        other = bed.fleet.processes.booting[1]
        other.signal(signal.SIGUSR1)
        while f"1 {other.epoch};" not in (await facts_of(child))["up"]:
            pass
        bed.kill(1)
        while (await facts_of(child))["up"] != f"0 {child.epoch};":
            pass


async def test_engines_are_told_at_once_and_when_they_change() -> None:
    async with open_bed(["ready"]) as bed:
        await bed.diary.wait_for(ChildReady)
        child = bed.fleet.processes.ready[0]
        while not (await facts_of(child))["memberships"]:
            pass
        bed.fleet.processes.publish(EngineMembership(5, []))
        while (await facts_of(child))["memberships"] != "4 5 ":
            pass


async def test_a_drain_is_told_to_all_and_waits_for_connections() -> None:
    drained = trio.Event()

    async def wait_drained() -> None:
        await bed.connections.wait_drained()
        drained.set()

    async with open_bed(["keep"], ["ready"], ["deaf"]) as bed:
        await bed.diary.wait_for(ChildReady, 3)
        await fill(bed.fleet.processes.ready[2])
        with connection() as (first, server), connection() as (second, other):
            for client, end in ((first, server), (second, other)):
                await bed.connections.pass_connection(end)
                end.close()
                await answer_of(client)
            while bed.connections.balancer.open_streams():  # under way: none has been reported yet
                await bed.connections.changed.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_drained)
                for _ in range(10):
                    await trio.lowlevel.checkpoint()
                assert not drained.is_set()  # a connection is open, though no stream
                await bed.connections.drain()
                await drained.wait()
        assert (await facts_of(bed.fleet.processes.ready[1]))["drains"] == 1


async def test_one_that_comes_up_during_a_drain_is_born_draining() -> None:
    async with open_bed(["ready"]) as bed:
        await bed.diary.wait_for(ChildReady)
        assert (await facts_of(bed.fleet.processes.ready[0]))["draining"] == 0
        bed.kill(0)
        await bed.connections.drain()
        await bed.diary.wait_for(ChildReady, 2)
        assert (await facts_of(bed.fleet.processes.ready[0]))["draining"] == 1


async def test_one_that_was_starting_when_a_drain_began_is_told_of_it() -> None:
    async with open_bed(["late"]) as bed:
        await bed.diary.wait_for(ChildProgress)  # it has its INIT, which knew of no drain
        await bed.connections.drain()
        bed.fleet.processes.booting[0].signal(signal.SIGUSR1)
        await bed.diary.wait_for(ChildReady)
        while not (facts := await facts_of(bed.fleet.processes.ready[0]))["drains"]:
            assert facts["draining"] == 0


async def test_the_last_one_that_keeps_dying_ends_the_fleet() -> None:
    with pytest.raises(NoFrontendLeft, match="told to raise"):
        async with open_bed(["raise"]) as bed:
            await trio.sleep_forever()
    (failed,) = bed.diary.of(ChildFailed)
    assert failed == ChildFailed(
        "frontend 0",
        "it died too often; the last time it exited with code 1: ValueError('told to raise')",
    )


async def test_the_others_serve_on_when_one_is_given_up_and_know_why() -> None:
    async with open_bed(["raise"], ["ready"]) as bed:
        assert (await bed.diary.wait_for(ChildFailed)).child == "frontend 0"
        assert {(await bed.passed())[0] for _ in range(4)} == {"1"}
        child = bed.fleet.processes.ready[1]
        while not (failed := (await facts_of(child))["failed"]):
            pass
        assert failed == f"0 {bed.fleet.processes.failed[0]};"


@pytest.mark.parametrize("failing", ["refuse", "raise"])
async def test_one_that_has_served_is_not_given_up(failing: str) -> None:
    async with open_bed(["ready", "ready", *[failing] * 5, "ready"], ["ready"]) as bed:
        await bed.diary.wait_for(ChildReady, 2)
        lived = bed.fleet.processes.ready[0].epoch
        bed.kill(0)
        await bed.diary.wait_for(ChildReady, 3)
        assert bed.diary.of(ChildFailed) == []
        noted = (await facts_of(bed.fleet.processes.ready[0]))["journal"]
        assert noted.split()[:2] == ["noted:", str(lived)], "it has what was left"


async def test_one_that_was_given_up_is_revived() -> None:
    async with open_bed(["raise"] * 4 + ["ready"], ["ready"]) as bed:
        await bed.diary.wait_for(ChildFailed)
        bed.fleet.restart(0)
        await bed.diary.wait_for(ChildReady, 2)
        assert bed.fleet.processes.failed == {}
        while (await facts_of(bed.fleet.processes.ready[1]))["failed"] != "":
            pass
        facts = await facts_of(bed.fleet.processes.ready[0])  # its first report has come before
        assert len(facts["journal"].split()) == 4  # what is on a disk may be of an earlier server
        assert {(await bed.passed())[0] for _ in range(4)} == {"0", "1"}


async def test_without_journals_none_is_passed() -> None:
    bed = Bed((["ready"],), changes={"journal": JournalSettings(disabled=True)})
    async with running(bed.fleet):
        await bed.diary.wait_for(ChildReady)
        assert (await facts_of(bed.fleet.processes.ready[0]))["journal"] == "no journal"


async def test_a_journal_that_cannot_be_made_refuses_the_boot() -> None:
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**40, hard))  # `ulimit -f`; a journal is sparse
    try:
        with pytest.raises(BootRefused) as caught:
            async with open_bed(["ready"]):
                await trio.sleep_forever()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    assert str(caught.value) == "the journal of frontend 0 cannot be made: File too large"


async def test_a_restart_serves_out_first_and_takes_nothing_new() -> None:
    async with open_bed(["keep"], ["keep"]) as bed:
        await bed.diary.wait_for(ChildReady, 2)
        with connection() as (client, server):
            await bed.connections.pass_connection(server)
            server.close()
            rank, epoch = map(int, (await answer_of(client)).split())
            bed.fleet.restart(rank)
            assert int((await bed.passed())[0]) == 1 - rank
            assert await answer_of(client) == ""  # by its drain, not by its death
        await bed.diary.wait_for(ChildReady, 3)
        assert bed.diary.of(ChildGone) == []
        assert bed.diary.of(ChildStopped) == [ChildStopped(f"frontend {rank}", epoch)]


async def test_told_again_a_restart_waits_for_nobody() -> None:
    async with open_bed(["deaf"]) as bed:
        await bed.diary.wait_for(ChildReady)
        with connection() as (_, server):
            await bed.connections.pass_connection(server)  # never read, so never served out
        bed.fleet.restart(0)
        bed.fleet.restart(0)
        await bed.diary.wait_for(ChildReady, 2)


@pytest.mark.parametrize("has_journal", [True, False])
async def test_a_restart_that_serves_out_ends_with_the_grace(has_journal: bool) -> None:
    journal = JournalSettings(disabled=not has_journal)
    bed = Bed((["deaf"],), changes={"times": RuntimeTimes(grace_s=0.05), "journal": journal})
    async with running(bed.fleet):
        await bed.diary.wait_for(ChildReady)
        process = process_of(bed.fleet.processes.ready[0])
        with connection() as (_, server):
            await bed.connections.pass_connection(server)
        bed.fleet.restart(0)
        await bed.diary.wait_for(ChildReady, 2)
    assert process.exit is not None
    ended_by = signal.SIGKILL if has_journal else None
    assert process.exit.signal == ended_by, "in order, it would end what goes on in its next life"


async def test_journals_on_disk_come_with_the_lock_of_their_folder(tmp_path: pathlib.Path) -> None:
    async with open_journal_folder(tmp_path, model="m", frontends=1) as folder:
        bed = Bed((["ready"],))
        bed.fleet.estates.journals.folder = folder
        change_parts(bed.fleet, epochs=folder.numbers())
        async with running(bed.fleet):
            await bed.diary.wait_for(ChildReady)
            journal, lock, *_ = bed.passes(0).values()
            assert os.path.samestat(os.fstat(journal), os.stat(tmp_path / "frontend-0"))
            assert lock == folder.lock_fd
            bed.kill(0)
            await bed.diary.wait_for(ChildReady, 2)
            assert (await facts_of(bed.fleet.processes.ready[0]))["journal"] == "noted: 1 "
    async with open_journal_folder(tmp_path, model="m", frontends=1) as folder:
        assert next(folder.numbers()) > 2
        fd = folder.open_journal(0)
        assert os.pread(fd, 10, NOTES_AT) == b"1 2 "
        os.close(fd)


async def test_while_none_is_ready_clients_are_told_to_come_back() -> None:
    async with open_bed(["ready", "late"]) as bed:
        bed.connections.unavailable_s = 0.0
        await bed.diary.wait_for(ChildReady)
        bed.kill(0)
        await bed.diary.wait_for(ChildGone)
        for _ in range(2):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                theirs.send(b"GET / HTTP/1.1\r\n\r\n")
                await bed.connections.pass_connection(ours)
                answer = theirs.recv(1000)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 5\r\n" in answer
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head
        assert json.loads(body)["error"]["code"] == "no_frontend"
