"""Log lines from log records: one form for people, one for programs (JSON).

Both carry the process and, where they are known, epoch and request: `log_fields` adds such fields
for a task and all that it starts. The front is the standard library's `logging`, so that other
packages' records come too. Why not structlog: importing it costs 100 ms and brings rich and asyncio
into every process (measured), and a restarted worker must be there in tenths of a second.
"""

import json
import logging
import time
from collections.abc import Mapping
from contextvars import ContextVar, Token

import attrs

HUMAN, JSON = "human", "json"
FORMATS = (HUMAN, JSON)
LEVELS = ("debug", "info", "warning", "error")
_FIELDS: ContextVar[Mapping[str, object]] = ContextVar("log fields")
_NO_FIELDS: Mapping[str, object] = {}
# A record's `facts` say once more, as data, what its message says: for programs alone.
_FACTS = "facts"
# What every record has; the rest came with `extra=`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", _FACTS}


@attrs.frozen(kw_only=True)
class LogSettings:
    """How to log. Raises `ValueError` for an unknown word."""

    format: str = attrs.field(default=HUMAN, validator=attrs.validators.in_(FORMATS))
    level: str = attrs.field(default="info", validator=attrs.validators.in_(LEVELS))

    @property
    def number(self) -> int:
        """The level as `logging` has it."""
        return logging.getLevelNamesMapping()[self.level.upper()]


@attrs.define(eq=False)
class _Fields:
    """A block with these fields; a class, as there is one for each request."""

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
        """One record, its line end included; a traceback makes it several lines for people."""
        fields = {**_FIELDS.get(_NO_FIELDS), **_extra(record)}
        if self.settings.format == JSON:
            return self._json(record, fields)
        return self._human(record, fields)

    def _human(self, record: logging.LogRecord, fields: Mapping[str, object]) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        who = f"{self.process}: " if self.process else ""
        grave = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        more = "".join(f" {name}={value}" for name, value in fields.items())
        text = f"{at} {who}{grave}{record.getMessage()}{more}\n"
        return text + "".join(f"{line}\n" for line in _traceback(record))

    def _json(self, record: logging.LogRecord, fields: Mapping[str, object]) -> str:
        whole: dict[str, object] = {
            "time": _utc(record.created),
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


def _utc(seconds: float) -> str:
    """RFC 3339, with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03}Z"


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _traceback(record: logging.LogRecord) -> list[str]:
    if not record.exc_info or record.exc_info[0] is None:
        return []
    return logging.Formatter().formatException(record.exc_info).splitlines()
