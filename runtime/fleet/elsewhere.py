"""Places elsewhere: engines on other machines, as their head's root has to do with them.

What is below a root does not know how other machines are reached; `hosts` does.
"""

from collections.abc import Callable, Iterable, Set
from typing import Protocol

import attrs
import trio

from ...engine.control_messages import FrontendMembership
from ...nurseries.processes.watched import Row
from ...nurseries.tasks.task_tree import ProcessTree
from ..control.calls import ControlQuestion, PlaceState
from ..events import OnEvent
from ..messages import EngineMembership, HostReports
from .engine_fleet import EngineFleet
from .membership import FrontendDirectory


class PlacesElsewhere(Protocol):
    """All hosts of one head."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Background task `hosts`; started when hosts can join."""

    def to_reap(self) -> set[int]:
        """Processes of this machine that were spawned there and are not reaped yet, by number."""

    def publish(self, membership: FrontendMembership) -> None:
        """Tell all hosts which frontends there are."""

    def excuse(self, epochs: Set[int]) -> None:
        """Requests ended these lives, of whichever engines: they count toward nothing."""

    def has(self, place: str) -> bool:
        """Whether this place ("engine 5 worker 0", "host b") is elsewhere."""

    async def answer(self, place: str, question: ControlQuestion) -> str:
        """Have it answered where the place is. Raises `ControlCallRefused`."""

    def reload(self) -> list[str]:
        """Read keys again; the hosts that may not be here any more. Raises `ControlCallRefused`."""

    async def trees(self) -> list[ProcessTree]:
        """Trees of all hosts."""

    def places(self) -> list[PlaceState]:
        """Places of engines as they are now."""

    def watch(self, number: int) -> None:
        """Have all hosts say everything for viewers, then what changes; 0: say no more."""

    def rows(self) -> Iterable[Row]:
        """Rows of the hosts for viewers, as seen from here."""


@attrs.frozen
class HeadParts:
    """What a root gives to those who serve under it."""

    engines: EngineFleet
    frontends: FrontendDirectory
    on_membership: Callable[[EngineMembership], None]
    on_event: OnEvent
    # Gets what hosts say for viewers.
    on_said: Callable[[str], None] = lambda text: None
    # Gets what frontends show of hosts.
    on_reports: Callable[[HostReports], None] = lambda reports: None


MakeElsewhere = Callable[[HeadParts], PlacesElsewhere]
