"""Judges the end of a simulation: nothing is left of any request, and all agree on who is there.

I4 accounts, I5 no orphan, I6 no leak, I9 bounds, I11 fencing, I12 abort. Looks at every part when
the last stream has ended.
"""

import attrs
import trio

from ...api.application import Application
from ...engine.core.engine_core import EngineCore
from ...runtime.frontend.core_client import CoreClient
from ...runtime.journal.judgement import Refusal
from ...transports.links.channel import Peer
from ...transports.links.link_header import Mishap
from ...transports.links.memory_channel import MemoryHub
from .blame import Blame
from .kernel import SimProcess
from .processes import EngineParts, FrontendParts
from .scene import Scene
from .streams import Violation
from .takeover.clients import SEEDS_EACH
from .takeover.plan import Kind

# From the last stream on until nothing of any request is left, and all agree on who is there.
QUIET_S = 10.0
LOOK_S = 0.2


@attrs.define(eq=False)
class Judge:
    """Of one simulation."""

    scene: Scene
    blame: Blame

    async def settle(self) -> None:
        """Nothing may be left, and all must agree, in bounded time.

        What hangs in the kernel has its time before.
        """
        with trio.move_on_after(self.scene.kernel.lingers_s() + QUIET_S) as patience:
            await self.wait_settled()
        if patience.cancelled_caught:
            raise Violation(f"{QUIET_S:g} s after the last stream: {self.unsettled()}")
        kernel, reached = self.scene.kernel, self.scene.reached
        if self.scene.connections is not None:
            self.scene.connections.check_executed(SEEDS_EACH)
        if kernel.unexplained:
            raise kernel.unexplained[0]
        reached["frames"] = self.scene.network.frames
        for process in kernel.processes:
            match process.parts:
                case FrontendParts(client=client):
                    self._count_connections(process, process.parts.application)
                    reached["sent again"] += client.ledger.sent_again
                    for counted in (client.ledger.refused, client.channel.mishaps):
                        reached.update({str(what): count for what, count in counted.items()})
                    self._check_counters(client)
                case EngineParts(core=EngineCore() as core):
                    counts = core.statistics()
                    reached["preempted"] += counts.preemptions
                    reached["prefix hit"] += counts.prefix_hits
                    if counts.messages_dropped:
                        raise Violation(f"{process} was sent an attempt twice, or an older one")

    def _count_connections(self, process: SimProcess, served: Application | None) -> None:
        if served is None or self.scene.connections is None:
            return
        counters, reached = served.counters, self.scene.reached
        reached["taken over"] += counters.connections_taken_over
        lost = counters.connections_lost - reached[str(Kind.FATAL)]
        if (lost or counters.connections_failed) and process.is_alive:
            raise Violation("a connection was given up")

    async def wait_settled(self) -> None:
        """Look again and again: nothing here would say that it has changed."""
        looked = trio.Event()
        while self.unsettled():
            with trio.move_on_after(LOOK_S):
                await looked.wait()

    def _check_counters(self, client: CoreClient) -> None:
        """Links are whole within a generation, and RESYNC says where the next one begins."""
        for refusal in (Refusal.GAP, Refusal.REPEATED):
            if client.ledger.refused[refusal]:
                raise Violation(f"a ledger saw outputs out of order: {refusal}")
        for mishap in (Mishap.VIOLATION, Mishap.MALFORMED, Mishap.OVERFLOW):
            if client.channel.mishaps[mishap]:
                raise Violation(f"on the links of a frontend: {mishap}")

    def unsettled(self) -> str:
        """What is not as it should be when nobody asks for anything; "" if all is."""
        snapshot = self.scene.root.engines.directory.snapshot()
        if (hosts := self.scene.hosts) is not None and (missing := hosts.unsettled()):
            return missing
        for rank in self.scene.engine_ranks():
            process = self.scene.present("engine", rank)
            if process is None or not isinstance(process.parts, EngineParts):
                return f"engine {rank} is not there"
            core, executor = process.parts.core, process.parts.executor
            if core is None or executor is None:
                return f"engine {rank} boots"
            if executor.is_failing:
                return f"engine {rank} is about to end"
            core.check_invariants()
            counts = core.statistics()
            if counts.running or counts.waiting or core.unfinished_count():
                return f"engine {rank} has requests that nobody wants"
            if counts.kv_blocks_free != counts.kv_blocks:
                return f"engine {rank} has {counts.kv_blocks_free} of {counts.kv_blocks} blocks"
        for rank in range(self.scene.setup.frontends):
            process = self.scene.frontends.get(rank)
            if process is None or not process.is_alive:
                return f"frontend {rank} is not there"
            assert isinstance(process.parts, FrontendParts)
            client, admission = process.parts.client, process.parts.frontend.admission
            client.ledger.check_invariants()
            admission.check_invariants()
            if len(client.ledger) or admission.active_requests:
                return f"frontend {rank} has requests without a client"
            if (forms := process.parts.forms) is not None:
                forms.queue.check_invariants()
                if any(forms.queue.statistics().values()):
                    return f"forms of frontend {rank} wait"
            if client.engines.membership != snapshot:
                return f"frontend {rank} does not know who is there"
            present = {Peer("engine", each.rank, each.epoch) for each in snapshot.engines}
            if not present.issuperset(client.statistics):
                return f"frontend {rank} counts with dead engines"
            channel = client.channel
            assert isinstance(channel, MemoryHub)
            if not present.issuperset(channel.links.peers):
                return f"frontend {rank} keeps links to dead engines"
            if len(client.balancer.engines) != len(snapshot.engines):
                return f"frontend {rank} sends to {client.balancer.engines}"
        if self.scene.root.frontends.connections.held.ranks():
            return "connections are held for clients who are gone"
        if streams := self.scene.root.frontends.connections.balancer.open_streams():
            return f"the root counts {streams} open streams that have ended"
        return self.blame.unsettled()

    def check_over(self) -> None:
        """I5: nothing outlives the root's block, but what hangs in the kernel."""
        processes = self.scene.kernel.processes
        left = [str(each) for each in processes if each.exit is None and not each.lingers]
        if left:
            raise Violation(f"left behind: {', '.join(left)}")
        if self.scene.kernel.unnoticed:
            raise Violation(f"stopped and not ended: {', '.join(self.scene.kernel.unnoticed)}")
        if self.scene.kernel.false_kills:
            raise Violation(f"killed in good order: {', '.join(self.scene.kernel.false_kills)}")
