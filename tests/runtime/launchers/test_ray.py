"""Hosts that a cluster places: the contract of launchers, over a placer and a cluster that act."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import attrs
import msgspec
import pytest
import trio

from triolet.fuzz.simulator.kernel import SimProcess
from triolet.runtime.events import ChildGone, ChildReady, HostSaid
from triolet.runtime.fleet.fleet_parts import FleetParts
from triolet.runtime.hosts.host_keys import parse_cluster_keys
from triolet.runtime.launchers.launcher import Door
from triolet.runtime.launchers.messages import PLACER_TO_ROOT, ROOT_TO_PLACER, PlacerInit
from triolet.runtime.launchers.placements import (
    ActorAnswer,
    HostAlive,
    HostOver,
    OutOfReach,
    Placements,
    PlacerOrder,
    StartHost,
)
from triolet.runtime.launchers.placer import Placer
from triolet.runtime.launchers.ray import PLACER_MODULE, RayLauncher

from ..acting import ActingKernel, Diary, acting_settings, running_kernel
from ..children.stage import Stage
from .launcher_contract import CHECKS, ActingDoor, LauncherBed, open_launcher

LOOK_S = 0.01


@attrs.define(eq=False)
class ActingCluster:
    """A cluster whose actors are names; its hosts join, and end, at once."""

    door: ActingDoor
    # {actor: the name of its host}, of those that live.
    actors: dict[str, str] = attrs.field(factory=dict)
    is_reachable: bool = True
    # The placer that lives: a dead one has no farewell.
    placer: SimProcess | None = None

    def listed(self) -> list[str]:
        return [*self.actors, "triolet-other-ray-0-1"]

    def carry_out(self, order: PlacerOrder) -> None:
        if not isinstance(order, StartHost):
            self.end(order.actor)
        elif order.actor not in self.actors:
            host = order.host
            self.actors[order.actor] = host.name
            ticket = parse_cluster_keys(host.ticket.encode(), "ticket", is_head=False)
            self._tell(host.name, ticket.hosts.public)

    def look(self, actors: Sequence[str], slice_s: float) -> list[tuple[str, ActorAnswer]]:
        there: ActorAnswer = HostAlive() if self.is_reachable else OutOfReach("x")
        gone = HostOver("its actor died", is_certain=False)
        return [(actor, there if actor in self.actors else gone) for actor in actors]

    def kill_all(self, actors: Sequence[str]) -> None:
        for actor in actors if self.placer is not None and self.placer.is_alive else ():
            self.end(actor)

    def end(self, actor: str) -> None:
        if (name := self.actors.pop(actor, None)) is not None:
            self._tell(name, None)

    def _tell(self, name: str, key: bytes | None) -> None:
        trio.from_thread.run_sync(self.door.handle_changed, name, key)


@attrs.define(eq=False)
class RayBed:
    """A launcher of two hosts in a cluster that acts; its placer is a task of this loop."""

    door: ActingDoor = attrs.field(factory=ActingDoor)
    kernel: ActingKernel = attrs.field(factory=ActingKernel)
    diary: Diary = attrs.field(factory=Diary)
    cluster: ActingCluster = attrs.field(init=False)
    launcher: RayLauncher = attrs.field(init=False)
    names: tuple[str, str] = ("ray-0", "ray-1")
    placers: list[SimProcess] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.cluster = ActingCluster(self.door)
        self.kernel.mains = {**self.kernel.mains, PLACER_MODULE: self.act_placer}
        parts = FleetParts(acting_settings(["ready"]), self.diary, kernel=self.kernel)
        self.launcher = RayLauncher(parts, self.door, self.plan, 2, look_s=LOOK_S)

    def plan(self, door: Door) -> PlacerInit:
        return PlacerInit(
            run_id="r", ray_address="auto", node_address="10.0.0.1", resources={}, words=[]
        )

    async def act_placer(self, process: SimProcess) -> None:
        leave = partial(self.kernel.leave, process)
        stage = Stage(process.control, trio.sleep_forever, process.pid, leave, process.fds)
        handshake = await stage.enter("placer", PLACER_TO_ROOT, ROOT_TO_PLACER)
        init = msgspec.msgpack.decode(handshake.init, type=PlacerInit)
        await handshake.ready(b"")
        self.placers.append(process)
        self.cluster.placer = process
        await Placer(stage.control, self.cluster, Placements(init.run_id), LOOK_S).run()

    def running(self) -> AbstractAsyncContextManager[None]:
        return running_kernel(self.kernel)

    def actor_of(self, name: str) -> str:
        return next(actor for actor, host in self.cluster.actors.items() if host == name)

    def kill(self, name: str) -> None:
        del self.cluster.actors[self.actor_of(name)]
        self.door.handle_changed(name, None)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_hosts_in_a_cluster_keep_the_contract(
    check: Callable[[LauncherBed], Awaitable[None]],
) -> None:
    await check(RayBed())


async def test_a_placer_that_dies_costs_no_host() -> None:
    bed = RayBed()
    async with open_launcher(bed):
        await bed.door.wait_heard(*bed.names)
        before = dict(bed.cluster.actors)
        bed.kernel.kill(bed.placers[0])
        await bed.diary.wait_for(ChildGone)
        await bed.diary.wait_for(ChildReady, 2)
        # The new one sees to this, as the same life if it has not found the actor before.
        bed.kill("ray-1")
        await bed.door.wait_heard(*bed.names)
        assert bed.actor_of("ray-0") in before
        assert "ray-0" not in {name for name, _ in bed.door.withdrawn}


async def test_hosts_that_the_cluster_cannot_reach_serve_on() -> None:
    bed = RayBed()
    async with open_launcher(bed):
        await bed.door.wait_heard(*bed.names)
        bed.cluster.is_reachable = False
        said = [await bed.diary.wait_for(HostSaid, count) for count in (1, 2)]
        assert {each.text for each in said} == {"Ray cannot reach its actor: x"}
        bed.cluster.is_reachable = True
        assert not (await bed.diary.wait_for(HostSaid, 4)).is_warning
        assert bed.door.withdrawn == []


async def test_the_tree_shows_what_is_placed() -> None:
    bed = RayBed()
    async with open_launcher(bed):
        await bed.door.wait_heard(*bed.names)
        (tree,) = await bed.launcher.trees()
        assert tree.name == "placer"
        assert set(tree.facts) == set(bed.cluster.actors)
