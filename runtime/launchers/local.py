"""Launcher of hosts on this machine: children of the head, supervised as its engines are.

For trying out, and for machines whose devices are to fail apart. A host whose process ends is lost
at once, as its head sees that end, and begins again when the policy of restarts says so.
"""

from collections.abc import Callable, Sequence

import attrs
import msgspec
import trio

from ...engine.control_messages import TreeReply, TreeRequest
from ...nurseries.processes.hang_watch import BLOCKED_S
from ...nurseries.tasks.task_tree import ProcessTree
from ..events import ChildFailed
from ..fleet.fleet_parts import FleetParts
from ..fleet.process_supervisor import ProcessSupervisor
from ..hosts.host_plan import HostPlan
from ..launch.child import ChildKind, GivenUp, Gone, PlaceEvent, Removed
from ..launch.child_end import EndKind
from .launcher import Door

# By name, not by import: a host is a root of its own.
LOCAL_MODULE = "triolet.runtime.launchers.local_process"
ROOT_TO_LOCAL, LOCAL_TO_ROOT = (TreeRequest,), (TreeReply,)


@attrs.define(eq=False)
class LocalLauncher:
    """Hosts `local-0`, `local-1` … of a head. `plan` is that of each, but for its name and keys."""

    parts: FleetParts
    door: Door
    plan: Callable[[str, Door], HostPlan]
    count: int
    module: str = LOCAL_MODULE
    processes: ProcessSupervisor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.processes = ProcessSupervisor(
            owner=self,
            kind=ChildKind(
                role="host",
                module=self.module,
                sends=ROOT_TO_LOCAL,
                receives=LOCAL_TO_ROOT,
                blocked_s=BLOCKED_S,
            ),
            count=self.count,
            parts=self.parts,
            gives_up_served=False,
        )

    # ---- as a launcher

    def want(self, count: int) -> None:
        """See `Launcher.want`; the highest leave first."""
        places = self.processes.places
        staying = sorted(rank for rank, place in places.items() if not place.is_leaving)
        for rank in staying[count:]:
            self.processes.remove(rank)
        for _ in range(count - len(staying)):
            self.processes.add()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See `Launcher.run`. Raises nothing of its own: a host that cannot begin is given up."""
        await self.processes.run(task_status=task_status)

    def to_reap(self) -> set[int]:
        """Host processes that are not reaped yet, by number."""
        return self.processes.to_reap()

    async def trees(self) -> list[ProcessTree]:
        """Hosts that have not joined: the others show themselves."""
        return [
            ProcessTree(f"host {_name(rank)}", pid, facts={"state": "has not joined"})
            for rank, child in sorted(self.processes.present().items())
            if not self.door.hears(_name(rank))
            for pid in child.to_reap()
        ]

    # ---- as the owner of its places

    def handle_starting(self, rank: int, epoch: int, descriptors: Sequence[str]) -> bytes:
        """A life of a host begins, with a ticket of its own."""
        return msgspec.msgpack.encode(self.plan(_name(rank), self.door))

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """A host whose process is gone is lost, whatever is on its links yet."""
        match event:
            case Gone(end) if end.kind is not EndKind.STOPPED:
                self.door.withdraw(_name(rank), f"its process {end.cause}")
            case GivenUp(end):
                self.parts.on_event(ChildFailed(f"host {_name(rank)}", end.reason))
            case Removed():
                self.door.withdraw(_name(rank), "is not wanted any more")


def _name(rank: int) -> str:
    return f"local-{rank}"
