"""A real engine process with real workers, and the test as its root; no frontend."""

import pathlib
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio

from triolet.engine.config import EngineSettings
from triolet.engine.messages import (
    ENGINE_TO_ROOT,
    ROOT_TO_ENGINE,
    Drain,
    EngineInit,
    EngineReady,
    FrontendAddress,
    FrontendMembership,
    TreeReply,
    TreeRequest,
    WorkersChanged,
)
from triolet.nurseries.death_watch import wait_process_gone
from triolet.nurseries.process import Process, ProcessSpec, open_process
from triolet.nurseries.task_tree import ProcessTree, find_tasks
from triolet.tests.engine.steps import VOCAB_SIZE, write_sizes
from triolet.tests.leaks import check_no_leaks
from triolet.transports.control_channel import ControlChannel
from triolet.transports.control_handshake import perform_parent_handshake
from triolet.transports.handshake_messages import PeerRefused
from triolet.transports.passed_fds import close_fds

pytestmark = pytest.mark.slow
DEADLINE_S = 60.0
TASKS = {
    "death-monitor", "input-socket-thread", "output-socket-thread", "executor", "input-handler",
    "orphan-watch", "utilities", "step-loop", "control", "worker-0", "worker-1",
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

    async def bring_up(self, settings: EngineSettings, membership: FrontendMembership) -> None:
        init = EngineInit(run_id="test", rank=0, epoch=2, settings=settings, membership=membership)
        payload = await perform_parent_handshake(
            self.control,
            msgspec.msgpack.encode(init),
            who="engine 0",
            role="engine",
            epoch=2,
            pid=self.process.pid,
            boot_timeout_s=DEADLINE_S,
            on_progress=lambda _, fraction: self.progress.append(fraction),
            on_other=self._take,
        )
        self.ready = msgspec.msgpack.decode(payload, type=EngineReady)

    def _take(self, message: object, fds: Sequence[int]) -> None:
        assert isinstance(message, WorkersChanged)
        assert message.pids[: len(self.worker_pids)] == self.worker_pids, "they are told in order"
        close_fds(self.worker_pidfds)
        self.worker_pids, self.worker_pidfds = message.pids, list(fds)

    async def receive_tree(self) -> TreeReply:
        reply, _ = await self.control.receive()
        assert isinstance(reply, TreeReply)
        return reply

    async def tree(self, call_id: int) -> ProcessTree:
        await self.control.send(TreeRequest(call_id))
        reply = await self.receive_tree()
        assert reply.call_id == call_id
        return msgspec.json.decode(reply.tree, type=ProcessTree)

    async def wait_workers_gone(self) -> None:
        for pidfd in self.worker_pidfds:
            await wait_process_gone(pidfd)


@asynccontextmanager
async def open_engine(
    folder: pathlib.Path, membership: FrontendMembership | None = None, **settings: Any
) -> AsyncIterator[Root]:
    """An engine that is ready; nothing is left of it and its workers afterwards."""
    engine = EngineSettings(model=str(folder), executor="null", **settings)
    spec = ProcessSpec("engine 0", "triolet.engine.process")
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(spec) as process:
            control = ControlChannel(process.control, sends=ROOT_TO_ENGINE, receives=ENGINE_TO_ROOT)
            root = Root(process, control)
            try:
                await root.bring_up(engine, membership or FrontendMembership(0, []))
                yield root
                process.ask_to_stop()
                await process.wait_exited()
                await root.wait_workers_gone()
            finally:
                close_fds(root.worker_pidfds)


async def test_from_init_to_an_ordered_stop(tmp_path: pathlib.Path) -> None:
    async with open_engine(write_sizes(tmp_path), workers=2, max_num_seqs=3) as root:
        assert root.progress == sorted(root.progress)
        assert len(root.worker_pids) == len(root.worker_pidfds) == 2
        assert (root.ready.vocab_size, root.ready.max_num_seqs) == (VOCAB_SIZE, 3)
        assert root.ready.settings_digest

        tree = await root.tree(5)
        assert (tree.name, tree.pid) == ("engine 0", root.process.pid)
        assert tree.tasks is not None
        for name in TASKS:
            assert len(find_tasks(tree.tasks, name)) == 1, name
        assert not find_tasks(tree.tasks, "progress"), "it belongs to the boot"
        assert sorted(worker.pid for worker in tree.processes) == sorted(root.worker_pids)

        await root.control.send(Drain())
        # Snapshots that are late or list a frontend that is not there harm nobody.
        absent = FrontendAddress(0, 1, "ipc://@triolet-absent-in", "ipc://@triolet-absent-out")
        for number in (2, 1, 2):
            await root.control.send(FrontendMembership(number, [absent]))
        await root.control.send(FrontendMembership(3, []))
        assert (await root.tree(6)).pid == root.process.pid

        root.process.ask_to_stop()
        assert (await root.process.wait_exited()).code == 0


async def test_a_worker_that_dies_takes_the_engine_along_and_is_named(
    tmp_path: pathlib.Path,
) -> None:
    async with open_engine(write_sizes(tmp_path), workers=2) as root:
        signal.pidfd_send_signal(root.worker_pidfds[0], signal.SIGKILL)
        exit_of_engine = await root.process.wait_exited()
        assert exit_of_engine.code == 1
        assert "was killed by SIGKILL" in exit_of_engine.cause
        assert "worker-" in exit_of_engine.cause
        await root.wait_workers_gone()


async def test_an_engine_that_is_killed_takes_its_workers_along(tmp_path: pathlib.Path) -> None:
    async with open_engine(write_sizes(tmp_path), workers=2) as root:
        root.process.send_signal(signal.SIGKILL)
        await root.wait_workers_gone()


async def test_a_root_that_closes_its_end_is_gone(tmp_path: pathlib.Path) -> None:
    async with open_engine(write_sizes(tmp_path)) as root:
        root.control.close()
        assert (await root.process.wait_exited()).code == 1
        await root.wait_workers_gone()


async def test_a_folder_without_a_model_is_refused_for_good(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PeerRefused, match=r"config\.json"):
        async with open_engine(tmp_path / "nothing"):
            pytest.fail("it was never ready")


async def test_a_burst_of_questions_is_bounded_and_harmless(tmp_path: pathlib.Path) -> None:
    """Some are not answered; none of them fails the engine."""
    async with open_engine(write_sizes(tmp_path), workers=2) as root:
        asked = 50
        async with trio.open_nursery() as nursery:
            for call_id in range(1, asked + 1):
                nursery.start_soon(root.control.send, TreeRequest(call_id))
            first = await root.receive_tree()
        assert 1 <= first.call_id <= asked
        await root.control.send(TreeRequest(asked + 1))
        while (await root.receive_tree()).call_id <= asked:
            await root.control.send(TreeRequest(asked + 1))  # it may have been one too many
