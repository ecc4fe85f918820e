"""Contract of launchers: what is wanted comes to be, each life of a host with a ticket of its own.

Run on every launcher, over a kernel, or a cluster, that only acts.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import attrs
import trio

from triolet.nurseries.tasks.changes import Changes
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.hosts.host_keys import ClusterKeys, make_cluster_keys
from triolet.runtime.launchers.launcher import Launcher

from ...leaks import check_no_leaks

DEADLINE_S = 20.0


@attrs.define(eq=False)
class ActingDoor:
    """Door that lets in whoever has a ticket; who has the hosts calls `handle_changed`."""

    keys: ClusterKeys = attrs.field(factory=make_cluster_keys)
    # {name: the public key of its ticket}.
    tickets: dict[str, bytes] = attrs.field(factory=dict)
    drawn: list[str] = attrs.field(factory=list)
    withdrawn: list[tuple[str, str]] = attrs.field(factory=list)
    # {name: the key with which it has joined}, of hosts that live.
    alive: dict[str, bytes] = attrs.field(factory=dict)
    changes: Changes = attrs.field(factory=Changes)

    @property
    def address(self) -> str:
        return "tcp://127.0.0.1:7400"

    def make_ticket(self, name: str) -> ClusterKeys:
        ticket = self.keys.make_ticket()
        self.tickets[name] = ticket.hosts.public
        self.drawn.append(name)
        self.changes.notify()
        return ticket

    def withdraw(self, name: str, cause: str) -> None:
        if self.tickets.pop(name, None) is not None:
            self.withdrawn.append((name, cause))
            self.changes.notify()

    def hears(self, name: str) -> bool:
        return name in self.tickets and self.alive.get(name) == self.tickets[name]

    def handle_changed(self, name: str, key: bytes | None) -> None:
        """A host has begun with this key, or ended."""
        if key is None:
            self.alive.pop(name, None)
        else:
            self.alive[name] = key
        self.changes.notify()

    async def wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.changes.wait()

    async def wait_heard(self, *names: str) -> None:
        """Until these hosts live, each with its newest ticket, and no other."""
        await self.wait(lambda: set(self.alive) == set(names) and all(map(self.hears, names)))


class LauncherBed(Protocol):
    """A launcher of two hosts over what only acts."""

    door: ActingDoor
    names: tuple[str, str]

    @property
    def launcher(self) -> Launcher:
        """Under test."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Around all that it is about."""

    def kill(self, name: str) -> None:
        """A host dies, and nobody says so."""


@asynccontextmanager
async def open_launcher(bed: LauncherBed) -> AsyncIterator[None]:
    """Run the launcher of a bed during the block."""
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with bed.running(), open_service(bed.launcher.run, name="launcher"):
            yield


async def check_begins_and_ends_as_wanted(bed: LauncherBed) -> None:
    async with open_launcher(bed):
        first, second = bed.names
        await bed.door.wait_heard(first, second)
        assert sorted(bed.door.drawn) == sorted(bed.names)
        bed.launcher.want(1)
        await bed.door.wait_heard(first)
        await bed.door.wait(lambda: second not in bed.door.tickets)
        bed.launcher.want(2)
        await bed.door.wait(lambda: len(bed.door.alive) == 2)
        assert len(bed.door.drawn) == 3


async def check_what_is_gone_begins_again_with_another_ticket(bed: LauncherBed) -> None:
    async with open_launcher(bed):
        first, second = bed.names
        await bed.door.wait_heard(first, second)
        before = dict(bed.door.tickets)
        bed.kill(first)
        await bed.door.wait(lambda: bed.door.tickets.get(first, before[first]) != before[first])
        await bed.door.wait_heard(first, second)
        assert bed.door.tickets[second] == before[second], "the other one has nothing to do with it"
        assert [name for name, _ in bed.door.withdrawn] == [first]


async def check_nothing_is_left_when_it_ends(bed: LauncherBed) -> None:
    async with open_launcher(bed):
        await bed.door.wait_heard(*bed.names)
    assert bed.door.alive == {}
    assert bed.launcher.to_reap() == set()


CHECKS: tuple[Callable[[LauncherBed], Awaitable[None]], ...] = (
    check_begins_and_ends_as_wanted,
    check_what_is_gone_begins_again_with_another_ticket,
    check_nothing_is_left_when_it_ends,
)
