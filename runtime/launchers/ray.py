"""Launcher of hosts in a Ray cluster: its placer, which is a process, and what that is to place.

Ray is asked for room, and for a process there; never for whether a host lives, which its link says.
The placer's death costs nothing but time: hosts serve on, and the next one finds them.
"""

from collections.abc import Callable, Sequence

import attrs
import msgspec
import trio

from ...nurseries.processes.hang_watch import BLOCKED_S
from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import open_service
from ...nurseries.tasks.task_tree import ProcessTree
from ..events import ChildFailed, HostSaid
from ..fleet.fleet_parts import FleetParts
from ..fleet.process_supervisor import ProcessSupervisor
from ..launch.child import BecameReady, ChildKind, GivenUp, PlaceEvent, Said
from .launcher import Door
from .lives import Begin, Decision, HostGivenUp, HostLives, LifeOver
from .messages import (
    PLACER_TO_ROOT,
    ROOT_TO_PLACER,
    HostEnded,
    PlacementNews,
    PlacerInit,
    WantedHost,
    WantedHosts,
)

# By name, not by import: what Ray needs is in no other process.
PLACER_MODULE = "triolet.runtime.launchers.ray_process"
# A look at which hosts are heard.
LOOK_S = 0.25


@attrs.define(eq=False)
class RayLauncher:
    """Hosts `ray-0`, `ray-1` … of a head. `plan` is that of a placer, once the door is open."""

    parts: FleetParts
    door: Door
    plan: Callable[[Door], PlacerInit]
    count: int
    module: str = PLACER_MODULE
    look_s: float = LOOK_S
    lives: HostLives = attrs.field(init=False)
    processes: ProcessSupervisor = attrs.field(init=False)
    # {name: its ticket's line}, of the lives that are wanted.
    _tickets: dict[str, str] = attrs.field(factory=dict, init=False)
    _snapshot: WantedHosts = attrs.field(factory=lambda: WantedHosts(0, []), init=False)
    _bell: Doorbell = attrs.field(factory=Doorbell, init=False)

    def __attrs_post_init__(self) -> None:
        policy = self.parts.policy(have_served=False, gives_up_served=False)
        self.lives = HostLives(policy, "ray")
        self.lives.handle_wanted(self.count)
        self.processes = ProcessSupervisor(
            owner=self,
            kind=ChildKind(
                role="placer",
                module=self.module,
                sends=ROOT_TO_PLACER,
                receives=PLACER_TO_ROOT,
                blocked_s=BLOCKED_S,
            ),
            count=1,
            parts=self.parts,
            gives_up_served=False,
        )

    # ---- as a launcher

    def want(self, count: int) -> None:
        """See `Launcher.want`; the highest leave first."""
        self._carry_out(self.lives.handle_wanted(count))
        self._publish()
        self._bell.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See `Launcher.run`. Raises `BootRefused` where there is no Ray, or no cluster."""
        async with open_service(self.processes.run, name="placer"):
            task_status.started()
            while True:
                names = list(self.lives.hosts)
                heard = {name for name in names if self.door.hears(name)}
                if decisions := self.lives.handle_look(heard, trio.current_time()):
                    self._carry_out(decisions)
                    self._publish()
                with trio.move_on_after(self.look_s), waiting_for("the next look at its hosts"):
                    await self._bell.wait()

    def to_reap(self) -> set[int]:
        """The placer, until it is reaped."""
        return self.processes.to_reap()

    async def trees(self) -> list[ProcessTree]:
        """The placer, with what it has placed."""
        return [await child.tree() for child in self.processes.present().values()]

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Begin(name=name):
                    self._tickets[name] = self.door.make_ticket(name).text()
                case LifeOver(name=name, cause=cause):
                    self._tickets.pop(name, None)
                    self.door.withdraw(name, cause)
                case HostGivenUp(name=name, cause=cause):
                    self.parts.on_event(ChildFailed(f"host {name}", cause))

    def _publish(self) -> None:
        present = self.lives.present().items()
        hosts = [WantedHost(name, life, self._tickets[name]) for name, life in present]
        self._snapshot = WantedHosts(self._snapshot.number + 1, hosts)
        self.processes.publish(self._snapshot)

    # ---- as the owner of the placer's place

    def handle_starting(self, rank: int, epoch: int, descriptors: Sequence[str]) -> bytes:
        """A placer begins; what is wanted it hears when it is ready."""
        return msgspec.msgpack.encode(self.plan(self.door))

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """The placer is ready, or says what became of a placement.

        Raises `BootRefused`, or why it died, if it is given up: none was ever ready.
        """
        match event:
            case BecameReady(child):
                child.control.publish(self._snapshot)
            case Said(HostEnded(name=name, life=life, cause=cause, is_certain=is_certain)):
                self.lives.handle_ended(name, life, cause, is_certain=is_certain)
                self._bell.ring()
            case Said(PlacementNews(name=name) as news):
                self.lives.handle_reach(name, is_out_of_reach=news.is_out_of_reach)
                self.parts.on_event(HostSaid(name, news.text, news.is_warning))
            case GivenUp(end):
                raise end.failure
