"""A real engine process with real workers, and the test as its root; no frontend."""

import pathlib
import secrets
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio

from triolet.engine.config import WORKER_MODULE, EngineSettings
from triolet.engine.control_messages import (
    ENGINE_TO_ROOT,
    ROOT_TO_ENGINE,
    Drain,
    EngineInit,
    EngineReady,
    Failing,
    FrontendAddress,
    FrontendMembership,
    TreeReply,
    TreeRequest,
    WorkersChanged,
)
from triolet.engine.messages import ENGINE_TO_FRONTEND, FRONTEND_TO_ENGINE
from triolet.engine.process.executor import LOSSES_MAX
from triolet.engine.process.main import TREE_TASKS_MAX
from triolet.nurseries.processes.death_watch import wait_process_gone
from triolet.nurseries.processes.process import Process, ProcessSpec, open_process
from triolet.nurseries.processes.process_exit import EXIT_CHILD_KILLED
from triolet.nurseries.processes.spares import APART
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.tests.contracts.channel import running
from triolet.tests.contracts.engine import ME, Caller
from triolet.tests.engine.steps import VOCAB_SIZE, write_sizes
from triolet.tests.leaks import check_no_leaks
from triolet.tests.live_tasks import find_tasks
from triolet.transports.codec import Codec
from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.handshake import PeerRefused, perform_parent_handshake
from triolet.transports.control.passed_fds import close_fds
from triolet.transports.endpoint import abstract_endpoint
from triolet.transports.links.channel import Peer
from triolet.transports.links.curve import make_link_keys
from triolet.transports.links.link_keys import LinkKeys
from triolet.transports.links.zmq_channel import HubChannel, HubSide, open_hub

pytestmark = pytest.mark.slow
DEADLINE_S = 60.0
TASKS = {
    "death-monitor", "input-socket-thread", "output-socket-thread", "executor", "input-handler",
    "orphan-watch", "utilities", "statistics", "grammar-compiler", "step-loop", "control",
    "worker-0", "worker-1",
}  # fmt: skip


@attrs.define(eq=False)
class Root:
    """The root's side of one engine."""

    process: Process
    control: ControlChannel
    ready: EngineReady = attrs.field(init=False)
    progress: list[float] = attrs.field(factory=list)
    # The latest WORKERS_CHANGED: pids, and the pidfds that came beside it.
    worker_pids: list[int] = attrs.field(factory=list)
    worker_pidfds: list[int] = attrs.field(factory=list)

    async def bring_up(
        self,
        settings: EngineSettings,
        membership: FrontendMembership,
        link_keys: LinkKeys | None = None,
    ) -> None:
        init = EngineInit(
            run_id="test",
            rank=0,
            epoch=2,
            settings=settings,
            membership=membership,
            link_keys=link_keys,
        )
        payload = await perform_parent_handshake(
            self.control,
            msgspec.msgpack.encode(init),
            who="engine 0",
            role="engine",
            pid=self.process.pid,
            boot_timeout_s=DEADLINE_S,
            on_progress=lambda _, fraction: self.progress.append(fraction),
            on_other=self._take,
        )
        self.ready = msgspec.msgpack.decode(payload, type=EngineReady)

    def _take(self, message: object, fds: Sequence[int]) -> None:
        assert isinstance(message, WorkersChanged)
        known = self.worker_pids[: len(message.pids) - 1]
        assert message.pids[:-1] == known, "they are told in order"
        close_fds(self.worker_pidfds)
        self.worker_pids, self.worker_pidfds = message.pids, list(fds)

    async def take_workers(self, count: int) -> None:
        """The pids and pidfds of those that are spawned next."""
        self.worker_pids = []
        while len(self.worker_pids) < count:
            self._take(*await self.control.receive())

    async def receive_tree(self) -> TreeReply:
        reply, _ = await self.control.receive()
        assert isinstance(reply, TreeReply)
        return reply

    async def tree(self, call_id: int) -> ProcessTree:
        """With all workers: the engine leaves out those that were too late, and is asked again."""
        while True:
            await self.control.send(TreeRequest(call_id))
            reply = await self.receive_tree()
            assert reply.call_id == call_id
            tree = msgspec.json.decode(reply.tree, type=ProcessTree)
            if len(workers_of(tree)) == len(self.worker_pids):
                return tree

    async def wait_workers_gone(self) -> None:
        for pidfd in self.worker_pidfds:
            await wait_process_gone(pidfd)


def workers_of(engine: ProcessTree) -> list[ProcessTree]:
    """Without those that are to spare, and what makes them."""
    return [process for process in engine.processes if not process.name.startswith(APART)]


@asynccontextmanager
async def open_engine(
    folder: pathlib.Path,
    membership: FrontendMembership | None = None,
    *,
    ahead: tuple[str, ...] = (),
    link_keys: LinkKeys | None = None,
    **settings: Any,
) -> AsyncIterator[Root]:
    """An engine that is ready; nothing is left of it and its workers afterwards."""
    engine = EngineSettings(model=str(folder), executor="null", **settings)
    spec = ProcessSpec("engine 0", "triolet.engine.process.main", ahead=ahead)
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(spec) as process:
            control = ControlChannel(process.control, sends=ROOT_TO_ENGINE, receives=ENGINE_TO_ROOT)
            root = Root(process, control)
            try:
                await root.bring_up(engine, membership or FrontendMembership(0, []), link_keys)
                yield root
                process.ask_to_stop()
                await process.wait_exited()
                await root.wait_workers_gone()
            finally:
                close_fds(root.worker_pidfds)


async def test_from_init_to_an_ordered_stop(tmp_path: pathlib.Path) -> None:
    folder = write_sizes(tmp_path)
    async with open_engine(folder, ahead=(WORKER_MODULE,), workers=2, max_num_seqs=3) as root:
        assert root.progress == sorted(root.progress)
        assert root.progress[-1] == 1.0
        assert len(root.worker_pids) == len(root.worker_pidfds) == 2
        assert (root.ready.vocab_size, root.ready.max_num_seqs) == (VOCAB_SIZE, 3)
        assert root.ready.settings_digest

        tree = await root.tree(5)
        assert (tree.name, tree.pid) == ("engine 0", root.process.pid)
        assert tree.tasks is not None
        for name in TASKS:
            assert len(find_tasks(tree.tasks, name)) == 1, name
        assert not find_tasks(tree.tasks, "progress"), "it belongs to the boot"
        assert sorted(worker.pid for worker in workers_of(tree)) == sorted(root.worker_pids)

        root.process.ask_to_stop()
        assert (await root.process.wait_exited()).code == 0


async def test_workers_are_replaced_a_few_times_and_then_take_the_engine_along(
    tmp_path: pathlib.Path,
) -> None:
    async with open_engine(write_sizes(tmp_path), workers=2) as root:
        for losses in range(1, LOSSES_MAX + 1):
            before = root.worker_pids
            signal.pidfd_send_signal(root.worker_pidfds[0], signal.SIGKILL)
            await root.take_workers(2)
            assert not set(before) & set(root.worker_pids)
            tree = await root.tree(losses)
            assert [worker.facts["pool_number"] for worker in tree.processes] == [losses] * 2
            assert tree.facts["worker restarts"] == losses
        signal.pidfd_send_signal(root.worker_pidfds[0], signal.SIGKILL)
        exit_of_engine = await root.process.wait_exited()
        assert exit_of_engine.code == EXIT_CHILD_KILLED
        assert "was killed by SIGKILL" in exit_of_engine.cause
        assert "worker-" in exit_of_engine.cause
        await root.wait_workers_gone()


async def test_the_root_hears_of_a_lost_worker_before_the_others_are_ended(
    tmp_path: pathlib.Path,
) -> None:
    async with open_engine(write_sizes(tmp_path), workers=3) as root:
        signal.pidfd_send_signal(root.worker_pidfds[1], signal.SIGSTOP)  # takes the whole ladder
        signal.pidfd_send_signal(root.worker_pidfds[0], signal.SIGABRT)
        failing, _ = await root.control.receive()
        assert root.process.exit is None
        assert isinstance(failing, Failing)
        assert "was killed by SIGABRT" in failing.cause
        assert failing.is_own_fault
        await root.process.wait_exited()


async def test_a_root_that_closes_its_end_is_gone(tmp_path: pathlib.Path) -> None:
    async with open_engine(write_sizes(tmp_path)) as root:
        root.control.close()
        assert (await root.process.wait_exited()).code == 1
        await root.wait_workers_gone()


async def test_a_folder_without_a_model_is_refused_for_good(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PeerRefused, match="there is no such folder"):
        async with open_engine(tmp_path / "nothing"):
            pytest.fail("it was never ready")


async def test_the_latest_list_of_frontends_counts(tmp_path: pathlib.Path) -> None:
    absent = [
        FrontendAddress(rank, 1, f"ipc://@triolet-absent-{rank}-in", f"ipc://@triolet-{rank}-out")
        for rank in range(2)
    ]
    async with open_engine(write_sizes(tmp_path), FrontendMembership(5, absent[:1])) as root:
        assert (await root.tree(1)).facts["frontends"] == 1
        for number, listed, known in ((4, [], 1), (5, absent, 1), (6, absent, 2), (7, [], 0)):
            await root.control.send(FrontendMembership(number, listed))
            assert (await root.tree(number)).facts["frontends"] == known


async def test_an_engine_of_another_host_comes_by_the_remote_side_alone(
    tmp_path: pathlib.Path,
) -> None:
    mine, theirs = make_link_keys(), make_link_keys()
    anywhere = "tcp://127.0.0.1:0"
    remote = HubSide(anywhere, anywhere, theirs)
    async with open_frontend(remote) as (caller, address):
        hub = caller.hub
        assert isinstance(hub, HubChannel)
        hub.allow({mine.public: frozenset({0})})
        inputs, outputs = hub.remote_endpoints
        here = attrs.evolve(
            address,
            input_endpoint="ipc://@triolet-absent-in",
            output_endpoint="ipc://@triolet-absent-out",
            remote_input=inputs,
            remote_output=outputs,
            server_key=theirs.public,
        )
        other = FrontendAddress(7, 1, *hub.endpoints)  # no other host reaches it
        listed = FrontendMembership(1, [here, other])
        async with open_engine(write_sizes(tmp_path), listed, link_keys=mine) as root:
            await caller.until(lambda: caller.resynced > 0)
            assert (await root.tree(1)).facts["frontends"] == 1


@asynccontextmanager
async def open_frontend(
    remote: HubSide | None = None,
) -> AsyncIterator[tuple[Caller, FrontendAddress]]:
    """A frontend, and where engines find it."""
    run_id = secrets.token_hex(8)
    endpoints = [
        abstract_endpoint(run_id, ME.role, ME.rank, ME.epoch, socket=name)
        for name in ("input", "output")
    ]
    codecs = Codec(*ENGINE_TO_FRONTEND), Codec(*FRONTEND_TO_ENGINE)
    hub = open_hub(
        ME,
        *codecs,
        input_endpoint=endpoints[0],
        output_endpoint=endpoints[1],
        remote=remote,
    )
    async with hub as channel, running(channel):
        address = FrontendAddress(ME.rank, ME.epoch, *channel.endpoints)
        yield Caller(channel, Peer("engine", 0, 2)), address


async def test_it_serves_whom_it_is_told_of_until_it_drains(tmp_path: pathlib.Path) -> None:
    async with (
        open_frontend() as (caller, address),
        open_engine(write_sizes(tmp_path), FrontendMembership(1, [address])) as root,
    ):
        await caller.until(lambda: caller.resynced > 0)
        going_on = caller.add("going on", credit=2)
        await caller.until(lambda: len(going_on.token_ids) == 2)

        await root.control.send(Drain())
        await root.tree(1)  # it has been read by now
        late = caller.add("late")
        await caller.until(lambda: late.end is not None)
        assert late.end is not None
        assert late.end.error_code == "engine_draining"
        caller.grant(going_on, None)
        await caller.until(lambda: going_on.end is not None)
        assert len(going_on.token_ids) == 12

        await root.control.send(FrontendMembership(2, []))
        assert (await root.tree(2)).facts["frontends"] == 0


async def test_questions_are_bounded_and_a_stopped_worker_is_left_out(
    tmp_path: pathlib.Path,
) -> None:
    async with open_engine(write_sizes(tmp_path)) as root:
        signal.pidfd_send_signal(root.worker_pidfds[0], signal.SIGSTOP)
        asked = 50
        async with trio.open_nursery() as nursery:
            for call_id in range(1, asked + 1):
                nursery.start_soon(root.control.send, TreeRequest(call_id))
            first = await root.receive_tree()
        assert workers_of(msgspec.json.decode(first.tree, type=ProcessTree)) == []
        signal.pidfd_send_signal(root.worker_pidfds[0], signal.SIGCONT)
        answered = {first.call_id}
        while asked + 1 not in answered:
            await root.control.send(TreeRequest(asked + 1))  # it may have been one too many
            answered.add((await root.receive_tree()).call_id)
        # Twice as many if it stood still while it read them, until the first were given up.
        assert TREE_TASKS_MAX < len(answered) <= 2 * TREE_TASKS_MAX + 1
