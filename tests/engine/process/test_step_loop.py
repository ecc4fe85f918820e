"""The loop of an engine over a real core and a fake of the workers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from triolet.engine.batch_table import content_hash
from triolet.engine.errors import StepFailed
from triolet.engine.messages import Resync
from triolet.engine.process.server import EngineServer
from triolet.engine.process.step_loop import run_step_loop
from triolet.engine.step_messages import Mask, Step, StepResult
from triolet.nurseries.tasks.background import start_background_task
from triolet.nurseries.tasks.task_tree import task_tree
from triolet.tests.engine.process.test_server import FRONTEND, RecordingChannel, add, make_server
from triolet.tests.live_tasks import find_tasks
from triolet.transports.links.channel import PeerUp, Received


@attrs.define(eq=False)
class FakeExecutor:
    """Every row samples its step's number. `held` holds all results back."""

    held: bool = False
    # What each step says it took, and takes.
    compute_s: float = 0.0
    failure: Exception | None = None
    steps: list[Step] = attrs.field(factory=list)
    masks: list[Mask] = attrs.field(factory=list)
    asked: list[int] = attrs.field(factory=list)
    # {number of a step: when}
    submitted: dict[int, float] = attrs.field(factory=dict)
    finished: dict[int, float] = attrs.field(factory=dict)
    pool_number: int = 0
    # What `replaced` was asked, and where it waits.
    losses: list[int] = attrs.field(factory=list)
    is_kept: bool = False
    _released: trio.Event = attrs.field(factory=trio.Event)
    _lost: trio.Event = attrs.field(factory=trio.Event)
    _replaced: trio.Event = attrs.field(factory=trio.Event)

    def lose(self) -> None:
        self.pool_number += 1
        self._lost.set()

    def replace(self) -> None:
        self._replaced.set()
        self._lost, self._replaced = trio.Event(), trio.Event()

    async def replaced(self, losses: int) -> bool:
        self.losses.append(losses)
        await self._replaced.wait()
        return self.is_kept

    def submit(self, step: Step) -> None:
        self.steps.append(step)
        self.submitted[step.number] = trio.current_time()

    def submit_mask(self, mask: Mask) -> None:
        self.masks.append(mask)

    async def result(self, number: int) -> StepResult | None:
        self.asked.append(number)
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        if self.held:
            async with trio.open_nursery() as nursery:
                for event in (self._released, self._lost):
                    nursery.start_soon(_cancel_after, event, nursery.cancel_scope)
            if self._lost.is_set():
                return None
        await trio.sleep_until(self._begin(number) + self.compute_s)
        step = self.steps[number - 1]
        assert step.number == number
        rows = [row for row, samples in zip(step.rows, step.samples, strict=True) if samples]
        self.finished[number] = trio.current_time()
        return StepResult(number, rows, [number for _ in rows], compute_s=self.compute_s)

    def _begin(self, number: int) -> float:
        """One step after the other, each when it was there."""
        return max(self.submitted[number], self.finished.get(number - 1, 0.0))

    def release(self) -> None:
        self.held = False
        self._released.set()


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel("it has come")


@attrs.define(eq=False)
class Engine:
    server: EngineServer
    channel: RecordingChannel
    executor: FakeExecutor
    # What `on_passed` was told.
    passed: list[dict[bytes, int]] = attrs.field(factory=list)

    def add(self, request_id: str, tokens: int = 3, *, solo_tokens: int = 0) -> None:
        request = attrs.evolve(add(request_id, tokens), solo_tokens=solo_tokens)
        self.server.handle_event(Received(FRONTEND, request))

    def tokens(self, request_id: str) -> list[int]:
        return [
            token
            for output in self.channel.outputs
            if output.request_id == request_id
            for token in output.token_ids
        ]


@asynccontextmanager
async def open_engine(executor: FakeExecutor) -> AsyncIterator[Engine]:
    server, channel = make_server()
    engine = Engine(server, channel, executor)
    server.on_passed = engine.passed.append
    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, run_step_loop, server, executor, name="step-loop")
        server.handle_event(PeerUp(FRONTEND, 1))
        server.handle_event(Received(FRONTEND, Resync([])))
        await trio.testing.wait_all_tasks_blocked()
        yield engine
        nursery.cancel_scope.cancel("the test is over")
    server.core.check_invariants()


async def test_workers_lost_before_it_began_are_replaced_first() -> None:
    async with open_engine(FakeExecutor(pool_number=1)) as engine:
        engine.add("a")
        await trio.testing.wait_all_tasks_blocked()
        assert (engine.executor.losses, engine.executor.steps) == ([0], [])
        engine.executor.replace()
        await trio.testing.wait_all_tasks_blocked()
        assert engine.tokens("a") == [1, 2, 3]
        assert engine.server.core.statistics().worker_restarts == 1


async def test_idle_it_asks_for_nothing_and_says_what_it_waits_for() -> None:
    async with open_engine(FakeExecutor()) as engine:
        assert engine.executor.steps == []
        (node,) = find_tasks(task_tree(), "step-loop")
        assert node.waiting_for == "requests"


async def test_what_arrives_during_a_step_joins_the_next() -> None:
    async with open_engine(FakeExecutor(held=True)) as engine:
        engine.add("a")
        await trio.testing.wait_all_tasks_blocked()
        (node,) = find_tasks(task_tree(), "step-loop")
        assert node.waiting_for == "step 1"
        engine.add("b")
        engine.executor.release()
        await trio.testing.wait_all_tasks_blocked()
        # Two steps were under way, and b joined the first after those.
        assert [step.rows for step in engine.executor.steps] == [[0], [0], [0, 1], [1], [1]]
        assert engine.tokens("b") == [3, 4, 5]


async def test_long_steps_follow_one_another_without_a_gap_and_are_planned_late(
    autojump_clock: trio.testing.MockClock,
) -> None:
    executor = FakeExecutor(compute_s=0.1)
    async with open_engine(executor) as engine:
        engine.add("a", tokens=20)
        await trio.sleep(30)
    assert len(engine.tokens("a")) == 20
    for number in range(12, 20):
        assert executor.finished[number] - executor.finished[number - 1] == pytest.approx(0.1)
        ahead = executor.finished[number - 1] - executor.submitted[number]
        assert 0.0 < ahead < 0.05, "in time, and not much before"


async def test_a_step_that_fails_ends_the_loop() -> None:
    failure = StepFailed(1, 0, "Traceback")

    async def fail() -> None:
        async with open_engine(FakeExecutor(failure=failure)) as engine:
            engine.add("a")
            await trio.sleep_forever()

    with pytest.RaisesGroup(StepFailed, flatten_subgroups=True):
        await fail()


async def test_cancelled_in_mid_step_it_ends_at_once() -> None:
    async with open_engine(FakeExecutor(held=True)) as engine:
        engine.add("a")
        await trio.testing.wait_all_tasks_blocked()
        assert engine.executor.asked == [1]


async def test_lost_steps_are_submitted_anew_when_there_are_other_workers() -> None:
    async with open_engine(FakeExecutor(held=True)) as engine:
        executor = engine.executor
        engine.add("a")
        await trio.testing.wait_all_tasks_blocked()
        assert [step.number for step in executor.steps] == [1, 2]
        executor.lose()
        await trio.testing.wait_all_tasks_blocked()
        (node,) = find_tasks(task_tree(), "step-loop")
        assert node.waiting_for == "new workers"
        engine.add("b")
        await trio.testing.wait_all_tasks_blocked()
        assert len(executor.steps) == 2, "nothing is submitted to no one"
        executor.lose()  # those, too, before they were ready
        executor.replace()
        await trio.testing.wait_all_tasks_blocked()
        assert executor.losses == [1, 0]
        executor.replace()
        executor.release()
        await trio.testing.wait_all_tasks_blocked()
        assert [step.rows for step in executor.steps[2:]] == [[0, 1]] * 3
        assert [new.row for new in executor.steps[2].new] == [0, 1]
        assert engine.tokens("a") == engine.tokens("b") == [3, 4, 5]
        assert engine.server.core.statistics().worker_restarts == 2


@pytest.mark.parametrize("is_kept", [False, True])
async def test_what_is_cached_is_found_after_a_loss_only_where_memory_is_kept(
    is_kept: bool,
) -> None:
    async with open_engine(FakeExecutor(is_kept=is_kept)) as engine:
        core = engine.server.core
        engine.add("a", tokens=20)
        await trio.testing.wait_all_tasks_blocked()
        assert core._scheduler.kv_cache.pool._cached
        engine.executor.lose()
        engine.server.notify()  # as the executor does
        await trio.testing.wait_all_tasks_blocked()
        engine.executor.replace()
        await trio.testing.wait_all_tasks_blocked()
        assert bool(core._scheduler.kv_cache.pool._cached) == is_kept
        engine.add("b")
        await trio.testing.wait_all_tasks_blocked()
        assert len(engine.tokens("b")) == 3


async def test_suspects_that_have_passed_are_reported_once_their_step_is_there() -> None:
    async with open_engine(FakeExecutor(held=True)) as engine:
        engine.add("a", solo_tokens=1)
        engine.add("b", solo_tokens=1)
        await trio.testing.wait_all_tasks_blocked()
        assert [step.rows for step in engine.executor.steps] == [[0]]
        engine.executor.lose()
        await trio.testing.wait_all_tasks_blocked()
        engine.executor.replace()
        await trio.testing.wait_all_tasks_blocked()
        assert engine.passed == [], "lost steps say nothing"
        engine.executor.release()
        await trio.testing.wait_all_tasks_blocked()
        (passed,) = engine.passed
        request = add("a", 3)
        assert passed == {content_hash(request): len(request.prompt_token_ids)}
        # Both have the same prompt: as soon as the first has passed, the other joins it.
        assert [step.rows for step in engine.executor.steps][:4] == [[0], [0], [0, 1], [0, 1]]
