"""Hosts that are children of their head: the contract of launchers, over processes that act."""

import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import attrs
import msgspec
import pytest
import trio

from triolet.fuzz.simulator.kernel import SimProcess
from triolet.runtime.fleet.fleet_parts import FleetParts
from triolet.runtime.hosts.host_plan import HostPlan
from triolet.runtime.launchers.launcher import Door
from triolet.runtime.launchers.local import (
    LOCAL_MODULE,
    LOCAL_TO_ROOT,
    ROOT_TO_LOCAL,
    LocalLauncher,
)

from ..acting import ActingKernel, Diary, acting_settings, running_kernel
from ..children.stage import Stage
from .launcher_contract import CHECKS, ActingDoor, LauncherBed, open_launcher


@attrs.define(eq=False)
class LocalBed:
    """A launcher of two hosts on this machine, whose processes are tasks of this loop."""

    door: ActingDoor = attrs.field(factory=ActingDoor)
    kernel: ActingKernel = attrs.field(factory=ActingKernel)
    diary: Diary = attrs.field(factory=Diary)
    launcher: LocalLauncher = attrs.field(init=False)
    names: tuple[str, str] = ("local-0", "local-1")
    lives: dict[str, SimProcess] = attrs.field(factory=dict)
    # Whether a host that begins says so.
    is_well: bool = True

    def __attrs_post_init__(self) -> None:
        self.kernel.mains = {**self.kernel.mains, LOCAL_MODULE: self.act_host}
        parts = FleetParts(acting_settings(["ready"]), self.diary, kernel=self.kernel)
        self.launcher = LocalLauncher(parts, self.door, self.plan, 2)

    def plan(self, name: str, door: Door) -> HostPlan:
        return HostPlan(
            name=name,
            heads=[door.address],
            keys=door.make_ticket(name),
            engines=1,
            engine=acting_settings(["ready"]).engine,
            model_hash="m",
            version="1",
        )

    async def act_host(self, process: SimProcess) -> None:
        """A host in name alone: it has joined when it is ready."""
        leave = partial(self.kernel.leave, process)
        stage = Stage(process.control, trio.sleep_forever, process.pid, leave, process.fds)
        handshake = await stage.enter("host", LOCAL_TO_ROOT, ROOT_TO_LOCAL)
        plan = msgspec.msgpack.decode(handshake.init, type=HostPlan)
        await handshake.ready(b"")
        self.lives[plan.name] = process
        if self.is_well:
            self.door.handle_changed(plan.name, plan.keys.hosts.public)
        process.on_cut.append(lambda: self.door.handle_changed(plan.name, None))
        try:
            await trio.sleep_forever()
        finally:
            if self.lives.get(plan.name) is process:
                self.door.handle_changed(plan.name, None)

    def running(self) -> AbstractAsyncContextManager[None]:
        return running_kernel(self.kernel)

    def kill(self, name: str) -> None:
        self.kernel.kill(self.lives[name])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_hosts_that_are_children_keep_the_contract(
    check: Callable[[LauncherBed], Awaitable[None]],
) -> None:
    await check(LocalBed())


async def test_a_host_that_dies_is_lost_at_once_for_the_reason_of_its_end() -> None:
    bed = LocalBed()
    async with open_launcher(bed):
        await bed.door.wait_heard(*bed.names)
        bed.kill("local-1")
        await bed.door.wait(lambda: bool(bed.door.withdrawn))
        (found,) = bed.door.withdrawn
        assert found == ("local-1", f"its process was killed by {signal.SIGKILL.name}")
        await bed.door.wait_heard(*bed.names)
    assert len(bed.door.withdrawn) == 1, "an end in order is nobody's loss"


async def test_the_tree_shows_hosts_that_have_not_joined() -> None:
    bed = LocalBed(is_well=False)
    async with open_launcher(bed):
        await bed.door.wait(lambda: len(bed.door.drawn) == 2)
        trees = await bed.launcher.trees()
        assert {tree.name for tree in trees} <= {"host local-0", "host local-1"}
        assert all(tree.facts == {"state": "has not joined"} for tree in trees)
