"""Round trips of a step: the ring, blocking and through trio, against `multiprocessing.Pipe`.

    python tests/benchmarks/step_ring.py [rounds]

A forked child answers every message with 256 bytes. Medians over rounds are printed in µs, with
the CPU time that one round trip costs this process. Nothing is asserted: it is a measurement.
"""

import contextlib
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import attrs
import trio

from triolet.transports.ring_memory import create_ring
from triolet.transports.shm_ring import RingReader, RingWriter

ANSWER = bytes(256)
SIZES = (2_000, 64_000, 300_000)
ROUND_TRIPS = 2_000
SLOTS = 4
SLOT_BYTES = 128 * 1024
END = b""


@attrs.frozen
class Result:
    """Of one way: µs a round trip, at the median and at the 99th percentile, and CPU µs."""

    p50: float
    p99: float
    cpu: float


@contextlib.contextmanager
def forked(child: Callable[[], None]) -> Iterator[None]:
    """Runs `child` in a forked process; the block must make it return."""
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    yield
    os.waitpid(pid, 0)


@contextlib.contextmanager
def answering_ring() -> Iterator[tuple[RingWriter, RingReader]]:
    with (
        create_ring(readers=1, slots=SLOTS, slot_bytes=SLOT_BYTES) as steps,
        create_ring(readers=1, slots=SLOTS, slot_bytes=SLOT_BYTES) as answers,
    ):

        def answer() -> None:
            reader = RingReader.attach(steps.reader_fds(0), 0)
            writer = RingWriter.attach(answers.writer_fds())
            while reader.read() != [END]:
                writer.write([ANSWER])

        with forked(answer):
            writer = RingWriter.attach(steps.writer_fds())
            reader = RingReader.attach(answers.reader_fds(0), 0)
            with writer, reader:
                yield writer, reader
                writer.write([END])


def measure(round_trip: Callable[[], object]) -> Result:
    times = []
    cpu = time.process_time()
    for _ in range(ROUND_TRIPS):
        start = time.perf_counter()
        round_trip()
        times.append(time.perf_counter() - start)
    return _result(times, time.process_time() - cpu)


def _result(times: list[float], cpu_s: float) -> Result:
    cuts = statistics.quantiles(times, n=100)
    return Result(cuts[49] * 1e6, cuts[98] * 1e6, cpu_s / len(times) * 1e6)


def ring_blocking(data: bytes) -> Result:
    with answering_ring() as (writer, reader):

        def round_trip() -> None:
            writer.write([data])
            reader.read()

        return measure(round_trip)


def ring_trio(data: bytes) -> Result:
    async def run() -> Result:
        times = []
        cpu = time.process_time()
        for _ in range(ROUND_TRIPS):
            start = time.perf_counter()
            writer.write([data])
            await reader.wait_read()
            times.append(time.perf_counter() - start)
        return _result(times, time.process_time() - cpu)

    with answering_ring() as (writer, reader):
        return trio.run(run)


def pipe(data: bytes) -> Result:
    ours, theirs = multiprocessing.Pipe()

    def answer() -> None:
        while theirs.recv_bytes() != END:
            theirs.send_bytes(ANSWER)

    with forked(answer):

        def round_trip() -> None:
            ours.send_bytes(data)
            ours.recv_bytes()

        result = measure(round_trip)
        ours.send_bytes(END)
    return result


def main(rounds: int) -> None:
    ways = {"ring, blocking": ring_blocking, "ring, trio": ring_trio, "multiprocessing.Pipe": pipe}
    print(f"{'µs a round trip':24}{'bytes':>8}{'p50':>8}{'p99':>8}{'CPU':>8}")
    for size in SIZES:
        results: dict[str, list[Result]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                results[name].append(way(bytes(size)))
        for name, found in results.items():
            row = [
                statistics.median(getattr(r, key) for r in found) for key in ("p50", "p99", "cpu")
            ]
            print(f"{name:24}{size:8}" + "".join(f"{value:8.1f}" for value in row))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
