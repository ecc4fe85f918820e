"""Host that is here, as its head's fleet has it; and the interface of who has hosts begun."""

from typing import Protocol

import attrs
import trio

from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.task_tree import ProcessTree
from ...transports.links.channel import Peer
from ...transports.links.link_keys import LinkKeys
from .host_directory import HostAdmission
from .lease import HostWatch


@attrs.define(eq=False)
class JoinedHost:
    """Host that is here, and by which way it speaks."""

    admission: HostAdmission
    peer: Peer
    watch: HostWatch
    link_keys: LinkKeys
    # Key by which it says that it came; empty: it does not say.
    key: bytes = b""
    # {rank: epoch} of its engines whose numerics were compared with others'.
    compared: dict[int, int] = attrs.field(factory=dict)
    # Something changed that its task may have to look at.
    bell: Doorbell = attrs.field(factory=Doorbell)
    is_over: bool = False

    @property
    def name(self) -> str:
        """Name of the host."""
        return self.admission.host.name


class HostLauncher(Protocol):
    """Who has hosts begun: see `launchers`."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Background task `launcher`."""

    def to_reap(self) -> set[int]:
        """The processes that were spawned here and are not reaped yet, by number."""

    async def trees(self) -> list[ProcessTree]:
        """Processes of this machine that no host shows."""
