"""Log lines for people and programs; they reach the reader whole and in order, or are counted."""

import fcntl
import json
import logging
import os
import pathlib
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import given

from triolet.nurseries.logs import (
    LINE_BYTES_MAX,
    LineFormat,
    LogQueue,
    LogSettings,
    log_fields,
    open_log,
)
from triolet.tests.live_tasks import find_background_task

logger = logging.getLogger("triolet.test")
F_SETPIPE_SZ = 1031
DEBUG, INFO, ERROR = 10, 20, 40


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    fcntl.fcntl(write, F_SETPIPE_SZ, 4096)
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


def read_all(read: int) -> bytes:
    data = b""
    while True:
        try:
            piece = os.read(read, 2**16)
        except BlockingIOError:
            return data
        if not piece:
            return data
        data += piece


async def test_lines_are_written_and_the_level_counts(pipe: tuple[int, int]) -> None:
    read, write = pipe
    async with open_log(LogSettings(), process="frontend 0", fd=write):
        logger.info("one")
        logger.debug("below the level")
        await trio.to_thread.run_sync(logger.info, "from a thread")
        await trio.testing.wait_all_tasks_blocked()
        lines = read_all(read).decode().splitlines()
        assert [line.split(": ")[1] for line in lines] == ["one", "from a thread"]
        assert find_background_task("log-writer") is not None
    logger.info("after the block")
    assert read_all(read) == b""
    assert os.get_blocking(write), "others who write there are not touched"


async def test_a_reader_that_sleeps_costs_lines_and_no_time(
    pipe: tuple[int, int], autojump_clock: trio.testing.MockClock
) -> None:
    read, write = pipe
    async with open_log(LogSettings(level="debug"), fd=write) as log:
        for number in range(3000):
            logger.debug("%06d %s", number, "x" * 900)
        logger.error("this matters")
        await trio.testing.wait_all_tasks_blocked()
        assert log.queue.dropped_total > 0
        assert log.queue.waiting_bytes <= log.queue.bytes_max
        data = b""
        while piece := read_all(read):
            data += piece
            await trio.testing.wait_all_tasks_blocked()
        assert not log.queue
    lines = data.decode().splitlines()
    assert any("this matters" in line for line in lines)
    assert any("log lines were dropped" in line for line in lines)
    numbers = [int(line.split()[1]) for line in lines if line.endswith("x")]
    assert numbers == sorted(numbers)


async def test_a_full_disk_costs_lines_and_ends_nothing() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        async with open_log(LogSettings(), fd=full) as log:
            for number in range(3):
                logger.info("%d", number)
                await trio.testing.wait_all_tasks_blocked()
            assert not log.queue
            assert find_background_task("log-writer") is not None
    finally:
        os.close(full)


async def test_a_reader_that_never_reads_does_not_hold_the_end(
    pipe: tuple[int, int], autojump_clock: trio.testing.MockClock
) -> None:
    _, write = pipe
    with trio.fail_after(5):
        async with open_log(LogSettings(), fd=write):
            for _ in range(100):
                logger.info("y" * 1000)


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """For what would wait outside of trio, where no deadline of trio's reaches it; once a second
    from then on, as the tidying after it would wait, too."""

    def interrupt(*_: object) -> None:
        raise AssertionError("the loop stood still")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def test_a_socket_that_is_not_read_costs_no_time_either() -> None:
    """As under systemd, whose journal reads from a socket that all processes share."""
    reader, stderr = socket.socketpair()
    with reader, stderr, interrupted_after(10):
        reader.setblocking(False)
        async with open_log(LogSettings(), fd=stderr.fileno()) as log:
            for _ in range(1000):
                logger.info("y" * 1000)
            await trio.testing.wait_all_tasks_blocked()
            assert log.queue
            data = b""
            while log.queue:
                data += reader.recv(2**20)
                await trio.testing.wait_all_tasks_blocked()
        data += reader.recv(2**20)
        assert data.count(b"\n") == 1000 == data.count(b"y" * 1000)
        assert stderr.getblocking(), "others who write there are not touched"


async def test_a_record_that_is_no_line_is_logged_all_the_same(pipe: tuple[int, int]) -> None:
    read, write = pipe
    mistaken = {"msg": "two of %s, and %d", "args": ("one",), "levelno": logging.INFO}
    async with open_log(LogSettings(), fd=write) as log:
        log.handle(logging.makeLogRecord(mistaken))  # by itself: pytest's handler is less patient
        logger.info("and on")
    lines = read_all(read).decode().splitlines()
    assert "two of %s, and %d" in lines[0]
    assert "TypeError" in lines[0]
    assert lines[1].endswith("and on")


async def test_a_reader_that_is_gone_is_no_fault() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        async with open_log(LogSettings(), fd=write):
            logger.info("without a reader")
    finally:
        os.close(write)


async def test_a_file_is_shared_with_others_who_write_there(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        os.write(file.fileno(), b"before\n")
        async with open_log(LogSettings(), fd=file.fileno()):
            logger.info("between")
            await trio.testing.wait_all_tasks_blocked()
            os.write(file.fileno(), b"after\n")
            logger.info("the end")
        os.write(file.fileno(), b"last\n")
    lines = path.read_text().splitlines()
    assert [line.split()[-1] for line in lines] == ["before", "between", "after", "end", "last"]


async def test_a_long_line_is_cut(pipe: tuple[int, int]) -> None:
    read, write = pipe
    data = b""
    async with open_log(LogSettings(), fd=write) as log:
        logger.info("z" * 2 * LINE_BYTES_MAX)
        while not data.endswith(b"\n"):
            await trio.testing.wait_all_tasks_blocked()
            data += read_all(read)
        assert not log.queue
    assert len(data) == LINE_BYTES_MAX
    assert data.endswith(b" ...\n")


def test_the_least_important_goes_first_and_of_it_the_oldest() -> None:
    queue = LogQueue(8)
    for level, line in ((DEBUG, b"1\n"), (INFO, b"2\n"), (DEBUG, b"3\n"), (ERROR, b"4\n")):
        queue.put(level, line)
    queue.put(INFO, b"5\n")
    queue.put(INFO, b"6\n")
    queue.put(ERROR, b"7\n")
    assert queue.take(100) == b"4\n5\n6\n7\n"
    assert queue.dropped_total == 3


def test_a_line_that_matters_least_is_itself_dropped() -> None:
    queue = LogQueue(4)
    queue.put(ERROR, b"12\n")
    queue.put(DEBUG, b"x\n")
    assert queue.take(100) == b"12\n"
    queue.put(ERROR, b"too long\n")
    assert not queue
    assert queue.dropped_total == 2


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from([DEBUG, INFO, ERROR]), st.binary(max_size=12)),
            st.integers(1, 30),
        )
    )
)
def test_every_line_is_taken_once_in_order_or_counted(steps: list[tuple[int, bytes] | int]) -> None:
    queue = LogQueue(40)
    put: list[bytes] = []
    taken: list[bytes] = []
    for step in steps:
        if isinstance(step, int):
            taken += [line + b"\n" for line in queue.take(step).split(b"\n")[:-1]]
        else:
            level, content = step
            line = b"%d %s\n" % (len(put), content.replace(b"\n", b""))
            put.append(line)
            queue.put(level, line)
        assert queue.waiting_bytes <= 40
    taken += [line + b"\n" for line in queue.take(1000).split(b"\n")[:-1]]
    assert len(taken) + queue.dropped_total == len(put)
    numbers = [int(line.split()[0]) for line in taken]
    assert numbers == sorted(set(numbers))


def record(
    message: str, *arguments: object, level: int = logging.INFO, **extra: object
) -> logging.LogRecord:
    made = logging.getLogger("triolet.test").makeRecord(
        "triolet.test", level, "f.py", 1, message, arguments, None, extra=extra
    )
    made.created = 1_000_000_000.25
    return made


def test_a_line_for_people() -> None:
    form = LineFormat(LogSettings(), "frontend 0", 3)
    line = form.line(record("said %s", "hello", size_bytes=3))
    assert line.split(" ", 1)[1] == "frontend 0: said hello size_bytes=3\n"
    assert " WARNING late\n" in form.line(record("late", level=logging.WARNING))


def test_control_characters_are_escaped_for_people() -> None:
    words = "refused: no\n12:00:00 root: ERROR forged \x1b]0;owned\x07\x7f\x9b\u2028 é"
    line = LineFormat(LogSettings()).line(record(words, path="/a\r\n"))
    assert line.split(" ", 1)[1] == (
        "refused: no\\n12:00:00 root: ERROR forged \\x1b]0;owned\\x07\\x7f\\x9b\\u2028 é"
        " path=/a\\r\\n\n"
    )


def test_a_line_of_the_root_names_no_process() -> None:
    assert LineFormat(LogSettings()).line(record("up")).split(" ", 1)[1] == "up\n"


def test_a_line_for_programs() -> None:
    form = LineFormat(LogSettings(format="json"), "engine 1", 4)
    with log_fields(request_id="req_1"):
        line = form.line(record('said "%s"\n', "ä", size_bytes=3, message_="x"))
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "time": "2001-09-09T01:46:40.250Z",
        "level": "info",
        "process": "engine 1",
        "epoch": 4,
        "logger": "triolet.test",
        "message": 'said "ä"\n',
        "request_id": "req_1",
        "size_bytes": 3,
        "message_": "x",
    }


def test_facts_are_for_programs_alone() -> None:
    made = record("engine 0: ready", facts={"child": "engine 0", "message": "never"})
    assert LineFormat(LogSettings()).line(made).endswith(" engine 0: ready\n")
    line = json.loads(LineFormat(LogSettings(format="json")).line(made))
    assert (line["child"], line["message"]) == ("engine 0", "engine 0: ready")


def test_fields_end_with_their_block_and_nest() -> None:
    form = LineFormat(LogSettings())
    with log_fields(one=1), log_fields(two=2):
        assert form.line(record("x")).endswith("x one=1 two=2\n")
    assert form.line(record("x")).endswith(" x\n")


@pytest.mark.parametrize("words", ["human", "json"])
def test_a_traceback_is_in_both(words: str) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        made = record("failed", level=logging.ERROR)
        made.exc_info = sys.exc_info()
    line = LineFormat(LogSettings(format=words)).line(made)
    text = line if words == "human" else json.loads(line)["exception"]
    assert "Traceback" in text
    assert "ValueError: broken" in text


@pytest.mark.parametrize("words", [{"format": "xml"}, {"level": "loud"}])
def test_unknown_words_are_refused(words: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must be in"):
        LogSettings(**words)
