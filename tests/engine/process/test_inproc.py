"""The in-process engine: loads, serves, fails its host. What it promises frontends is a contract.

See `tests/contracts/engine.py` for that.
"""

import pathlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from triolet.engine.config import EngineSettings
from triolet.engine.errors import ModelFolderError, StepFailed
from triolet.engine.process.inproc import InprocExecutor, open_inproc_engine
from triolet.engine.step_messages import Mask, Step, StepResult, WorkerReady
from triolet.nurseries.tasks.service import ServiceEnded, open_service
from triolet.tests.contracts.engine import ME, add_request
from triolet.tests.contracts.engines import inproc_engine, write_sizes
from triolet.tests.leaks import check_no_leaks
from triolet.tests.live_tasks import find_background_task, find_background_tasks
from triolet.transports.codec import Codec
from triolet.transports.links.channel import Peer, PeerUp, Received
from triolet.transports.links.memory_channel import MemoryMesh, MemorySpoke

TASKS = {
    "executor",
    "grammar-compiler",
    "input-handler",
    "orphan-watch",
    "statistics",
    "utilities",
    "step-loop",
}


@attrs.define(eq=False)
class FakeWorker:
    """An executor of a worker that fails from a step on."""

    fails_from: int = 2
    computed: list[int] = attrs.field(factory=list)
    masks: list[Mask] = attrs.field(factory=list)

    def load(self, progress: object) -> WorkerReady:
        raise NotImplementedError

    def execute(self, step: Step, wait_mask: Callable[[], Mask]) -> StepResult:
        if step.number >= self.fails_from:
            raise ZeroDivisionError("in a step")
        if step.masked:
            self.masks.append(wait_mask())
        self.computed.append(step.number)
        return StepResult(step.number, step.rows, [5 for _ in step.rows])


def make_spoke() -> MemorySpoke:
    """A channel that nobody is at the other end of."""
    return MemoryMesh(Codec(), Codec()).open_spoke(Peer("engine", 0, 2))


@asynccontextmanager
async def open_executor(worker: FakeWorker) -> AsyncIterator[InprocExecutor]:
    executor = InprocExecutor(worker)
    async with open_service(executor.run, name="executor"):
        yield executor


async def test_an_executor_computes_what_was_submitted_in_order() -> None:
    async with open_executor(FakeWorker(fails_from=9)) as executor:
        executor.submit(Step(number=1, rows=[3]))
        executor.submit(Step(number=2, rows=[4]))
        assert await executor.result(1) == StepResult(1, [3], [5])
        assert await executor.result(2) == StepResult(2, [4], [5])


async def test_the_next_step_is_computed_before_the_last_one_is_asked_for() -> None:
    worker = FakeWorker(fails_from=9)
    async with open_executor(worker) as executor:
        executor.submit(Step(number=1))
        executor.submit(Step(number=2))
        await executor.result(2)
        assert worker.computed == [1, 2]
        await executor.result(1)


async def test_a_mask_is_waited_for_and_one_that_nobody_wants_is_dropped() -> None:
    worker = FakeWorker(fails_from=9)
    async with open_executor(worker) as executor:
        executor.submit(Step(number=1, rows=[0], masked=[0]))
        executor.submit_mask(Mask(1, b"abcd"))
        executor.submit_mask(Mask(1, b""))
        executor.submit(Step(number=2))
        await executor.result(2)
        assert worker.masks == [Mask(1, b"abcd")]


async def test_cancelled_while_it_waits_for_a_mask_it_ends() -> None:
    with check_no_leaks():
        async with open_executor(FakeWorker()) as executor:
            executor.submit(Step(number=1, rows=[0], masked=[0]))


async def test_a_step_that_raises_is_told_with_its_traceback() -> None:
    async with open_executor(FakeWorker(fails_from=2)) as executor:
        executor.submit(Step(number=2))
        with pytest.raises(StepFailed) as caught:
            await executor.result(2)
    assert (caught.value.step, caught.value.rank) == (2, 0)
    assert "in execute" in caught.value.traceback
    assert "ZeroDivisionError: in a step" in caught.value.traceback
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_its_tasks_live_as_long_as_the_body(tmp_path: pathlib.Path) -> None:
    with check_no_leaks():
        async with inproc_engine(write_sizes(tmp_path)) as caller:
            assert len(await caller.run("a")) == 12
            assert {task.name for task in find_background_tasks()} == TASKS
        assert find_background_tasks() == []


async def test_workers_are_taken_as_one(tmp_path: pathlib.Path) -> None:
    settings = EngineSettings(model=str(write_sizes(tmp_path)), executor="null", workers=3)
    async with open_inproc_engine(settings, make_spoke()) as engine:
        assert engine.server.core.statistics().kv_blocks > 0


async def test_a_folder_without_a_model_is_said_at_the_door(tmp_path: pathlib.Path) -> None:
    settings = EngineSettings(model=str(tmp_path / "nothing"), executor="null")
    with pytest.raises(ModelFolderError, match="nothing"):
        async with open_inproc_engine(settings, make_spoke()):
            pytest.fail("it has no model")


# The others are cancelled at each of their steps: `tests/cancellation`.
@pytest.mark.parametrize("name", ["executor", "statistics"])
async def test_a_task_that_ends_fails_the_body(name: str, tmp_path: pathlib.Path) -> None:
    settings = EngineSettings(model=str(write_sizes(tmp_path)), executor="null")

    async def end_it() -> None:
        async with open_inproc_engine(settings, make_spoke()):
            find_background_task(name).cancel("the test ends it")
            await trio.sleep_forever()

    with check_no_leaks(), pytest.raises(ServiceEnded, match=name):
        await end_it()


async def test_cancelled_in_mid_step_it_leaves_nothing(tmp_path: pathlib.Path) -> None:
    settings = EngineSettings(model=str(write_sizes(tmp_path)), executor="null")
    with check_no_leaks(), trio.CancelScope() as scope:
        async with open_inproc_engine(settings, make_spoke()) as engine:
            engine.server.handle_event(PeerUp(ME, 1))
            engine.server.handle_event(Received(ME, add_request("a", tokens=400)))
            while engine.server.core.statistics().output_tokens < 3:
                await trio.lowlevel.checkpoint()
            scope.cancel("the test cancels it")
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert find_background_tasks() == []
