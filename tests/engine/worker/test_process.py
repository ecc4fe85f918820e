"""A worker's life, in this process and as a real one: handshake, load, steps, tree, stop."""

import os
import pathlib
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio

from triolet.engine.config import EngineSettings
from triolet.engine.control_messages import TreeReply, TreeRequest
from triolet.engine.kernels.library import native_fault
from triolet.engine.step_messages import (
    CORE_TO_WORKER,
    WORKER_TO_CORE,
    Step,
    StepResult,
    WorkerInit,
    WorkerReady,
)
from triolet.engine.worker import process as worker_process
from triolet.engine.worker.null.executor import null_token
from triolet.nurseries.processes.child import ChildFds
from triolet.nurseries.processes.process import ProcessSpec, open_process
from triolet.nurseries.processes.progress_page import open_page
from triolet.nurseries.tasks.service import ServiceEnded
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.tests.engine.steps import first_step
from triolet.tests.live_tasks import find_background_task, find_tasks
from triolet.transports.codec import Codec
from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.handshake import PeerRefused, perform_parent_handshake
from triolet.transports.rings.ring_memory import create_ring
from triolet.transports.rings.shm_ring import RingReader, RingWriter

TEST_BOUND_S = 60.0


@attrs.define(eq=False)
class Core:
    """The engine core's side of one worker."""

    control: ControlChannel
    steps: RingWriter
    results: RingReader
    fds: list[int]
    progress: list[tuple[str, float]] = attrs.field(factory=list)

    async def bring_up(self, settings: EngineSettings, pid: int) -> WorkerReady:
        init = WorkerInit(rank=0, epoch=3, settings=settings)
        payload = await perform_parent_handshake(
            self.control,
            msgspec.msgpack.encode(init),
            who="worker 0",
            role="worker",
            pid=pid,
            boot_timeout_s=TEST_BOUND_S,
            fds=self.fds,
            on_progress=lambda phase, fraction: self.progress.append((phase, fraction)),
        )
        return msgspec.msgpack.decode(payload, type=WorkerReady)

    async def run(self, step: Step) -> object:
        self.steps.write(b"".join(Codec(*CORE_TO_WORKER).encode(step)))
        return Codec(*WORKER_TO_CORE).decode([await self.results.wait_read()])

    async def tree(self) -> ProcessTree:
        await self.control.send(TreeRequest(12))
        reply, _ = await self.control.receive()
        assert isinstance(reply, TreeReply)
        assert reply.call_id == 12
        return msgspec.json.decode(reply.tree, type=ProcessTree)


def make_core(owned: ExitStack, control: socket.socket) -> Core:
    steps = owned.enter_context(create_ring(readers=1, slots=4, slot_bytes=4096))
    results = owned.enter_context(create_ring(readers=1, slots=4, slot_bytes=4096))
    channel = ControlChannel(control, sends=[TreeRequest], receives=[TreeReply])
    return Core(
        owned.enter_context(channel),
        owned.enter_context(RingWriter.attach(steps.writer_fds())),
        owned.enter_context(RingReader.attach(results.reader_fds(0), 0)),
        [*steps.reader_fds(0), *results.writer_fds()],
    )


@pytest.fixture
def settings(tmp_path: pathlib.Path) -> EngineSettings:
    (tmp_path / "config.json").write_text('{"vocab_size": 100, "max_position_embeddings": 64}')
    return EngineSettings(model=str(tmp_path), executor="null", max_num_seqs=4)


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Core, ChildFds]]:
    """Both ends of a worker that runs in this process; it has no parent to watch."""
    mine, childs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ExitStack() as owned, childs:
        mine.setblocking(False)
        yield make_core(owned, mine), ChildFds(childs, -1, -1)


@asynccontextmanager
async def running(
    core: Core, fds: ChildFds, settings: EngineSettings
) -> AsyncIterator[WorkerReady]:
    """A worker in this process, ready; it is cancelled at the end."""
    with trio.fail_after(TEST_BOUND_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker_process.main, fds)
            yield await core.bring_up(settings, os.getpid())
            nursery.cancel_scope.cancel("the test is over")


async def test_from_hello_to_tokens(ends: tuple[Core, ChildFds], settings: EngineSettings) -> None:
    core, fds = ends
    async with running(core, fds, settings) as ready:
        assert (ready.vocab_size, ready.max_model_len, ready.kv_blocks) == (100, 64, 16)
        assert core.progress[-1] == ("start", 1.0)
        token = null_token(7, 0, 8, vocab_size=100)
        assert await core.run(first_step(row=2)) == StepResult(1, [2], [token])


async def test_its_loop_shows_on_the_page_until_steps_do(
    ends: tuple[Core, ChildFds], settings: EngineSettings
) -> None:
    core, fds = ends
    with open_page(slots=2) as page:
        core.fds.append(page.fd)
        async with running(core, fds, settings):
            [_, booted] = page.read()
            assert (booted.pid, booted.is_busy) == (os.getpid(), False)
            assert booted.passes > 3, "of threads that began and ended"
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            assert page.read()[1].passes == booted.passes
            await core.run(first_step(6, row=2))
            assert page.read()[1].step == 6


async def test_the_tree_has_the_tasks_and_the_facts(
    ends: tuple[Core, ChildFds], settings: EngineSettings
) -> None:
    core, fds = ends
    async with running(core, fds, settings):
        await core.run(first_step(6, row=2))
        tree = await core.tree()
        assert (tree.name, tree.pid) == ("worker 0", os.getpid())
        assert tree.tasks is not None
        for name in ("control", "step-loop"):
            assert len(find_tasks(tree.tasks, name)) == 1
        assert tree.facts["phase"] == "serve"
        assert (tree.facts["step"], tree.facts["rows"]) == (6, 0)


async def test_an_engine_that_left_is_the_death_monitors_business(
    ends: tuple[Core, ChildFds], settings: EngineSettings
) -> None:
    core, fds = ends
    async with running(core, fds, settings):
        core.control.close()
        assert isinstance(await core.run(first_step(row=2)), StepResult)
        assert not find_background_task("control").ended


@pytest.mark.parametrize("name", ["control", "step-loop"])
async def test_a_background_task_that_ends_ends_the_worker(
    ends: tuple[Core, ChildFds], settings: EngineSettings, name: str
) -> None:
    """Else it would be silent, and its engine would wait for the deadline of a step."""
    core, fds = ends
    with pytest.RaisesGroup(pytest.RaisesExc(ServiceEnded, match=name)):
        async with running(core, fds, settings):
            find_background_task(name).cancel("the test says so")
            await trio.sleep_forever()


async def test_a_folder_that_cannot_be_served_is_refused_for_good(
    ends: tuple[Core, ChildFds], tmp_path: pathlib.Path
) -> None:
    core, fds = ends
    (tmp_path / "config.json").write_text("{}")
    settings = EngineSettings(model=str(tmp_path), executor="null")
    with pytest.RaisesGroup(pytest.RaisesExc(PeerRefused, match="config.json")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker_process.main, fds)
            with trio.move_on_after(TEST_BOUND_S):
                await core.bring_up(settings, os.getpid())


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["null", "torch", *([] if native_fault() else ["native"])])
async def test_a_real_process(tmp_path: pathlib.Path, executor: str) -> None:
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    }
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    settings = EngineSettings(
        model=str(tmp_path), executor=executor, load_format="dummy", max_num_seqs=4, threads=1
    )
    spec = ProcessSpec("worker-0", "triolet.engine.worker.process")
    with trio.fail_after(2 * TEST_BOUND_S), ExitStack() as owned:
        async with open_process(spec) as process:
            core = make_core(owned, process.control)
            ready = await core.bring_up(settings, process.pid)
            assert ready.numerics_id.startswith(executor)
            answer = await core.run(first_step(row=2))
            assert isinstance(answer, StepResult)
            assert answer.rows == [2]
            tree = await core.tree()
            assert tree.pid == process.pid
            assert str(tree.facts["executor"]).startswith(executor)
            assert tree.tasks is not None
            for name in ("death-monitor", "control", "step-loop"):
                assert len(find_tasks(tree.tasks, name)) == 1
            process.ask_to_stop()
            exit_of_worker = await process.wait_exited()
        assert exit_of_worker.code == 0, exit_of_worker.last_words
