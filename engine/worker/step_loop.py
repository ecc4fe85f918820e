"""The step loop of a worker: take a step from the ring, compute it, answer; in a thread of its own.

The thread is the one `to_thread` call of the worker, awaited by the task `step-loop`, so that trio
stays responsive while a step computes. It ends when the stop signal is set, within a step's time.
Whatever a step raises is answered with its traceback, and the loop goes on: the engine decides.
"""

import os
import select
import traceback
from functools import partial

import attrs
import trio

from ...nurseries.processes.progress_page import ProgressSlot, private_slot
from ...nurseries.tasks.thread import run_thread
from ...transports.codec import Codec
from ...transports.rings.shm_ring import RingClosed, RingReader, RingWriter
from ..step_messages import Mask, Step, StepFailure, StepResult, make_ring_codecs
from ..step_recorder import NO_RECORDER, Span, StepRecorder
from .executor_interface import WorkerExecutor

# The engine's place on the progress page.
ENGINE_SLOT = 0


@attrs.define(eq=False)
class StopSignal:
    """An eventfd that ends every pause of the step thread; once set it stays set."""

    fd: int = attrs.field(factory=lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def set(self) -> None:
        """End the pauses, from any thread."""
        os.eventfd_write(self.fd, 1)

    def pause(self, seconds: float) -> None:
        """Wait so long; raises `RingClosed` as soon as the signal is set."""
        ready, _, _ = select.select([self.fd], [], [], seconds)
        if ready:
            raise RingClosed

    def close(self) -> None:
        """Close the descriptor; the step thread has ended by then."""
        os.close(self.fd)


@attrs.define(eq=False)
class StepLoop:
    """Loop of one rank. `step` and `rows` are looked at by the task tree while the thread runs.

    Rings and stop signal are the caller's to close, when `run` is over.
    """

    executor: WorkerExecutor
    rank: int
    output_rank: int
    steps: RingReader
    results: RingWriter
    stop: StopSignal
    recorder: StepRecorder = NO_RECORDER
    progress: ProgressSlot = attrs.field(factory=private_slot)
    pool_number: int = 0
    step: int = attrs.field(default=0, init=False)
    rows: int = attrs.field(default=0, init=False)
    _steps_codec: Codec = attrs.field(init=False)
    _results_codec: Codec = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._steps_codec, self._results_codec = make_ring_codecs()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `step-loop`: owns the step thread; never returns unless cancelled.

        Cancellation: sets the stop signal and joins the thread, which ends after the step in hand.
        """
        task_status.started()
        await run_thread(self._run_thread, stop=self._stop_thread, name="step-loop")

    def _stop_thread(self) -> None:
        self.stop.set()
        self.steps.stop()

    def _run_thread(self) -> None:
        try:
            while True:
                message = self._read()
                # A mask here is that of a step which failed before it asked for it.
                if isinstance(message, Step):
                    self.progress.show_step(message.number)
                    self.progress.show_busy()
                    answer = self._answer(message)
                    answer.pool_number = self.pool_number
                    began = self.recorder.now()
                    [frame] = self._results_codec.encode(answer)
                    assert isinstance(frame, bytearray)
                    self.results.write(frame)
                    self.recorder.note(Span.ANSWER, message.number, began)
                    self.progress.show_waiting()
        except RingClosed:
            return

    def _read(self) -> Step | Mask:
        waits = self.recorder.now()
        frame = self.steps.read()
        came = self.recorder.now()
        message = self._steps_codec.decode((frame,))
        assert isinstance(message, Step | Mask)
        assert message.pool_number == self.pool_number, "this is for workers before or after us"
        self.recorder.note_span(Span.READ, message.number, waits, came)
        self.recorder.note(Span.UNPACK, message.number, came)
        return message

    def _answer(self, step: Step) -> StepResult | StepFailure:
        self.step, self.rows = step.number, len(step.rows)
        began = self.recorder.now()
        try:
            result = self.executor.execute(step, partial(self._wait_mask, step.number))
        except RingClosed:
            raise
        except Exception:  # a firewall: the engine hears of it, with the traceback, and decides
            return StepFailure(step.number, self.rank, traceback.format_exc())
        finally:
            self.rows = 0
        ended = self.recorder.note(Span.COMPUTE, step.number, began)
        if result.sample_s:
            sampled_ns = int(result.sample_s * 1e9)
            self.recorder.note_span(Span.SAMPLE, step.number, ended - sampled_ns, ended)
        if self.rank != self.output_rank:
            return StepResult(step.number, [], [])  # an acknowledgement; the tokens are another's
        return result

    def _wait_mask(self, number: int) -> Mask:
        self.progress.show_awaits(ENGINE_SLOT)
        mask = self._read()
        self.progress.show_awaits(None)
        assert isinstance(mask, Mask)
        assert mask.number == number, "masks come in the order of their steps"
        return mask
