"""Warm spares: processes that have imported everything, have said HELLO, and wait for INIT.

A spare has no rank, no epoch and no settings before INIT, so it can become any child of its role,
under whatever the settings are by then. The shell over `SparePolicy`; a life that begins takes one
if there is one. Must not know what the processes do.
"""

from collections.abc import Sequence

import attrs
import trio

from ...nurseries.processes.child_pids import child_pids
from ...nurseries.processes.kept_process import KeptProcess, keep_process
from ...nurseries.processes.process import ProcessSpec, ProcessStuck
from ...nurseries.processes.shutdown_ladder import LadderTimes
from ...nurseries.processes.spawned import Spawned
from ...nurseries.tasks.service import start_service_soon
from ...nurseries.tasks.task_tree import ProcessTree
from ...nurseries.tasks.waiting import waiting_for
from .readiness import CALM_S, SparePolicy, Unrest

# The children of a spare are asked for by nobody, and have no name yet.
_CHILD_NAME = "worker"


@attrs.define(eq=False)
class CalmBell:
    """`Unrest` for those who wait: `changed` is set and replaced when calm begins."""

    unrest: Unrest = attrs.field(factory=Unrest)
    changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    def missing(self, child: str) -> None:
        """See `Unrest.handle_missing`."""
        self.unrest.handle_missing(child)

    def settled(self, child: str) -> None:
        """See `Unrest.handle_settled`; wakes who waits."""
        if self.unrest.handle_settled(child, trio.current_time()):
            self.changed.set()
            self.changed = trio.Event()


@attrs.define(eq=False)
class Spares:
    """Up to `count` spares for the children of one `role`, which run `module`.

    `warm_up_s` is how long one may take to HELLO.
    """

    role: str
    module: str
    count: int
    warm_up_s: float
    ladder: LadderTimes
    calm: CalmBell
    ahead: Sequence[str] = ()
    calm_s: float = CALM_S
    # {place: the process that is kept for it}, until it is taken over or reaped.
    _kept: dict[int, KeptProcess] = attrs.field(factory=dict, init=False)
    _policies: dict[int, SparePolicy] = attrs.field(factory=dict, init=False)

    def start(self, nursery: trio.Nursery) -> None:
        """Start a background task `spare-ROLE-N` for each place. They never return by themselves.

        Nothing begins in a nursery that ends. Cancellation: the spare is stopped by the ladder, and
        reaped.
        """
        if nursery.cancel_scope.cancel_called:
            return
        for place in range(self.count):
            start_service_soon(nursery, self._fill, place, name=f"spare-{self.role}-{place}")

    def take(self) -> Spawned | None:
        """A spare, warm if there is such; None if there is none. The caller owns it at once.

        One that is found dead or stopped is passed over, and replaced later.
        """
        for place, kept in sorted(self._kept.items(), key=lambda item: (not item[1].warm, item[0])):
            if (spawned := kept.take()) is not None:
                del self._kept[place]
                self._policies[place].handle_taken()
                return spawned
        return None

    def pids(self) -> set[int]:
        """Processes that are ours to reap."""
        return {kept.process.pid for kept in self._kept.values()}

    def trees(self) -> list[ProcessTree]:
        """Spares as what they are; they cannot be asked, the kernel knows their children."""
        return [self._tree(place, kept) for place, kept in sorted(self._kept.items())]

    def _tree(self, place: int, kept: KeptProcess) -> ProcessTree:
        since_s = trio.current_time() - kept.since_s
        facts = {"phase": "warm" if kept.warm else "starts", "since": f"{since_s:.1f} s"}
        pid = kept.process.pid
        children = [ProcessTree(f"{_CHILD_NAME} {n}", p) for n, p in enumerate(child_pids(pid))]
        return ProcessTree(f"spare {self.role} {place}", pid, facts, processes=children)

    async def _fill(self, place: int) -> None:
        """Background task `spare-ROLE-N`: keep one there, as the policy says."""
        policy = self._policies[place] = SparePolicy(self.calm_s)
        while True:
            due_s = policy.next_start(self.calm.unrest.calm_since_s)
            lost = f" (lost: {policy.losses})" if policy.losses else ""
            with trio.move_on_at(due_s) as due, waiting_for(f"calm, to start a spare{lost}"):
                await self.calm.changed.wait()
            still_s = policy.next_start(self.calm.unrest.calm_since_s)
            if due.cancelled_caught and due_s == still_s:
                await self._keep_one(place, policy)

    async def _keep_one(self, place: int, policy: SparePolicy) -> None:
        policy.handle_started(trio.current_time())
        spec = ProcessSpec(f"spare {self.role} {place}", self.module, ahead=tuple(self.ahead))

        def kept(process: KeptProcess) -> None:
            self._kept[place] = process

        try:
            await keep_process(spec, warm_up_s=self.warm_up_s, ladder=self.ladder, on_kept=kept)
        except (OSError, ProcessStuck):
            pass  # no spare, for want of descriptors or memory: nobody is missing one yet
        finally:
            if policy.since_s is not None:
                self._kept.pop(place, None)
                policy.handle_lost(trio.current_time())
