"""The step thread over real rings: answers, failures, masks, and an end at any moment."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import attrs
import pytest
import trio

from triolet.engine.step_messages import (
    CORE_TO_WORKER,
    WORKER_TO_CORE,
    Mask,
    Step,
    StepFailure,
    StepResult,
    WorkerReady,
)
from triolet.engine.worker.executor_interface import Progress, WaitMask
from triolet.engine.worker.step_loop import StepLoop, StopSignal
from triolet.nurseries.tasks.background import start_background_task
from triolet.transports.codec import Codec
from triolet.transports.rings.ring_memory import create_ring
from triolet.transports.rings.shm_ring import RingClosed, RingReader, RingWriter

from ...leaks import check_no_leaks
from ..steps import compute, next_step

pytestmark = pytest.mark.filterwarnings("error")
# Absolute bound of each test; nothing here waits for time to pass.
TEST_BOUND_S = 60.0


@attrs.define(eq=False)
class FakeExecutor:
    """Does what the test says for each step."""

    act: Callable[[Step, WaitMask], StepResult]
    name: str = "fake"

    def load(self, progress: Progress) -> WorkerReady:
        raise NotImplementedError

    def execute(self, step: Step, wait_mask: WaitMask) -> StepResult:
        return self.act(step, wait_mask)


@attrs.define(eq=False)
class Core:
    """The engine core's ends of one worker's rings."""

    stop: StopSignal
    steps: RingWriter
    results: RingReader
    worker_steps: RingReader
    worker_results: RingWriter

    def make_loop(self, act: Callable[[Step, WaitMask], StepResult], rank: int = 0) -> StepLoop:
        return StepLoop(
            executor=FakeExecutor(act),
            rank=rank,
            output_rank=0,
            steps=self.worker_steps,
            results=self.worker_results,
            stop=self.stop,
        )

    def send(self, message: Step | Mask) -> None:
        self.steps.write(b"".join(Codec(*CORE_TO_WORKER).encode(message)))

    async def answer(self) -> object:
        with trio.fail_after(TEST_BOUND_S):
            return Codec(*WORKER_TO_CORE).decode([await self.results.wait_read()])


@pytest.fixture
def core() -> Iterator[Core]:
    with check_no_leaks(), ExitStack() as owned:
        steps = owned.enter_context(create_ring(readers=1, slots=4, slot_bytes=4096))
        results = owned.enter_context(create_ring(readers=1, slots=4, slot_bytes=4096))
        yield Core(
            owned.enter_context(closing(StopSignal())),
            owned.enter_context(RingWriter.attach(steps.writer_fds())),
            owned.enter_context(RingReader.attach(results.reader_fds(0), 0)),
            owned.enter_context(RingReader.attach(steps.reader_fds(0), 0)),
            owned.enter_context(RingWriter.attach(results.writer_fds())),
        )


def echo(step: Step, wait_mask: WaitMask) -> StepResult:
    return StepResult(step.number, step.rows, [row + 10 for row in step.rows])


async def test_every_step_is_answered_in_order(core: Core) -> None:
    loop = core.make_loop(echo)
    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, loop.run, name="step-loop")
        for number in (1, 2, 3):
            core.send(next_step(number, row=number))
        for number in (1, 2, 3):
            assert await core.answer() == StepResult(number, [number], [number + 10])
        assert (loop.step, loop.rows) == (3, 0)
        nursery.cancel_scope.cancel("the test is over")


async def test_other_ranks_acknowledge_without_tokens(core: Core) -> None:
    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, core.make_loop(echo, rank=1).run, name="step-loop")
        core.send(next_step(5, row=1))
        assert await core.answer() == StepResult(5, [], [])
        nursery.cancel_scope.cancel("the test is over")


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_failure_is_told_by_every_rank_and_the_loop_goes_on(core: Core, rank: int) -> None:
    def act(step: Step, wait_mask: WaitMask) -> StepResult:
        if step.number == 1:
            raise ZeroDivisionError("in the middle of a step")
        return StepResult(step.number, [], [])

    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, core.make_loop(act, rank).run, name="step-loop")
        core.send(compute(1, (0, 1, True), masked=[0]))
        core.send(Mask(1, b"1234"))  # the step fails before it asks for it
        core.send(Step(number=2))
        failure = await core.answer()
        assert isinstance(failure, StepFailure)
        assert (failure.number, failure.rank) == (1, rank)
        assert "ZeroDivisionError: in the middle of a step" in failure.traceback
        assert "in act" in failure.traceback
        assert await core.answer() == StepResult(2, [], [])
        nursery.cancel_scope.cancel("the test is over")


async def test_a_mask_is_awaited_in_the_step(core: Core) -> None:
    asked = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def act(step: Step, wait_mask: WaitMask) -> StepResult:
        token.run_sync_soon(asked.set)
        return StepResult(step.number, [0], [len(wait_mask().words)])

    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, core.make_loop(act).run, name="step-loop")
        core.send(compute(1, (0, 1, True), masked=[0]))
        await asked.wait()
        core.send(Mask(1, b"12345678"))
        assert await core.answer() == StepResult(1, [0], [8])
        nursery.cancel_scope.cancel("the test is over")


@pytest.mark.parametrize("waits_for", ["a step", "a mask", "a pause"])
async def test_cancelling_ends_every_wait_at_once(core: Core, waits_for: str) -> None:
    waiting = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def act(step: Step, wait_mask: WaitMask) -> StepResult:
        token.run_sync_soon(waiting.set)
        if waits_for == "a mask":
            wait_mask()
        core.stop.pause(3600)
        raise AssertionError("the wait ended by itself")

    with trio.fail_after(TEST_BOUND_S):
        async with trio.open_nursery() as nursery:
            await start_background_task(nursery, core.make_loop(act).run, name="step-loop")
            if waits_for != "a step":
                core.send(Step(number=1))
                await waiting.wait()
            nursery.cancel_scope.cancel("the test is over")
    assert core.results.read_nowait() is None


def test_a_pause_ends_by_time_or_by_the_signal() -> None:
    with closing(StopSignal()) as stop:
        stop.pause(0)
        stop.set()
        for _ in range(2):  # once set it stays set
            with pytest.raises(RingClosed):
                stop.pause(3600)
