"""The engine process: its input, output, step and death-monitor tasks, and its workers.

Composition only: what is decided is the core's, what is joined the server's, what is computed the
workers'. Never imports torch. Must not know HTTP, tokenizers or who started it.
"""

import os
from functools import partial

import attrs
import msgspec
import trio

from ..nurseries.background import start_background_task
from ..nurseries.child import ChildFds, run_child
from ..nurseries.process import Process
from ..nurseries.service import open_service
from ..nurseries.task_tree import ProcessTree, task_tree
from ..transports.channel import Peer
from ..transports.codec import Codec
from ..transports.control_channel import ControlChannel
from ..transports.control_handshake import ChildHandshake, perform_child_handshake
from ..transports.passed_fds import close_fds
from ..transports.zmq_channel import SpokeChannel, open_spoke
from .core.engine_core import EngineCore
from .core.orphan_watch import OrphanWatch
from .executor import Executor
from .messages import (
    ENGINE_TO_FRONTEND,
    ENGINE_TO_ROOT,
    FRONTEND_TO_ENGINE,
    ROOT_TO_ENGINE,
    Drain,
    EngineInit,
    EngineReady,
    FrontendMembership,
    TreeReply,
    TreeRequest,
    WorkersChanged,
)
from .server import EngineServer
from .step_loop import run_step_loop
from .step_messages import WorkerReady

# Trees are asked for by people; more at a time than this and the asker waits for its time-out.
TREE_TASKS_MAX = 4


async def main(child: ChildFds) -> None:
    """Run one engine until a stop is ordered. Whatever fails in it, fails it."""
    control = ControlChannel(child.control, sends=ENGINE_TO_ROOT, receives=ROOT_TO_ENGINE)
    handshake = await perform_child_handshake(control, "engine")
    init = msgspec.msgpack.decode(handshake.init, type=EngineInit)
    engine = EngineProcess(init, control, handshake)
    me = Peer("engine", init.rank, init.epoch)
    async with open_spoke(me, Codec(*FRONTEND_TO_ENGINE), Codec(*ENGINE_TO_FRONTEND)) as channel:
        await engine.run(channel)


@attrs.define(eq=False)
class EngineProcess:
    """What this process is made of."""

    init: EngineInit
    control: ControlChannel
    handshake: ChildHandshake
    _executor: Executor = attrs.field(init=False)
    _server: EngineServer = attrs.field(init=False)
    _known: set[Peer] = attrs.field(factory=set, init=False)
    _membership_number: int = attrs.field(default=-1, init=False)
    _trees: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(TREE_TASKS_MAX), init=False
    )

    async def run(self, channel: SpokeChannel) -> None:
        """Bring everything up in order, say READY, then serve until cancelled.

        The sockets outlive the tasks that send through them, the workers the loop that drives them.
        """
        async with (
            open_service(channel.run_output, name="output-socket-thread"),
            open_service(channel.run_input, name="input-socket-thread"),
            trio.open_nursery() as nursery,
        ):
            reports = _Reports(nursery, self.control, self.handshake)
            self._executor = Executor(
                self.init.settings,
                self.init.epoch,
                on_progress=reports.progress,
                on_workers=reports.workers,
            )
            async with open_service(self._executor.run, name="executor") as executor:
                await self._serve(nursery, channel, executor.value)

    async def _serve(
        self, nursery: trio.Nursery, channel: SpokeChannel, workers: WorkerReady
    ) -> None:
        settings = self.init.settings
        core = EngineCore(settings, workers)
        self._server = EngineServer(
            core, channel, OrphanWatch[Peer](settings.orphan_s), tree=self._tree_text
        )
        self._apply_membership(self.init.membership, channel)
        server = self._server
        async with trio.open_nursery() as tasks:
            await start_background_task(tasks, server.run_input, name="input-handler")
            await start_background_task(tasks, server.run_orphan_watch, name="orphan-watch")
            await start_background_task(tasks, server.run_utilities, name="utilities")
            await start_background_task(
                tasks, partial(run_step_loop, server, self._executor), name="step-loop"
            )
            ready = self._ready(core, workers)
            await self.handshake.ready(msgspec.msgpack.encode(ready))
            await start_background_task(
                tasks, partial(self._run_control, tasks, channel), name="control"
            )

    def _ready(self, core: EngineCore, workers: WorkerReady) -> EngineReady:
        return EngineReady(
            kv_blocks=workers.kv_blocks,
            block_tokens=self.init.settings.block_tokens,
            max_model_len=core.max_model_len,
            max_num_seqs=self.init.settings.max_num_seqs,
            vocab_size=workers.vocab_size,
            numerics_id=workers.numerics_id,
            bitwise=workers.bitwise,
            settings_digest=self.init.settings.digest(),
        )

    async def _run_control(
        self,
        nursery: trio.Nursery,
        channel: SpokeChannel,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task `control`: the root's orders. Its end of the socket is the root's end."""
        task_status.started()
        while True:
            message, fds = await self.control.receive()
            close_fds(fds)
            match message:
                case FrontendMembership():
                    self._apply_membership(message, channel)
                case Drain():
                    self._server.core.start_drain()
                case TreeRequest(call_id=call_id):
                    nursery.start_soon(self._answer_tree, call_id, name="tree-request")
                case _:
                    raise AssertionError(f"the codec let {type(message).__name__} through")

    def _apply_membership(self, membership: FrontendMembership, channel: SpokeChannel) -> None:
        """Numbered full snapshots, the latest wins: connect who is new, give up who is gone."""
        if membership.number <= self._membership_number:
            return
        self._membership_number = membership.number
        listed = {}
        for address in membership.frontends:
            peer = Peer("frontend", address.rank, address.epoch)
            listed[peer] = (address.input_endpoint, address.output_endpoint)
        for peer in self._known - set(listed):
            self._server.give_up(peer)
        for peer in set(listed) - self._known:
            channel.connect(peer, *listed[peer])
        self._known = set(listed)

    # ---- the live tree

    async def _answer_tree(self, call_id: int) -> None:
        async with self._trees:
            await self.control.send(TreeReply(call_id, await self._tree_text()))

    async def _tree_text(self) -> str:
        statistics = self._server.core.statistics()
        tree = ProcessTree(
            f"engine {self.init.rank}",
            os.getpid(),
            facts={
                "epoch": self.init.epoch,
                "step": statistics.step,
                "running": statistics.running,
                "waiting": statistics.waiting,
                "kv blocks": f"{statistics.kv_blocks_free} of {statistics.kv_blocks} free",
            },
            tasks=task_tree(),
            processes=await self._executor.trees(),
        )
        return msgspec.json.encode(tree).decode()


@attrs.define(eq=False)
class _Reports:
    """What goes up to the root while this process starts: progress, and who its workers are."""

    nursery: trio.Nursery
    control: ControlChannel
    handshake: ChildHandshake

    def progress(self, phase: str, fraction: float) -> None:
        """One progress message, in the order of the calls: sends are queued first come."""
        self.nursery.start_soon(self.handshake.progress, phase, fraction, name="progress")

    def workers(self, processes: list[Process]) -> None:
        """The root must wait for these after our death, so it hears of them at once."""
        pids = [process.pid for process in processes]
        self.nursery.start_soon(
            self._send_workers, pids, [os.dup(p.pidfd) for p in processes], name="workers-changed"
        )

    async def _send_workers(self, pids: list[int], pidfds: list[int]) -> None:
        try:
            await self.control.send(WorkersChanged(pids), pidfds)
        finally:
            close_fds(pidfds)


if __name__ == "__main__":
    run_child(main)
