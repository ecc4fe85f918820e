"""Journal: appending a message, and what the next life needs to read it back.

    python -m triolet.bench journal [turns] [--rows 64]

Engines' messages of one token for each of some streams are appended to a journal in a memfd, page
faults and memory given back included. Then a journal of 10 000 streams with 200 tokens each is
read: its records alone, and with the streams rebuilt, as an adopter does before its RESYNC. All in
CPU time of this thread.
"""

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...engine.messages import ENGINE_TO_FRONTEND, AddRequest, StepOutputs
from ...engine.sampling_params import SamplingParams
from ...runtime.journal.memory import JournalFile, create_journal, open_mapped_journal
from ...runtime.journal.reader import RecordWalk, read_journal
from ...runtime.journal.records import (
    HEADER_BYTES,
    SEGMENT_BYTES,
    AdmissionRecord,
    Deletion,
    EngineLife,
    JournalHeader,
    Placement,
)
from ...runtime.journal.writer import JournalLimits, JournalWriter
from ...transports.codec import Codec
from ...transports.links.channel import Peer
from .words import argument_parser, at_least_one

TURNS, ROUNDS = 20, 3
MESSAGES_PER_TURN = 2_000
STREAMS, TOKENS, PROMPT, BODY_BYTES = 10_000, 200, 100, 300
APPEND_TARGET_US, REBUILD_TARGET_S = 2.0, 1.0
# No bound is met.
LIMITS = JournalLimits(bytes_max=2**40)
ENGINE = Peer("engine", 0, 1)
# Attempts as the second term numbers them.
FIRST_ATTEMPT = 2**33
_CODEC = Codec(*ENGINE_TO_FRONTEND)


@contextmanager
def opened_journal() -> Iterator[tuple[JournalFile, JournalWriter]]:
    """An empty one, as the root makes it and a frontend writes it."""
    fd = create_journal(0)
    try:
        with open_mapped_journal(fd, SEGMENT_BYTES) as mapped:
            file = JournalFile(fd)
            yield file, JournalWriter.resume(mapped, read_journal(file), 2, LIMITS)
    finally:
        os.close(fd)


def admission(number: int) -> AdmissionRecord:
    """A request as it comes from a client."""
    name = f"resp_{number:032x}"
    request = AddRequest(
        request_id=f"{name}#0",
        attempt=0,
        prompt_token_ids=list(range(1000, 1000 + PROMPT)),
        sampling=SamplingParams(max_tokens=TOKENS, seed=number),
        admitted_ns=time.monotonic_ns(),
    )
    return AdmissionRecord.of(name, [request], surface="responses", body=b"b" * BODY_BYTES)


def message(attempts: range, index: int) -> bytes:
    """A frame: one more token for each of these."""
    rows = len(attempts)
    outputs = StepOutputs(index, [], list(attempts), [index] * rows, [32_000 + index] * rows)
    return b"".join(map(bytes, _CODEC.encode(outputs)))


def measure_appending(turns: int, rows: int) -> tuple[list[float], int]:
    """CPU µs of one message, for each turn; old segments are given back. And a frame's bytes."""
    found = []
    attempts = range(FIRST_ATTEMPT, FIRST_ATTEMPT + rows)
    frames = [message(attempts, index) for index in range(MESSAGES_PER_TURN)]
    with opened_journal() as (_, writer):
        for turn in range(turns):
            writer.append(admission(turn))
            begun_s = time.thread_time()
            for frame in frames:
                writer.append_message(ENGINE, frame)
                writer.due()
            writer.append(Deletion([f"resp_{turn - 1:032x}"]))
            found.append((time.thread_time() - begun_s) / len(frames) * 1e6)
    return found, len(frames[-1])


def write_streams(writer: JournalWriter, rows: int) -> None:
    """Write all streams side by side, a message for each `rows` of them and token."""
    for number in range(STREAMS):
        writer.append(admission(number))
        placement = Placement(f"resp_{number:032x}#0", FIRST_ATTEMPT + number, EngineLife(0, 1))
        writer.append(placement)
    attempts = range(FIRST_ATTEMPT, FIRST_ATTEMPT + STREAMS)
    for index in range(TOKENS):
        for first in range(0, STREAMS, rows):
            writer.append_message(ENGINE, message(attempts[first : first + rows], index))


def measure_reading(file: JournalFile) -> tuple[float, float]:
    """CPU seconds of walking over all records, and of rebuilding the streams."""
    header = JournalHeader.of(file.load(0, HEADER_BYTES))
    begun_s = time.thread_time()
    count = sum(1 for _ in RecordWalk(file, header.begin, header.fill).records())
    walked_s = time.thread_time()
    contents = read_journal(file)
    rebuilt_s = time.thread_time()
    assert contents.number == count
    streams = contents.streams.streams.values()
    assert sum(len(stream.choices[0].token_ids) for stream in streams) == STREAMS * TOKENS
    return walked_s - begun_s, rebuilt_s - walked_s


def main() -> None:
    """Run and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("turns", nargs="?", type=at_least_one, default=TURNS)
    parser.add_argument("--rows", type=at_least_one, default=64, help="tokens in a message")
    options = parser.parse_args()
    for rows in sorted({1, options.rows}):
        costs, size = measure_appending(options.turns, rows)
        low, *_, high = statistics.quantiles(costs, n=10)
        middle = statistics.median(costs)
        print(
            f"append {rows:3} tokens, {size:4} bytes: {middle:.2f} µs a message ({low:.2f} to"
            f" {high:.2f}), {middle / rows:.3f} a token; target ≤ {APPEND_TARGET_US:g} a message"
        )
    with opened_journal() as (file, writer):
        write_streams(writer, options.rows)
        megabytes = writer.used_bytes / 1e6
        for _ in range(ROUNDS):
            walked_s, rebuilt_s = measure_reading(file)
            print(
                f"read {megabytes:.0f} MB: {megabytes / walked_s:.0f} MB/s decoded;"
                f" {STREAMS} streams of {TOKENS} tokens rebuilt in {rebuilt_s:.2f} s,"
                f" target ≤ {REBUILD_TARGET_S:g}"
            )


if __name__ == "__main__":
    main()
