"""Recorder of steps: when each part of a step began and ended, for a timeline.

Off unless the settings name a folder: then every engine and worker process maps one file in it and
stores a record for each span. A mapped page outlives its process, so that nothing has to be flushed
and a process that is killed leaves what it did. Times are of the clock that all processes of a
machine share.
"""

import enum
import mmap
import os
import pathlib
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

# Kind, step number, begin and end in nanoseconds of CLOCK_MONOTONIC. An end of 0: no record yet.
RECORD = struct.Struct("<IIqq")
# About 20 000 steps; the file is sparse, so that what is not written takes no room.
RECORDS_MAX = 200_000
SUFFIX = ".steps"


class Span(enum.IntEnum):
    """The parts of a step, first those of an engine, then those of a worker."""

    SCHEDULE = 1  # decide what the step computes
    ENCODE = 2  # the step as bytes
    SUBMIT = 3  # the bytes into the ring, the workers woken
    WAIT = 4  # nothing to do but wait for the result
    DECODE = 5  # the result out of its bytes
    APPLY = 6  # stop rules, blocks, outputs
    DELIVER = 7  # outputs to the frontends' channels
    READ = 16  # the worker waits for a step
    UNPACK = 17  # the step out of its bytes
    COMPUTE = 18  # everything that the executor does, forward pass and sampling
    SAMPLE = 19  # the end of COMPUTE that is sampling, where the executor measures it
    ANSWER = 20  # the result as bytes into the ring, the engine woken


@attrs.define(eq=False)
class StepRecorder:
    """Records spans into mapped memory; one thread at a time. Full, or without any, it does not."""

    _memory: mmap.mmap | None = None
    _records: int = attrs.field(default=0, init=False)

    def now(self) -> int:
        """A moment for `note`, in nanoseconds; 0 where nothing is recorded."""
        return 0 if self._memory is None else time.monotonic_ns()

    def note(self, span: Span, step: int, since: int) -> int:
        """The span of this step began at `since` and ends now; returns now."""
        if self._memory is None:
            return 0
        end = time.monotonic_ns()
        self.note_span(span, step, since, end)
        return end

    def note_span(self, span: Span, step: int, begin: int, end: int) -> None:
        """The same with both ends."""
        if self._memory is not None and self._records < RECORDS_MAX:
            RECORD.pack_into(self._memory, self._records * RECORD.size, span, step, begin, end)
            self._records += 1


NO_RECORDER = StepRecorder()


@contextmanager
def open_recorder(folder: str, name: str) -> Iterator[StepRecorder]:
    """A recorder of this process below `folder`, or one that records nothing where that is "".

    Raises `OSError` where the file cannot be made.
    """
    if not folder:
        yield NO_RECORDER
        return
    path = pathlib.Path(folder) / f"{name}-{os.getpid()}{SUFFIX}"
    with path.open("x+b") as file:
        file.truncate(RECORDS_MAX * RECORD.size)
        with mmap.mmap(file.fileno(), 0) as memory:
            yield StepRecorder(memory)
