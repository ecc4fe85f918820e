"""Step loop of an engine: schedule, compute, finish, deliver.

It reads like the algorithm. Failures are not handled here: a step that fails or is late ends the
engine, whose supervisor decides. Workers that are lost are replaced by the executor: what was in
flight is undone, and goes on with the new ones.
"""

import math
import time
from collections import deque
from typing import Protocol

import trio

from ...nurseries.processes.progress_page import ProgressSlot, private_slot
from ...nurseries.tasks.background import waiting_for
from ..batch_table import BatchTable
from ..core.engine_core import EngineCore
from ..core.step_builder import ScheduledStep
from ..step_messages import Mask, Step, StepResult
from ..step_recorder import NO_RECORDER, Span, StepRecorder
from .server import EngineServer


class StepExecutor(Protocol):
    """Computes steps: the rings to worker processes, or an executor in this process."""

    @property
    def pool_number(self) -> int:
        """How often the workers were lost: all that they held, and every step in flight."""

    def submit(self, step: Step) -> None:
        """Hand a step to the workers, which compute one after the other; it does not wait."""

    def submit_mask(self, mask: Mask) -> None:
        """Hand over the mask of the oldest step whose result is not known; before the next step."""

    async def result(self, number: int) -> StepResult | None:
        """Wait for the result of step `number`; None if it is lost. Cancelled, it loses nothing.

        Raises `StepFailed`; that ends the engine.
        """

    async def replaced(self, losses: int) -> bool:
        """Wait for workers in the place of those that were lost; `losses`: see `undo_steps`.

        Returns whether they have the KV memory of those, as it was. Raises how the last ones ended
        if that is too many, which ends the engine.
        """


async def run_step_loop(
    server: EngineServer,
    executor: StepExecutor,
    *,
    recorder: StepRecorder = NO_RECORDER,
    progress: ProgressSlot | None = None,
    batches: BatchTable | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `step-loop`; never returns unless cancelled.

    Error handling: whatever the executor raises ends this task, and with it the engine.
    Cancellation: between steps nothing is half-done; within one the workers are being stopped
    by their own owner, and the blocks of the step die with the process.
    """
    core = server.core
    progress, batches = progress or private_slot(), batches or BatchTable(None, 0)
    in_flight: deque[int] = deque()  # numbers of steps; bounded by the core
    pool_number = 0  # workers may have been lost already
    task_status.started()
    while True:
        if executor.pool_number != pool_number:
            in_flight.clear()
            _show_step(progress, 0, 0.0)  # new workers owe nothing
            losses = core.undo_steps(executor.pool_number - pool_number)
            pool_number = executor.pool_number
            server.deliver(core.take_outputs())
            await _wait_replaced(core, executor, batches, losses)
            continue
        began = recorder.now()
        step = core.schedule(trio.current_time())
        if step is not None:
            recorder.note(Span.SCHEDULE, step.number, began)
        server.deliver(core.take_outputs())
        if step is not None:
            _write_batch(batches, core.newest_step)
            executor.submit(step)
            in_flight.append(step.number)
            if len(in_flight) == 1:  # after it was handed over: the workers owe it from now on
                _show_step(progress, step.number, core.predicted_s)
            _submit_mask(core, executor)
            continue  # the next one, while this one computes
        if not in_flight:
            with waiting_for("requests"):
                await server.wait_work()
            continue
        number, due = in_flight[0], core.schedule_at()
        with waiting_for(f"step {number}"):
            result = await _result(executor, number, due)
        if result is None:  # it is time for the next one, or the step is lost
            continue
        in_flight.popleft()
        batches.end_step(number)
        began = recorder.now()
        outputs = core.finish_step(result, trio.current_time())
        _show_step(progress, in_flight[0] if in_flight else 0, core.predicted_s)
        _submit_mask(core, executor)
        began = recorder.note(Span.APPLY, number, began)
        server.deliver(outputs)
        recorder.note(Span.DELIVER, number, began)


async def _wait_replaced(
    core: EngineCore, executor: StepExecutor, batches: BatchTable, losses: int
) -> None:
    with waiting_for("new workers"):
        is_kept = await executor.replaced(losses)
    if not is_kept:
        core.forget_blocks()
    batches.clear()  # not before: a loss that ends us is judged by what it says


async def _result(executor: StepExecutor, number: int, deadline: float) -> StepResult | None:
    """The result, or None at the deadline; most have none, and that costs no scope."""
    if deadline == math.inf:
        return await executor.result(number)
    with trio.move_on_at(deadline):
        return await executor.result(number)
    return None


def _write_batch(batches: BatchTable, scheduled: ScheduledStep) -> None:
    """Before the step is handed over: whom to suspect if it ends us."""
    if batches.memory is None:
        return
    step, requests = scheduled.step, scheduled.requests
    if step.new:
        new = {each.row for each in step.new}
        for row, request in zip(step.rows, requests, strict=True):
            if row in new:
                batches.name_row(row, request.content, request.attempt)
    batches.write_step(step.number, step.rows, [each.scheduled_tokens for each in requests])


def _show_step(progress: ProgressSlot, number: int, predicted_s: float) -> None:
    """The oldest step in flight, whose result is waited for next."""
    progress.show_step(number, time.monotonic_ns(), int(predicted_s * 1e9))


def _submit_mask(core: EngineCore, executor: StepExecutor) -> None:
    """The oldest step in flight may sample as soon as its grammars know all before it."""
    mask = core.take_mask()
    if mask is not None:
        executor.submit_mask(mask)
