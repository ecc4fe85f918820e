"""Step rings: shared memory between an engine core and its workers, steps out, results in.

    core  --STEP, MASK-->  broadcast ring  -->  every worker
    core  <--result, failure--  one ring for each worker

Every worker acknowledges every step; the tokens come from the output rank. `executor`
starts the processes and hands each the descriptors of its ends.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

import attrs
import trio

from ...nurseries.tasks.background import always_waits_for
from ...nurseries.tasks.parking import ParkingPlace
from ...transports.codec import Codec
from ...transports.rings.ring_memory import RingParts, create_ring
from ...transports.rings.shm_ring import RingClosed, RingReader, RingWriter
from ..errors import StepFailed, StepTimeout
from ..step_messages import OUTPUT_RANK, Mask, Step, StepFailure, StepResult, make_ring_codecs
from ..step_recorder import NO_RECORDER, Span, StepRecorder

# A step computes, another waits behind it, each with its mask.
RING_SLOTS = 4
# A step with one prompt of 16 k tokens fits a slot; a longer one goes in a memfd beside it, as does
# one with embeddings of more than a few tokens.
STEP_SLOT_BYTES = 1 << 17
# A result is a few numbers a row; 1024 rows fit.
RESULT_SLOT_BYTES = 1 << 15

Answer = StepResult | StepFailure


@attrs.define(eq=False)
class StepRings:
    """Both directions of all ranks, made by `open_step_rings`; see `step_loop.StepExecutor`.

    `step_timeout_s` is the deadline of one step, from when its result is first waited for;
    `run_deadline` watches it.
    """

    step_timeout_s: float
    recorder: StepRecorder
    # Count of the workers' replacements, at the other ends.
    pool_number: int
    _steps: RingWriter
    _results: list[RingReader]
    # The workers' ends, rank by rank, and what owns them until `close_workers_ends`.
    _ends: list[list[int]]
    _theirs: ExitStack
    # The workers are dead: nothing is written any more, and no result comes.
    lost: bool = attrs.field(default=False, init=False)
    # Answers to the step that is waited for, by rank.
    _answers: dict[int, Answer] = attrs.field(factory=dict, init=False)
    # The step that was asked for last, and when it was first; the latter once more while it is
    # waited for, infinite while it is not.
    _waited: int = attrs.field(default=0, init=False)
    _asked_first: float = attrs.field(default=math.inf, init=False)
    _waited_since: float = attrs.field(default=math.inf, init=False)
    # `run_deadline` sleeps here if nothing was waited for at the last deadline.
    _idle: ParkingPlace = attrs.field(factory=ParkingPlace, init=False)
    _steps_codec: Codec = attrs.field(init=False)
    _results_codec: Codec = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._steps_codec, self._results_codec = make_ring_codecs()

    def worker_fds(self, rank: int) -> list[int]:
        """Descriptors for worker `rank`: its end of the steps, then its end of the results."""
        return self._ends[rank]

    def close_workers_ends(self) -> None:
        """Every worker has duplicates of its own by now: ours would hide that it is gone."""
        self._theirs.close()

    def lose(self) -> None:
        """The workers are dead: end the wait for a result, if there is one."""
        self.lost = True
        for reader in self._results:
            reader.stop_wait()

    # ---- steps

    def submit(self, step: Step) -> None:
        """Hand a step to every worker. Raises `RingFull`, which the steps in flight rule out."""
        self._write(step)

    def submit_mask(self, mask: Mask) -> None:
        """Hand the mask of a submitted step to every worker; it may be computing already."""
        self._write(mask)

    def _write(self, message: Step | Mask) -> None:
        if self.lost:
            return
        message.pool_number = self.pool_number
        began = self.recorder.now()
        [frame] = self._steps_codec.encode(message)  # no message of steps holds an array
        assert isinstance(frame, bytearray)
        began = self.recorder.note(Span.ENCODE, message.number, began)
        self._steps.write(frame)
        self.recorder.note(Span.SUBMIT, message.number, began)

    async def run_deadline(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Background task `step-deadline`: raises `StepTimeout` when a result is late.

        One task for all steps, that wakes up once in `step_timeout_s` at most: a scope around each
        wait would cost nearly as much as all else of a step's way through the rings (measured: 20
        of 45 µs). Never returns unless cancelled; holds nothing.
        """
        always_waits_for("a step that is late")
        task_status.started()
        while True:
            deadline = self._waited_since + self.step_timeout_s
            if deadline == math.inf:
                await self._idle.park()
                continue
            await trio.sleep_until(deadline)
            # After a stop of this process an answer may be there as well: it is taken first.
            await trio.lowlevel.checkpoint()
            silent = [rank for rank in range(len(self._results)) if rank not in self._answers]
            if silent and self._waited_since + self.step_timeout_s == deadline:
                raise StepTimeout(self._waited, self.step_timeout_s, tuple(silent))

    async def result(self, number: int) -> StepResult | None:
        """Wait until every rank has answered step `number`; the output rank's tokens.

        None if the workers are dead (`lose`).

        Raises `StepFailed` as soon as any rank has failed, with its traceback. Has no end if none
        has and some are silent: see `run_deadline`. Cancellation loses nothing: it may be asked for
        again, which does not move its deadline.
        """
        answers = self._answers
        if number != self._waited:
            self._waited, self._asked_first = number, trio.current_time()
        self._waited_since = self._asked_first
        self._idle.wake()
        try:
            if len(self._results) == 1:  # the usual case costs no task
                await self._take_answer(0, answers)
            else:
                await self._take_answers(answers)
        finally:
            self._waited_since = math.inf
        if self.lost:
            return None
        for answer in answers.values():
            if isinstance(answer, StepFailure):
                raise StepFailed(answer.number, answer.rank, answer.traceback)
            assert answer.number == number, "every worker answers every step in order"
        tokens = answers[OUTPUT_RANK]
        assert isinstance(tokens, StepResult)
        answers.clear()
        return tokens

    async def _take_answers(self, answers: dict[int, Answer]) -> None:
        """Side by side: ranks that wait for one that failed must not hide its failure."""
        async with trio.open_nursery() as nursery:
            for rank in set(range(len(self._results))) - answers.keys():
                nursery.start_soon(
                    self._take_answer, rank, answers, nursery.cancel_scope, name=f"result-{rank}"
                )

    async def _take_answer(
        self, rank: int, answers: dict[int, Answer], others: trio.CancelScope | None = None
    ) -> None:
        waits = self.recorder.now()
        try:
            frame = await self._results[rank].wait_read()
        except RingClosed:
            return
        came = self.recorder.now()
        answer = self._results_codec.decode((frame,))
        assert isinstance(answer, Answer)
        assert answer.pool_number == self.pool_number, "each pool has rings of its own"
        self.recorder.note_span(Span.WAIT, answer.number, waits, came)
        self.recorder.note(Span.DECODE, answer.number, came)
        answers[rank] = answer
        if isinstance(answer, StepFailure) and others is not None:
            others.cancel(f"worker {rank} has failed in this step")


@contextmanager
def open_step_rings(
    workers: int, step_timeout_s: float, recorder: StepRecorder = NO_RECORDER, pool_number: int = 0
) -> Iterator[StepRings]:
    """Rings to so many workers and back, for the body of the block; `lose` is called at its end.

    Raises `OSError` where memory or descriptors cannot be had.
    """
    with ExitStack() as ours, ExitStack() as theirs:

        def make_ring(readers: int, slot_bytes: int) -> RingParts:
            parts = create_ring(readers=readers, slots=RING_SLOTS, slot_bytes=slot_bytes)
            return theirs.enter_context(parts)

        steps = make_ring(workers, STEP_SLOT_BYTES)
        writer = ours.enter_context(RingWriter.attach(steps.writer_fds()))
        results = [make_ring(1, RESULT_SLOT_BYTES) for _ in range(workers)]
        readers = [ours.enter_context(RingReader.attach(ring.reader_fds(0), 0)) for ring in results]
        ends = [[*steps.reader_fds(rank), *ring.writer_fds()] for rank, ring in enumerate(results)]
        rings = StepRings(step_timeout_s, recorder, pool_number, writer, readers, ends, theirs)
        ours.callback(rings.lose)
        yield rings
