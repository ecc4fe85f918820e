"""Steps out and answers in over real rings, with the workers played by the test: no process."""

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from triolet.engine.errors import StepFailed, StepTimeout
from triolet.engine.process.step_rings import (
    RESULT_SLOT_BYTES,
    RING_SLOTS,
    STEP_SLOT_BYTES,
    StepRings,
    open_step_rings,
)
from triolet.engine.step_messages import (
    CORE_TO_WORKER,
    WORKER_TO_CORE,
    Mask,
    Step,
    StepFailure,
    StepResult,
)
from triolet.nurseries.tasks.service import single_errors_unwrapped
from triolet.tests.engine.steps import LONG_PROMPT_TOKENS, first_step
from triolet.tests.leaks import check_no_leaks, holdings
from triolet.transports.codec import Codec
from triolet.transports.rings.ring_memory import READER_FDS
from triolet.transports.rings.shm_ring import RingFull, RingReader, RingWriter

TIMEOUT_S = 60.0


@attrs.define(eq=False)
class Worker:
    """One rank's ends."""

    steps: RingReader
    results: RingWriter

    def take(self) -> object:
        data = self.steps.read_nowait()
        assert data is not None
        return Codec(*CORE_TO_WORKER).decode([data])

    def answer(self, message: StepResult | StepFailure) -> None:
        self.results.write(b"".join(Codec(*WORKER_TO_CORE).encode(message)))


@contextmanager
def open_rings(workers: int) -> Iterator[tuple[StepRings, list[Worker]]]:
    with check_no_leaks(), ExitStack() as owned:
        rings = owned.enter_context(open_step_rings(workers, TIMEOUT_S))
        played = []
        for rank in range(workers):
            fds = rings.worker_fds(rank)
            played.append(
                Worker(
                    owned.enter_context(RingReader.attach(fds[:READER_FDS], rank)),
                    owned.enter_context(RingWriter.attach(fds[READER_FDS:])),
                )
            )
        rings.close_workers_ends()
        yield rings, played


async def watched(rings: StepRings, wait: Callable[[], Awaitable[object]]) -> None:
    """Wait as an engine does, beside the task that watches the deadline."""
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            await nursery.start(rings.run_deadline)
            await wait()
            nursery.cancel_scope.cancel("nothing is waited for any more")


@pytest.mark.parametrize("workers", [1, 3])
async def test_every_rank_gets_every_step_and_the_output_ranks_tokens_count(workers: int) -> None:
    with open_rings(workers) as (rings, played):
        for number in range(1, 10):
            step, mask = Step(number=number, rows=[4], masked=[4]), Mask(number, b"abcd")
            rings.submit(step)
            rings.submit_mask(mask)
            for rank, worker in enumerate(played):
                assert worker.take() == step
                assert worker.take() == mask
                worker.answer(StepResult(number, [4], [70 + rank]))
            assert await rings.result(number) == StepResult(number, [4], [70])


async def test_answers_may_come_in_any_order_of_ranks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with open_rings(3) as (rings, played):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rings.result, 1)
            for rank in (2, 0, 1):
                await trio.testing.wait_all_tasks_blocked()
                played[rank].answer(StepResult(1, [], []))


@pytest.mark.parametrize("rank", [0, 1, 2])
async def test_one_ranks_failure_is_raised_though_the_others_hang(rank: int) -> None:
    with open_rings(3) as (rings, played):
        played[rank].answer(StepFailure(1, rank, "Traceback: it broke"))
        with trio.fail_after(TIMEOUT_S / 2), pytest.raises(StepFailed) as caught:
            await rings.result(1)
        assert (caught.value.step, caught.value.rank) == (1, rank)
        assert caught.value.traceback == "Traceback: it broke"


async def test_a_failure_that_came_in_time_is_raised_rather_than_a_timeout(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with open_rings(2) as (rings, played):
        played[0].answer(StepResult(1, [], []))
        played[1].answer(StepFailure(1, 1, "broke"))
        with pytest.raises(StepFailed, match="worker 1 failed in step 1"):
            await rings.result(1)


@pytest.mark.parametrize(("workers", "answering"), [(1, ()), (3, ()), (3, (0,)), (3, (1, 2))])
async def test_a_late_step_names_the_silent_ranks(
    workers: int, answering: tuple[int, ...], autojump_clock: trio.testing.MockClock
) -> None:
    with open_rings(workers) as (rings, played):
        for rank in answering:
            played[rank].answer(StepResult(8, [], []))
        began = trio.current_time()
        with pytest.raises(StepTimeout) as caught:
            await watched(rings, partial(rings.result, 8))
        assert trio.current_time() - began == TIMEOUT_S  # the mock clock's
        silent = tuple(rank for rank in range(workers) if rank not in answering)
        assert (caught.value.step, caught.value.ranks) == (8, silent)


async def test_a_step_has_its_time_whatever_the_ones_before_it_took(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The deadline counts from when a result is waited for; nothing is late while none is."""
    with open_rings(1) as (rings, [worker]):
        began = math.nan

        async def answer_after(number: int, seconds: float) -> None:
            await trio.sleep(seconds)
            worker.answer(StepResult(number, [], []))

        async def wait_for_all() -> None:
            nonlocal began
            await trio.sleep(3 * TIMEOUT_S)
            for number in (1, 2, 3):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(answer_after, number, TIMEOUT_S * 0.7)
                    await rings.result(number)
            await trio.sleep(3 * TIMEOUT_S)
            began = trio.current_time()
            await rings.result(4)

        with pytest.raises(StepTimeout) as caught:
            await watched(rings, wait_for_all)
        assert caught.value.step == 4
        assert trio.current_time() - began == TIMEOUT_S


async def test_a_step_has_its_time_once_however_often_it_is_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An engine that plans the next step in between asks again: that gives no more time."""
    with open_rings(1) as (rings, _):

        async def ask_again() -> None:
            while True:
                with trio.move_on_after(TIMEOUT_S * 0.4):
                    await rings.result(1)

        began = trio.current_time()
        with trio.fail_after(2 * TIMEOUT_S), pytest.raises(StepTimeout):
            await watched(rings, ask_again)
        assert trio.current_time() - began == TIMEOUT_S


@pytest.mark.parametrize("workers", [1, 3])
async def test_an_answer_that_is_there_counts_however_late_it_is_seen(
    workers: int, mock_clock: trio.testing.MockClock
) -> None:
    """A process that was stopped finds answers and its deadline at once, in any order."""
    with open_rings(workers) as (rings, played):

        async def stop_and_go_on() -> None:
            for number in range(1, 21):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(rings.result, number)
                    await trio.testing.wait_all_tasks_blocked()
                    for worker in played:
                        worker.answer(StepResult(number, [], []))
                    mock_clock.jump(2 * TIMEOUT_S)

        await watched(rings, stop_and_go_on)


async def test_what_is_too_large_for_a_slot_goes_beside_it() -> None:
    with open_rings(2) as (rings, played):
        step = first_step(prompt=[50_000] * LONG_PROMPT_TOKENS)
        assert sum(map(len, Codec(*CORE_TO_WORKER).encode(step))) > STEP_SLOT_BYTES
        rings.submit(step)
        rows = list(range(RESULT_SLOT_BYTES))
        for worker in played:
            assert worker.take() == step
            worker.answer(StepResult(1, rows, rows))
        assert await rings.result(1) == StepResult(1, rows, rows)


async def test_more_steps_than_fit_are_refused_and_name_who_lags() -> None:
    with open_rings(2) as (rings, played):
        for number in range(1, RING_SLOTS + 1):
            rings.submit(Step(number=number))
            played[0].take()
        with pytest.raises(RingFull) as caught:
            rings.submit(Step(number=RING_SLOTS + 1))
        assert caught.value.lagging == (1,)


async def test_once_the_workers_have_their_ends_ours_are_closed() -> None:
    with check_no_leaks(), open_step_rings(2, TIMEOUT_S) as rings:
        fds = [fd for rank in (0, 1) for fd in rings.worker_fds(rank)]
        assert set(fds) <= holdings().fds.keys()
        rings.close_workers_ends()
        assert not set(fds) & holdings().fds.keys()


async def test_cancelled_while_waiting_leaves_the_answers() -> None:
    with open_rings(3) as (rings, played):
        with trio.CancelScope() as scope:
            scope.cancel("the test cancels it")
            await rings.result(1)
        assert scope.cancelled_caught
        for worker in played:
            worker.answer(StepResult(1, [], []))
        assert await rings.result(1) == StepResult(1, [], [])


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_loss_ends_the_wait_and_drops_what_comes_after(workers: int) -> None:
    """One rank's answer may be there, and the others' never come."""
    with open_rings(workers) as (rings, played):
        found: list[object] = []

        async def wait() -> None:
            found.append(await rings.result(1))

        if workers > 1:
            played[0].answer(StepResult(1, [], []))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            rings.lose()
        assert found == [None]
        assert await rings.result(2) is None
        for number in range(2 * RING_SLOTS):
            rings.submit(Step(number=number))
            rings.submit_mask(Mask(number, b""))
        with pytest.raises(AssertionError):
            played[-1].take()


async def test_a_loss_together_with_the_answer() -> None:
    """The wake-up has come, and the descriptors are closed before the task runs."""
    found: list[object] = []

    async def wait(rings: StepRings) -> None:
        found.append(await rings.result(1))

    async with trio.open_nursery() as nursery:
        with open_rings(1) as (rings, [worker]):
            nursery.start_soon(wait, rings)
            await trio.testing.wait_all_tasks_blocked()
            worker.answer(StepResult(1, [], []))
    assert found == [None]


async def test_every_message_has_the_number_of_its_pool() -> None:
    with check_no_leaks(), ExitStack() as owned:
        rings = owned.enter_context(open_step_rings(1, TIMEOUT_S, pool_number=7))
        fds = rings.worker_fds(0)
        steps = owned.enter_context(RingReader.attach(fds[:READER_FDS], 0))
        results = owned.enter_context(RingWriter.attach(fds[READER_FDS:]))
        worker = Worker(steps, results)
        rings.submit(Step(number=1, masked=[0]))
        rings.submit_mask(Mask(1, b"abcd"))
        assert worker.take() == Step(number=1, masked=[0], pool_number=7)
        assert worker.take() == Mask(1, b"abcd", 7)
        worker.answer(StepResult(1, [], [], pool_number=6))
        with pytest.raises(AssertionError, match="each pool has rings of its own"):
            await rings.result(1)
