"""One simulation: boots the root, lets clients and faults loose, then has the outcome judged.

When all faults are over, every stream must end in bounded time, and then nothing may be left of any
request anywhere.
"""

import attrs
import trio

from .blame import Blame
from .clients import Clients
from .injector import Injector
from .judge import Judge
from .scene import Scene
from .streams import Violation

# From when the faults are over to the end of every stream: restarts, links, and the work itself.
STREAMS_END_S = 60.0
BOOT_S = 60.0


@attrs.define(eq=False)
class World:
    """Runs one simulation."""

    scene: Scene

    async def run(self) -> None:
        """All of it. Raises `Violation`, and what a part of the runtime should never raise."""
        judge = Judge(self.scene, Blame(self.scene))
        async with trio.open_nursery() as nursery:
            self.scene.kernel.nursery = nursery
            nursery.start_soon(self.scene.network.run)
            async with trio.open_nursery() as root_nursery:
                root_nursery.start_soon(self._wait_broken)
                await self._boot(root_nursery, judge)
                await self._live()
                await judge.settle()
                root_nursery.cancel_scope.cancel("the simulation is over")
            judge.check_over()
            nursery.cancel_scope.cancel("the simulation is over")

    async def _wait_broken(self) -> None:
        await self.scene.breaks.wait()
        raise Violation(self.scene.broken)

    async def _boot(self, nursery: trio.Nursery, judge: Judge) -> None:
        await nursery.start(self.scene.root.engines.run)
        await nursery.start(self.scene.root.frontends.run)
        with trio.move_on_after(BOOT_S) as patience:
            await self.scene.root.frontends.wait_serving()
            if self.scene.setup.waits_for_all:
                await judge.wait_settled()
        if patience.cancelled_caught:
            raise Violation("no frontend serves")
        for fleet in (self.scene.root.engines, self.scene.root.frontends):
            fleet.processes.start_spares()

    async def _live(self) -> None:
        run_client, injector = Clients(self.scene).run_client, Injector(self.scene)
        async with trio.open_nursery() as clients:
            for request in self.scene.requests:
                clients.start_soon(run_client, request)
            async with trio.open_nursery() as faults:
                for fault in self.scene.faults:
                    faults.start_soon(injector.run_fault, fault)
            injector.heal()
            clients.cancel_scope.deadline = trio.current_time() + STREAMS_END_S
        if clients.cancel_scope.cancelled_caught:
            open_ones = [each.request.name for each in self.scene.histories if not each.end]
            raise Violation(f"streams without end: {', '.join(open_ones) or 'refused ones'}")
