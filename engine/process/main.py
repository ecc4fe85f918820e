"""Engine process: its sockets, its workers, the tasks that serve frontends, and the root's orders.

Composition only: decisions are the core's, messages the server's, computing the workers'. Never
imports torch.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import msgspec
import trio

from ...nurseries.processes.child import ChildFds, run_child
from ...nurseries.processes.heap import settle_heap
from ...nurseries.processes.kept_process import keep_while
from ...nurseries.processes.process import LadderTimes
from ...nurseries.processes.process_exit import ProcessDied
from ...nurseries.processes.progress_page import SLOT_BYTES, ProgressSlot, open_slot, passes_shown
from ...nurseries.processes.spares import Readiness, Spares
from ...nurseries.processes.spawned import Spawned
from ...nurseries.processes.title import set_title
from ...nurseries.processes.watched import Watch, WatchedProcess
from ...nurseries.tasks.background import (
    start_background_task,
    start_background_task_soon,
    waiting_for,
)
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import first_error, open_service
from ...nurseries.tasks.task_tree import ProcessTree, task_tree
from ...transports.codec import Codec
from ...transports.control.channel import ControlChannel
from ...transports.control.handshake import ChildHandshake, perform_child_handshake
from ...transports.control.passed_fds import close_fds
from ...transports.links.channel import Peer
from ...transports.links.zmq_spoke import SpokeChannel, open_spoke
from ..batch_table import BatchTable, open_batch_table
from ..block_names import OpenNames, open_block_names
from ..config import EngineSettings, worker_module_ahead
from ..control_messages import (
    ENGINE_TO_ROOT,
    ROOT_TO_ENGINE,
    Drain,
    EngineInit,
    Failing,
    FrontendMembership,
    Passed,
    TreeReply,
    TreeRequest,
)
from ..core.engine_core import EngineCore
from ..core.kv_events import KVEventLog
from ..errors import EngineError, PromiseBroken, refusal_of
from ..messages import ENGINE_TO_FRONTEND, FRONTEND_TO_ENGINE
from ..place_memory import PlaceMemory
from ..step_messages import WorkerReady
from ..step_recorder import StepRecorder, open_recorder
from .boot_reports import BootReports
from .executor import Executor
from .grammar_compiler import RunCompiler, run_grammar_compiler
from .kv_publisher import open_kv_publisher
from .server import STATISTICS_PERIOD_S, EngineServer
from .services import describe_engine, open_engine_services
from .watched_engine import WatchedEngine

# Trees are asked for by people; one more at a time is not answered, and its asker gives up.
TREE_TASKS_MAX = 4
# After new workers are ready: what was interrupted goes on first.
SPARE_SETTLE_S = 0.5


async def main(child: ChildFds, make: "Callable[..., EngineProcess] | None" = None) -> None:
    """Run one engine until a stop is ordered. Whatever fails in it, fails it."""
    control = ControlChannel(child.control, sends=ENGINE_TO_ROOT, receives=ROOT_TO_ENGINE)
    set_title("engine, waiting")
    codecs = Codec(*FRONTEND_TO_ENGINE), Codec(*ENGINE_TO_FRONTEND)  # before the root waits for us
    # A spare waits here for ever; one that has lost its worker is none.
    handshake, ahead = await keep_while(
        child.ahead, partial(perform_child_handshake, control, "engine")
    )
    page_fd = handshake.fds[0] if handshake.fds else None
    init = msgspec.msgpack.decode(handshake.init, type=EngineInit)
    me = Peer("engine", init.rank, init.epoch)
    set_title(f"engine {init.rank}")
    after_slots = SLOT_BYTES * (1 + init.settings.workers)
    try:
        with (
            open_recorder(init.settings.record_steps, "engine") as recorder,
            open_slot(page_fd, 0) as progress,
            open_batch_table(page_fd, after_slots, init.settings.max_num_seqs) as batches,
            passes_shown(progress),
        ):
            async with open_spoke(me, *codecs, keys=init.link_keys) as channel:
                engine = (make or EngineProcess)(
                    init, control, handshake, channel, recorder, progress, batches, ahead
                )
                await engine.run()
    except* EngineError as errors:
        if not handshake.booting:
            raise
        # A folder or a setting that cannot be served: a successor would meet the same.
        await handshake.refuse(*refusal_of(first_error(errors)))
    finally:
        close_fds(handshake.fds)


def spare_workers(settings: EngineSettings) -> Spares:
    """A worker that has imported everything, to take the place of one that dies.

    With several workers all are new after a death: there it would be of no use.
    """
    return Spares(
        role="worker",
        module=worker_module_ahead(settings),
        count=int(settings.workers == 1),
        warm_up_s=settings.boot_timeout_s,
        ladder=LadderTimes(),
        readiness=Readiness(),
        settle_s=SPARE_SETTLE_S,
        forks=True,
    )


@attrs.define(eq=False)
class EngineProcess:
    """Parts of this process."""

    init: EngineInit
    control: ControlChannel
    handshake: ChildHandshake
    channel: SpokeChannel
    recorder: StepRecorder
    progress: ProgressSlot
    batches: BatchTable
    ahead: Sequence[Spawned] = ()  # workers that were started with this process
    make_executor: Callable[..., Executor] = Executor
    make_spares: Callable[[EngineSettings], Spares] = spare_workers
    run_compiler: RunCompiler = run_grammar_compiler
    open_names: OpenNames = open_block_names
    settle: Callable[[], None] = settle_heap
    statistics_period_s: float = STATISTICS_PERIOD_S
    _spares: Spares = attrs.field(init=False)
    _executor: Executor = attrs.field(init=False)
    _server: EngineServer = attrs.field(init=False)
    _watched: WatchedProcess = attrs.field(init=False)
    # Wakes the step loop.
    _work: Doorbell = attrs.field(factory=Doorbell, init=False)
    _known: set[Peer] = attrs.field(factory=set, init=False)
    _membership_number: int = attrs.field(default=-1, init=False)

    async def run(self) -> None:
        """Bring everything up in order, say READY, then serve until cancelled.

        The sockets outlive the tasks that send through them, the workers the loop that drives them.
        Raises what ended it: `ProcessDied` of a worker, `StepFailed`, `ServiceEnded`, …
        """
        workers = self.init.settings.workers
        reports = BootReports(self.control, self.handshake, workers)
        self._spares = self.make_spares(self.init.settings)
        self._executor = self.make_executor(
            self.init.settings,
            self.init.epoch,
            on_progress=reports.progress,
            on_workers=reports.workers,
            recorder=self.recorder,
            ahead=self.ahead,
            on_failing=self._show_failing,
            on_loss=self._work.ring,
            engine_fds=self.handshake.fds,
            spares=self._spares,
        )
        async with (
            open_service(
                self.channel.run_deadlines, name="link-deadlines", waits_for="links' deadlines"
            ),
            open_service(self.channel.run_output, name="output-socket-thread", waits_for="frames"),
            open_service(self.channel.run_input, name="input-socket-thread", waits_for="frames"),
            trio.open_nursery() as nursery,
        ):
            progress = await start_background_task(nursery, reports.run_progress, name="progress")
            async with open_service(self._executor.run, name="executor") as executor:
                await reports.end_progress(progress)
                self._spares.start(nursery)
                await self._serve(executor.value)

    async def _serve(self, workers: WorkerReady) -> None:
        settings, memory = self.init.settings, PlaceMemory.of(self.handshake.fds[1:])
        names_fd = memory.names if memory else None
        kv_news = Doorbell()
        kv_events = KVEventLog.of(settings, kv_news.ring)
        with self.open_names(names_fd, workers, settings.block_tokens) as names:
            await self._serve_core(EngineCore(settings, workers, names, kv_events), kv_news)

    async def _serve_core(self, core: EngineCore, kv_news: Doorbell) -> None:
        self._server = EngineServer(
            core,
            self.channel,
            self._tree_text,
            self._tell_passed,
            self._work,
            statistics_period_s=self.statistics_period_s,
        )
        self._apply_membership(self.init.membership)
        self._watched = self._make_watched()
        parts = self._server, self._executor, self.recorder, self.progress
        try:
            batches, run_compiler = self.batches, self.run_compiler
            async with (
                open_kv_publisher(core.kv_events, kv_news, core.settings, self.init.rank),
                open_engine_services(*parts, batches=batches, run_compiler=run_compiler),
            ):
                self.settle()
                await self.handshake.ready(msgspec.msgpack.encode(describe_engine(core)))
                async with (
                    open_service(self._watched.run, name="watched"),
                    open_service(self._run_control, name="control"),
                ):
                    await trio.sleep_forever()
        except (EngineError, ProcessDied) as error:
            self._show_failing(error)
            raise

    def _show_failing(self, error: Exception) -> None:
        """Tell the root that we will end, before the workers are ended: frontends go elsewhere."""
        if not self.handshake.booting:
            is_own_fault = not isinstance(error, PromiseBroken)
            if isinstance(error, ProcessDied):
                is_own_fault = error.exit.is_own_fault
            self.control.send_nowait(Failing(str(error).partition("\n")[0], is_own_fault))

    def _tell_passed(self, passed: dict[bytes, int]) -> None:
        """If there is no room, the next of the same content tells it."""
        self.control.send_nowait(Passed(passed))

    async def _run_control(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `control`: the root's orders. Its end of the socket is the root's end."""
        async with trio.open_nursery() as trees:
            task_status.started()
            while True:
                with waiting_for("orders"):
                    message, fds = await self.control.receive()
                close_fds(fds)
                match message:
                    case FrontendMembership():
                        self._apply_membership(message)
                    case Watch():
                        self._watched.handle_watch(message)
                    case Drain():
                        self._server.core.start_drain()
                    case TreeRequest(call_id=call_id):
                        if len(trees.child_tasks) < TREE_TASKS_MAX:
                            start_background_task_soon(
                                trees, self._answer_tree, call_id, name="tree-request"
                            )
                    case _:
                        raise AssertionError(f"the codec let {type(message).__name__} through")

    def _apply_membership(self, membership: FrontendMembership) -> None:
        """Numbered full snapshots, the latest wins: connect who is new, forget who is gone."""
        if membership.number <= self._membership_number:
            return
        self._membership_number = membership.number
        listed = {}
        for address in membership.frontends:
            peer = Peer("frontend", address.rank, address.term)
            if self.init.link_keys is None:
                listed[peer] = (address.input_endpoint, address.output_endpoint, b"")
            elif address.server_key:  # else no other host reaches it
                listed[peer] = (address.remote_input, address.remote_output, address.server_key)
        terms = {peer.rank: peer.epoch for peer in listed}
        self._server.handle_listed(terms, membership.awaited)
        for peer in sorted(self._known.difference(listed)):
            self.channel.forget(peer)
        for peer, where in listed.items():
            if peer not in self._known:
                self.channel.connect(peer, *where)
        self._known = set(listed)

    # ---- the live tree

    async def _answer_tree(self, call_id: int) -> None:
        await self.control.send(TreeReply(call_id, await self._tree_text()))

    async def _tree_text(self) -> str:
        statistics = self._server.core.statistics()
        tree = ProcessTree(
            self._name,
            os.getpid(),
            facts={
                "epoch": self.init.epoch,
                "frontends": len(self._known),
                "messages fenced": self._server.homes.fenced.total(),
                "worker restarts": statistics.worker_restarts,
                "step": statistics.step,
                "running": statistics.running,
                "waiting": statistics.waiting,
                "kv blocks": f"{statistics.kv_blocks_free} of {statistics.kv_blocks} free",
            },
            tasks=task_tree(),
            processes=[*await self._executor.trees(), *self._spares.trees()],
        )
        return msgspec.json.encode(tree).decode()

    def _make_watched(self) -> WatchedProcess:
        core, executor = self._server.core, self._executor
        engine = WatchedEngine(self._name, core.statistics, executor.trees, self._spares)
        return WatchedProcess(engine, self.control.send)

    @property
    def _name(self) -> str:
        return f"engine {self.init.rank}"


if __name__ == "__main__":
    run_child(main)
