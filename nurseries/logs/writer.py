"""Writes the log of a process to stderr without ever making the process wait for its reader.

`open_log` puts a handler before a `LogQueue` and starts the background task `log-writer`, which
writes when the reader takes something. A pipe or a terminal is opened anew, not blocking, since the
inherited description is shared with other processes; a socket, as systemd gives, is asked at each
write not to wait. Must not know what is logged.
"""

import logging
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from ..tasks.service import open_service
from ..tasks.waiting import waiting_for
from .lines import LineFormat, LogSettings
from .queue import LogQueue

STDERR = 2
# Some thousand lines: a reader that is busy for a second loses nothing.
QUEUE_BYTES_MAX = 2**20
# A pipe takes so much in one piece that no other writer's lines come between (PIPE_BUF).
WRITE_BYTES_MAX = 4096
# What still waits when a process ends is offered to the reader for so long.
LAST_WRITE_S = 0.5
# A line longer than this is cut; a traceback has some kilobytes.
LINE_BYTES_MAX = 64 * 2**10


@attrs.define(eq=False)
class LogWriter(logging.Handler):
    """The handler, and the task that empties its queue. Made by `open_log`."""

    form: LineFormat
    fd: int
    queue: LogQueue = attrs.field(factory=lambda: LogQueue(QUEUE_BYTES_MAX))
    _token: trio.lowlevel.TrioToken = attrs.field(
        factory=trio.lowlevel.current_trio_token, init=False
    )
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    _told_dropped: int = attrs.field(default=0, init=False)
    # Taken from the queue and not yet written: at most `WRITE_BYTES_MAX`, or one long line.
    _rest: memoryview = attrs.field(default=memoryview(b""), init=False)

    def __attrs_post_init__(self) -> None:
        super().__init__(self.form.settings.number)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; called by `logging`, in any thread."""
        line = self._line(record).encode(errors="replace")
        if len(line) > LINE_BYTES_MAX:
            line = line[: LINE_BYTES_MAX - 5] + b" ...\n"
        try:
            is_loop = trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            is_loop = False
        if is_loop:
            self._put(record.levelno, line)
        else:
            self._token.run_sync_soon(self._put, record.levelno, line)

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.form.line(record)
        except Exception as error:  # a mistake of who logs, whom a log must not end for it
            plain = f"{record.msg} ({type(error).__name__}: {error})"
            facts = {name: vars(record)[name] for name in ("name", "levelno", "levelname")}
            return self.form.line(logging.makeLogRecord({**facts, "msg": plain}))

    def _put(self, level: int, line: bytes) -> None:
        self.queue.put(level, line)
        self._wake.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `log-writer`. What waits at its end is written within `LAST_WRITE_S`."""
        task_status.started()
        try:
            while True:
                with waiting_for("lines to log"):
                    await self._wake.wait()
                self._wake = trio.Event()
                await self._write_all()
        finally:
            with trio.CancelScope(shield=True) as scope:
                scope.deadline = trio.current_time() + LAST_WRITE_S
                await self._write_all()

    async def _write_all(self) -> None:
        """Write until nothing waits. Cancelled, it goes on where it was when called again."""
        while self._rest or self.queue:
            if not self._rest:
                self._tell_dropped()
                self._rest = memoryview(self.queue.take(WRITE_BYTES_MAX))
            try:
                count = _write_nowait(self.fd, self._rest[:WRITE_BYTES_MAX])
                self._rest = self._rest[count:]
            except BlockingIOError:
                with waiting_for("the reader of the log"):
                    await trio.lowlevel.wait_writable(self.fd)
            except OSError:  # nobody reads, or the disk is full: a log must not end what it is of
                self._rest = memoryview(b"")
            await trio.lowlevel.checkpoint()

    def _tell_dropped(self) -> None:
        dropped = self.queue.dropped_total - self._told_dropped
        if dropped:
            self._told_dropped += dropped
            logging.getLogger(__name__).warning("%d log lines were dropped", dropped)


@asynccontextmanager
async def open_log(
    settings: LogSettings, *, process: str = "", epoch: int = 0, fd: int = STDERR
) -> AsyncIterator[LogWriter]:
    """Log this process to `fd` for the length of the block, by way of Python's `logging`.

    Cancellation: lines of the body's own end are still written, within `LAST_WRITE_S`.
    """
    own = _open_anew(fd)
    writer = LogWriter(LineFormat(settings, process, epoch), own)
    root = logging.getLogger()
    level = root.level
    root.addHandler(writer)
    root.setLevel(settings.number)
    try:
        async with open_service(writer.run, name="log-writer"):
            yield writer
    finally:
        root.removeHandler(writer)
        root.setLevel(level)
        trio.lowlevel.notify_closing(own)  # what it was opened from stays: see `waitable_copy`
        os.close(own)


def _open_anew(fd: int) -> int:
    """The same pipe or terminal, not blocking and ours alone; else a plain duplicate.

    A file is always shared: a position of our own would overwrite what others write there, and a
    disk has no reader that sleeps.
    """
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.dup(fd)
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # a socket, or no /proc
        return os.dup(fd)


def _write_nowait(fd: int, data: memoryview) -> int:
    """How much of it was taken at once. Raises `BlockingIOError`, `OSError`."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return os.write(fd, data)
    # It cannot be opened anew, and O_NONBLOCK would be everybody's.
    with socket.socket(fileno=os.dup(fd)) as copy:
        return copy.send(data, socket.MSG_DONTWAIT)
