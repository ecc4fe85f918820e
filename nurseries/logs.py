"""Log of a process to stderr: lines for people or JSON, a bounded queue, a writer that never waits.

The front is the standard library's `logging`, so that other packages' records come too.
`log_fields` adds fields (a request id) to the lines of a task and of all that it starts. Why not
structlog: it costs 100 ms to import and brings rich and asyncio into every process (measured).

A process must not wait for the reader of its log, and must not grow for it either: `LogQueue` drops
the least important lines at its bound. `open_log` starts the background task `log-writer`, which
writes when the reader takes something. A pipe or a terminal is opened anew, not blocking, since the
inherited description is shared with other processes; a socket, as systemd gives, is asked at each
write not to wait.
"""

import json
import logging
import os
import socket
import stat
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar, Token

import attrs
import trio

from .plain_text import escaped
from .tasks.background import waiting_for
from .tasks.parking import Doorbell
from .tasks.service import open_service

HUMAN, JSON = "human", "json"
FORMATS = (HUMAN, JSON)
LEVELS = ("debug", "info", "warning", "error")
_FIELDS: ContextVar[Mapping[str, object]] = ContextVar("log fields")
_NO_FIELDS: Mapping[str, object] = {}
# A record's `facts` say as data what its message says; they are in JSON lines alone.
_FACTS = "facts"
# Attributes of every record; any other came with `extra=`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", _FACTS}

STDERR = 2
# Room for some thousand lines: a reader that is busy for a second loses nothing.
QUEUE_BYTES_MAX = 2**20
# A pipe takes so much in one piece that no other writer's lines come between (PIPE_BUF).
WRITE_BYTES_MAX = 4096
# Time at the end of a process to offer the lines that wait to the reader.
LAST_WRITE_S = 0.5
# A line longer than this is cut; a traceback has some kilobytes.
LINE_BYTES_MAX = 64 * 2**10


@attrs.frozen(kw_only=True)
class LogSettings:
    """How to log. Raises `ValueError` for an unknown format or level."""

    format: str = attrs.field(
        default=HUMAN,
        validator=attrs.validators.in_(FORMATS),
        metadata={
            "option": "log-format",
            "help": "Lines for people, or one JSON object per line.",
            "one_of": FORMATS,
        },
    )
    level: str = attrs.field(
        default="info",
        validator=attrs.validators.in_(LEVELS),
        metadata={"option": "log-level", "help": "Minimum log level.", "one_of": LEVELS},
    )

    @property
    def number(self) -> int:
        """The level as `logging` has it."""
        return logging.getLevelNamesMapping()[self.level.upper()]


@attrs.define(eq=False)
class _Fields:
    """A block with these fields; a class, which costs less than a generator for each request."""

    _fields: Mapping[str, object]
    _token: Token[Mapping[str, object]] | None = None

    def __enter__(self) -> None:
        self._token = _FIELDS.set({**_FIELDS.get(_NO_FIELDS), **self._fields})

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _FIELDS.reset(self._token)


def log_fields(**fields: object) -> _Fields:
    """Every line of this task, and of tasks started within the block, carries these fields."""
    return _Fields(fields)


@attrs.frozen
class LineFormat:
    """Lines of one process. `process` is "" for the root, whose sentences name their children."""

    settings: LogSettings
    process: str = ""
    epoch: int = 0

    def line(self, record: logging.LogRecord) -> str:
        """A record as text with its line end; a traceback makes several lines for people.

        Control characters of clients and models are escaped, in a traceback all but line breaks.
        """
        own = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        fields = {**_FIELDS.get(_NO_FIELDS), **own}
        if self.settings.format == JSON:
            return self._json(record, fields)
        return self._human(record, fields)

    def _human(self, record: logging.LogRecord, fields: Mapping[str, object]) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        process = f"{self.process}: " if self.process else ""
        level = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        more = "".join(f" {name}={value}" for name, value in fields.items())
        text = f"{at} {process}{level}{escaped(record.getMessage() + more)}\n"
        return text + "".join(f"{escaped(line)}\n" for line in _traceback(record))

    def _json(self, record: logging.LogRecord, fields: Mapping[str, object]) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))  # RFC 3339
        whole: dict[str, object] = {
            "time": f"{at}.{int(record.created % 1 * 1000):03}Z",
            "level": record.levelname.lower(),
            "process": self.process or "root",
            "epoch": self.epoch,
            "logger": record.name,
            "message": record.getMessage(),
        }
        more = {**vars(record).get(_FACTS, _NO_FIELDS), **fields}
        whole.update((name, value) for name, value in more.items() if name not in whole)
        if lines := _traceback(record):
            whole["exception"] = "\n".join(lines)
        return json.dumps(whole, default=str, ensure_ascii=False) + "\n"


def _traceback(record: logging.LogRecord) -> list[str]:
    if not record.exc_info or record.exc_info[0] is None:
        return []
    return logging.Formatter().formatException(record.exc_info).splitlines()


@attrs.define(eq=False)
class LogQueue:
    """Lines that wait for the reader of stderr: first in, first out, at most `bytes_max` bytes.

    Over the bound the lowest level goes first, the oldest of it before the newer ones; what was
    dropped is counted. Pure.
    """

    bytes_max: int

    # {level: (number over all levels, line)}, no deque empty; bounded together by `bytes_max`.
    _waiting: dict[int, deque[tuple[int, bytes]]] = attrs.field(factory=dict, init=False)
    waiting_bytes: int = attrs.field(default=0, init=False)
    dropped_total: int = attrs.field(default=0, init=False)
    _number: int = attrs.field(default=0, init=False)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, level: int, line: bytes) -> None:
        """Add a line, dropping less important ones, or itself, where there is no room."""
        self._number += 1
        # Bounded by `bytes_max`, below.
        self._waiting.setdefault(level, deque()).append((self._number, line))
        self.waiting_bytes += len(line)
        while self.waiting_bytes > self.bytes_max:
            self._pop(min(self._waiting))
            self.dropped_total += 1

    def take(self, bytes_max: int) -> bytes:
        """The oldest lines, whole, as many as fit; at least one. b"" when none waits."""
        taken: list[bytes] = []
        size = 0
        while self._waiting:
            level = min(self._waiting, key=lambda level: self._waiting[level][0][0])
            line = self._waiting[level][0][1]
            if taken and size + len(line) > bytes_max:
                break
            taken.append(self._pop(level))
            size += len(line)
        return b"".join(taken)

    def _pop(self, level: int) -> bytes:
        entries = self._waiting[level]
        _, line = entries.popleft()
        if not entries:
            del self._waiting[level]
        self.waiting_bytes -= len(line)
        return line


@attrs.define(eq=False)
class LogWriter(logging.Handler):
    """The handler, and the task that empties its queue. Made by `open_log`."""

    form: LineFormat
    fd: int
    queue: LogQueue = attrs.field(factory=lambda: LogQueue(QUEUE_BYTES_MAX))
    _token: trio.lowlevel.TrioToken = attrs.field(
        factory=trio.lowlevel.current_trio_token, init=False
    )
    _wake: Doorbell = attrs.field(factory=Doorbell, init=False)
    _reported_dropped: int = attrs.field(default=0, init=False)
    # Taken from the queue and not yet written: at most `WRITE_BYTES_MAX`, or one long line.
    _rest: memoryview = attrs.field(default=memoryview(b""), init=False)

    def __attrs_post_init__(self) -> None:
        super().__init__(self.form.settings.number)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; called by `logging`, in any thread."""
        line = self._line(record).encode(errors="replace")
        if len(line) > LINE_BYTES_MAX:
            line = line[: LINE_BYTES_MAX - 5] + b" ...\n"
        in_trio = trio.lowlevel.in_trio_run()
        if in_trio and trio.lowlevel.current_trio_token() is self._token:
            self._put(record.levelno, line)
        else:
            self._token.run_sync_soon(self._put, record.levelno, line)

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.form.line(record)
        except Exception as error:  # a wrong call of `logging` must not end its caller
            plain = f"{record.msg} ({type(error).__name__}: {error})"
            facts = {name: vars(record)[name] for name in ("name", "levelno", "levelname")}
            return self.form.line(logging.makeLogRecord({**facts, "msg": plain}))

    def _put(self, level: int, line: bytes) -> None:
        self.queue.put(level, line)
        self._wake.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `log-writer`. What waits at its end is written within `LAST_WRITE_S`."""
        task_status.started()
        try:
            while True:
                with waiting_for("lines to log"):
                    await self._wake.wait()
                await self._write_all()
        finally:
            with trio.CancelScope(shield=True) as scope:
                scope.deadline = trio.current_time() + LAST_WRITE_S
                await self._write_all()

    async def _write_all(self) -> None:
        """Write until nothing waits. Cancelled, it goes on where it was when called again."""
        while self._rest or self.queue:
            if not self._rest:
                self._report_dropped()
                self._rest = memoryview(self.queue.take(WRITE_BYTES_MAX))
            try:
                count = _write_nowait(self.fd, self._rest[:WRITE_BYTES_MAX])
                self._rest = self._rest[count:]
            except BlockingIOError:
                with waiting_for("the reader of the log"):
                    await trio.lowlevel.wait_writable(self.fd)
            except OSError:  # no reader, or a full disk: a log must not end its process
                self._rest = memoryview(b"")
            await trio.lowlevel.checkpoint()

    def _report_dropped(self) -> None:
        dropped = self.queue.dropped_total - self._reported_dropped
        if dropped:
            self._reported_dropped += dropped
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
    # Only this copy does not wait: O_NONBLOCK would hold for all processes that share the pipe.
    with socket.socket(fileno=os.dup(fd)) as copy:
        return copy.send(data, socket.MSG_DONTWAIT)
