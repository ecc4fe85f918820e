"""The loop of an engine: schedule, compute, finish, deliver; it reads like the algorithm.

Must not know how workers compute (`Executor`) or how outputs travel (`EngineServer`). Failures are
not handled here: a step that fails or is late ends the engine, whose supervisor decides.
"""

from typing import Protocol

import trio

from ..nurseries.waiting import waiting_for
from .server import EngineServer
from .step_messages import Step, StepResult
from .step_recorder import NO_RECORDER, Span, StepRecorder


class StepExecutor(Protocol):
    """Whoever computes steps: a pool of worker processes, or an executor in this process."""

    def submit(self, step: Step) -> None:
        """Hand a step to the workers; at most as many in flight as the ring has slots."""

    async def result(self, number: int) -> StepResult:
        """Wait for the result of step `number`.

        Raises `StepFailed`, `StepTimeout` or `ProcessDied`; each ends the engine.
        """


async def run_step_loop(
    server: EngineServer,
    executor: StepExecutor,
    *,
    recorder: StepRecorder = NO_RECORDER,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `step-loop`; never returns unless cancelled.

    Error handling: whatever the executor raises ends this task, and with it the engine.
    Cancellation: between steps nothing is half-done; within one the workers are being stopped
    by their own owner, and the blocks of the step die with the process.
    """
    core = server.core
    task_status.started()
    while True:
        began = recorder.now()
        step = core.schedule(trio.current_time())
        if step is not None:
            recorder.note(Span.SCHEDULE, step.number, began)
        server.deliver(core.take_outputs())
        if step is None:
            server.deliver_idle()
            with waiting_for("requests"):
                await server.wait_work()
            continue
        executor.submit(step)
        with waiting_for(f"step {step.number}"):
            result = await executor.result(step.number)
        began = recorder.now()
        outputs = core.finish_step(result, trio.current_time())
        began = recorder.note(Span.APPLY, step.number, began)
        server.deliver(outputs)
        recorder.note(Span.DELIVER, step.number, began)
