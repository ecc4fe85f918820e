"""The in-process engine: loads, serves, fails its host. What it promises frontends is a contract.

See `tests/contracts/engine.py` for that.
"""

import pathlib

import attrs
import pytest
import trio

from triolet.engine.config import EngineSettings
from triolet.engine.errors import ModelFolderError, StepFailed
from triolet.engine.inproc import InprocExecutor, open_inproc_engine
from triolet.engine.step_messages import Step, StepResult, WorkerReady
from triolet.nurseries.service import ServiceEnded
from triolet.nurseries.task_tree import find_background_task, find_background_tasks
from triolet.tests.contracts.engine import ME, add_request
from triolet.tests.contracts.engines import inproc_engine, write_sizes
from triolet.tests.leaks import check_no_leaks
from triolet.transports.channel import Peer, PeerUp, Received
from triolet.transports.codec import Codec
from triolet.transports.memory_channel import MemoryMesh, MemorySpoke

TASKS = {"input-handler", "orphan-watch", "utilities", "step-loop"}


@attrs.define(eq=False)
class FakeWorker:
    """An executor of a worker that fails from step 2 on."""

    def load(self, progress: object) -> WorkerReady:
        raise NotImplementedError

    def execute(self, step: Step, wait_mask: object) -> StepResult:
        if step.number > 1:
            raise ZeroDivisionError("in a step")
        return StepResult(step.number, step.rows, [5 for _ in step.rows])


def make_spoke() -> MemorySpoke:
    """A channel that nobody is at the other end of."""
    return MemoryMesh(Codec(), Codec()).open_spoke(Peer("engine", 0, 2))


async def test_an_executor_computes_what_was_submitted() -> None:
    executor = InprocExecutor(FakeWorker())
    executor.submit(Step(number=1, rows=[3]))
    assert await executor.result(1) == StepResult(1, [3], [5])


async def test_a_step_that_raises_is_told_with_its_traceback() -> None:
    executor = InprocExecutor(FakeWorker())
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
    async with open_inproc_engine(settings, make_spoke()) as server:
        assert server.core.statistics().kv_blocks > 0


async def test_a_folder_without_a_model_is_said_at_the_door(tmp_path: pathlib.Path) -> None:
    settings = EngineSettings(model=str(tmp_path / "nothing"), executor="null")
    with pytest.raises(ModelFolderError, match="nothing"):
        async with open_inproc_engine(settings, make_spoke()):
            pytest.fail("it has no model")


@pytest.mark.parametrize("name", sorted(TASKS))
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
        async with open_inproc_engine(settings, make_spoke()) as server:
            server.handle_event(PeerUp(ME, 1))
            server.handle_event(Received(ME, add_request("a", tokens=400)))
            while server.core.statistics().output_tokens < 3:
                await trio.lowlevel.checkpoint()
            scope.cancel("the test cancels it")
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert find_background_tasks() == []
