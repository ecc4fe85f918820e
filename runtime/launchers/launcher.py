"""Interface of launchers, which have hosts of a head begun, and of the door that lets those in.

A launcher is told how many hosts are wanted, and makes it so: what is missing it begins, what is
gone it begins again, what is too many it ends. Nothing is told twice and no order can be lost. Each
life of a host has a ticket of its own; who takes it back says that this life is over.

    joined   none of these: hosts come by themselves, with the cluster's key
    local    processes of this machine, children of the head
    ray      actors of a Ray cluster, each with a host as its child
"""

from typing import Protocol

import trio

from ...nurseries.tasks.task_tree import ProcessTree
from ..hosts.host_keys import ClusterKeys


class Door(Protocol):
    """Door of a head: who may join, and who has; `HostFleet` is one."""

    @property
    def address(self) -> str:
        """Endpoint at which hosts dial, once launchers run."""

    def make_ticket(self, name: str) -> ClusterKeys:
        """Keys for the host of this name, let in from now on; those of before are no more."""

    def withdraw(self, name: str, cause: str) -> None:
        """What comes by the ticket of this host is not heard any more, and it is lost."""

    def hears(self, name: str) -> bool:
        """Whether this host has joined, and speaks."""


class Launcher(Protocol):
    """Launcher of the hosts of one head."""

    def want(self, count: int) -> None:
        """Have so many hosts from now on; the latest wins."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Background task `launcher`: never returns. Raises what ends the start of a server.

        Cancellation: the hosts are ended, as far as they can be reached.
        """

    def to_reap(self) -> set[int]:
        """The processes that were spawned here and are not reaped yet, by number."""

    async def trees(self) -> list[ProcessTree]:
        """Processes of this machine that no host shows: it has not joined, or places others."""
