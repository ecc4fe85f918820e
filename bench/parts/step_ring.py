"""Round trips of a step: the ring, blocking and as the engine waits, beside `multiprocessing.Pipe`.

    python -m triolet.bench step_ring [turns]

A forked child of each way answers every message with 256 bytes. The ways take turns of a few
milliseconds, so that whatever else the machine does meets all of them, and both sides are pinned:
once to one processor, where the work counts, once to two, where waking the other one counts (left
to itself the kernel chooses by chance, and differs fivefold). Printed: µs a round trip at the
median and at the 99th percentile over all turns, the CPU time that one costs this process, and
ratios to the pipe beside their targets. Nothing is asserted: it is a measurement.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator

import attrs
import trio

from ...nurseries.processes.boot import request_death_signal
from ...transports.rings.ring_memory import create_ring
from ...transports.rings.shm_ring import RingReader, RingWriter
from .words import argument_parser, at_least_one

ANSWER = bytes(256)
SIZES = (2_000, 64_000, 300_000)
TURNS = 40
ROUND_TRIPS_PER_TURN = 100
SLOTS = 4
SLOT_BYTES = 128 * 1024
END = b""
PIPE = "multiprocessing.Pipe"
# Targets by the pipe's median, for a step that fits a slot.
TARGETS = {"ring, blocking": 1.0, "ring, through trio": 1.5}

RoundTrips = Callable[[bytes, int], Awaitable[list[float]]]


@attrs.define(eq=False)
class Way:
    """Seconds of each round trip so far, and the CPU time that all of them cost this process."""

    run: RoundTrips
    times: list[float] = attrs.field(factory=list)
    cpu_s: float = 0.0

    async def take_turn(self, data: bytes) -> None:
        cpu_s = time.process_time()
        self.times += await self.run(data, ROUND_TRIPS_PER_TURN)
        self.cpu_s += time.process_time() - cpu_s

    def figures(self) -> tuple[float, float, float]:
        """µs: median, 99th percentile, CPU."""
        cuts = statistics.quantiles(self.times, n=100)
        return cuts[49] * 1e6, cuts[98] * 1e6, self.cpu_s / len(self.times) * 1e6


@contextlib.contextmanager
def forked(child: Callable[[], None], processor: int | None = None) -> Iterator[None]:
    """Runs `child` in a forked process, on one processor; the block must make it return."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        request_death_signal()  # a benchmark that waits for an answer heeds no signal but SIGKILL
        if os.getppid() != parent:
            os._exit(0)
        if processor is not None:
            os.sched_setaffinity(0, {processor})
        child()
        os._exit(0)
    try:
        yield
    except BaseException:  # such as Ctrl-C: it would wait for us for ever
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.waitpid(pid, 0)


@contextlib.contextmanager
def answering_ring(processor: int) -> Iterator[tuple[RingWriter, RingReader]]:
    """A ring, and a process on that processor that sends everything back."""
    with (
        create_ring(readers=1, slots=SLOTS, slot_bytes=SLOT_BYTES) as steps,
        create_ring(readers=1, slots=SLOTS, slot_bytes=SLOT_BYTES) as answers,
    ):

        def answer() -> None:
            reader = RingReader.attach(steps.reader_fds(0), 0)
            writer = RingWriter.attach(answers.writer_fds())
            while reader.read() != END:
                writer.write(ANSWER)

        with forked(answer, processor):
            writer = RingWriter.attach(steps.writer_fds())
            reader = RingReader.attach(answers.reader_fds(0), 0)
            with writer, reader:
                yield writer, reader
                writer.write(END)


def timed(round_trip: Callable[[bytes], Awaitable[object]]) -> RoundTrips:
    """Times of so many round trips, one after another."""

    async def run(data: bytes, count: int) -> list[float]:
        times = []
        for _ in range(count):
            start = time.perf_counter()
            await round_trip(data)
            times.append(time.perf_counter() - start)
        return times

    return run


@contextlib.contextmanager
def ring_blocking(processor: int) -> Iterator[RoundTrips]:
    """The ring, read by a blocking call."""
    with answering_ring(processor) as (writer, reader):

        async def round_trip(data: bytes) -> None:
            writer.write(data)
            reader.read()

        yield timed(round_trip)


@contextlib.contextmanager
def ring_trio(processor: int) -> Iterator[RoundTrips]:
    """Read as `StepRings.result` waits; a task of its own watches the deadline of all steps."""
    with answering_ring(processor) as (writer, reader):

        async def round_trip(data: bytes) -> None:
            writer.write(data)
            await reader.wait_read()

        yield timed(round_trip)


@contextlib.contextmanager
def pipe(processor: int) -> Iterator[RoundTrips]:
    """A pipe of the standard library."""
    ours, theirs = multiprocessing.Pipe()

    def answer() -> None:
        while theirs.recv_bytes() != END:
            theirs.send_bytes(ANSWER)

    with forked(answer, processor), ours, theirs:

        async def round_trip(data: bytes) -> None:
            ours.send_bytes(data)
            ours.recv_bytes()

        yield timed(round_trip)
        ours.send_bytes(END)


WAYS = {"ring, blocking": ring_blocking, "ring, through trio": ring_trio, PIPE: pipe}


async def measure(size: int, turns: int, processor: int) -> None:
    """Print a row for each way."""
    data = bytes(size)
    with contextlib.ExitStack() as owned:
        ways = {name: Way(owned.enter_context(make(processor))) for name, make in WAYS.items()}
        for way in ways.values():
            await way.run(data, ROUND_TRIPS_PER_TURN)  # the first ones fault pages in
        order = random.Random(0)  # a turn also feels what the one before it left behind
        for _ in range(turns):
            for way in order.sample(list(ways.values()), len(ways)):
                await way.take_turn(data)
    limit = ways[PIPE].figures()[0]
    for name, way in ways.items():
        p50, p99, cpu = way.figures()
        aim = f"  target {TARGETS[name]:.1f}" if name in TARGETS and size == SIZES[0] else ""
        print(f"{name:24}{size:8}{p50:8.1f}{p99:8.1f}{cpu:8.1f}{p50 / limit:8.2f}{aim}")


def main() -> None:
    """Print the tables."""
    parser = argument_parser(__doc__)
    parser.add_argument("turns", nargs="?", type=at_least_one, default=TURNS)
    turns = parser.parse_args().turns
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[0]})
    for place, processor in (("one", processors[0]), ("two", processors[-1])):
        if place == "two" and processor == processors[0]:
            continue
        heading = f"µs on {place} processor{'s' if place == 'two' else ''}"
        print(f"{heading:24}{'bytes':>8}{'p50':>8}{'p99':>8}{'CPU':>8}{'of Pipe':>9}")
        for size in SIZES:
            trio.run(measure, size, turns, processor)


if __name__ == "__main__":
    main()
