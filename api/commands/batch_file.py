"""Files of a batch in OpenAI's format: requests in, answers out, a JSON object a line each.

The file of answers is also the record of what is done: a batch that is started again asks only for
what has no answer there. A death in the middle of a write leaves a torn last line, which is cut
off; any other line that is no answer means that the file is not a batch's, and it is left alone.
"""

import fcntl
import os
import pathlib
from collections.abc import Iterator
from typing import Any, Self

import attrs
import msgspec

from ...engine.errors import InvalidParameter

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
# Limit of a line; a server takes no larger body.
LINE_BYTES_MAX = 16 * 2**20


@attrs.frozen
class BatchFileError(Exception):
    """A file of a batch that cannot be used; names the file, the line, and what is wrong."""

    path: pathlib.Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@attrs.frozen
class BatchRequest:
    """Request in a line of the input. `line` is the whole line, as it stands there."""

    custom_id: str
    url: str
    body: dict[str, Any]
    line: bytes = attrs.field(repr=False)


def read_requests(path: pathlib.Path) -> Iterator[BatchRequest]:
    """The requests of a file, in order; empty lines are passed over. Raises `BatchFileError`."""
    ids = set[str]()
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            request = _request(line)
            if request.custom_id in ids:
                raise ValueError(f"custom_id {request.custom_id!r} stands there twice")
        except (ValueError, msgspec.MsgspecError) as error:
            raise BatchFileError(path, f"line {number}: {error}") from error
        ids.add(request.custom_id)
        yield request


def _lines(path: pathlib.Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while line := file.readline(LINE_BYTES_MAX + 1):
                if len(line) > LINE_BYTES_MAX:
                    raise BatchFileError(path, f"has a line of more than {LINE_BYTES_MAX} bytes")
                yield line
    except OSError as error:
        raise BatchFileError(path, f"cannot be read: {error.strerror}") from error


def _request(line: bytes) -> BatchRequest:
    """Raises `ValueError`, `MsgspecError` for what is no JSON."""
    value = msgspec.json.decode(line)
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    custom_id, url, body = value.get("custom_id"), value.get("url"), value.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise ValueError("custom_id must be text, as a name for the answer")
    if value.get("method") != "POST":
        raise ValueError("method must be POST")
    if url not in ROUTES:
        raise ValueError(f"url must be one of {', '.join(ROUTES)}")
    if not isinstance(body, dict):
        raise ValueError("body must be an object")
    if body.get("stream") or body.get("background"):
        raise ValueError("body must not ask for stream or background: an answer is one line")
    return BatchRequest(custom_id, str(url), body, line)


@attrs.define(eq=False)
class AnswerFile:
    """The output, locked for this process; `done` are the custom_ids that have an answer."""

    path: pathlib.Path
    _fd: int
    done: set[str] = attrs.field(factory=set, init=False)

    @classmethod
    def open(cls, path: pathlib.Path) -> Self:
        """Take up the file where it ends. Raises `BatchFileError`."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise BatchFileError(path, f"cannot be written: {error.strerror}") from error
        answers = cls(path, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            answers._take_up()
        except BlockingIOError as error:
            answers.close()
            raise BatchFileError(path, "another batch writes to it") from error
        except BaseException:
            answers.close()
            raise
        return answers

    def _take_up(self) -> None:
        end, torn_at = 0, -1
        for number, line in enumerate(_lines(self.path), 1):
            if torn_at >= 0:
                reason = f"line {torn_at} is no answer of a batch; name another file"
                raise BatchFileError(self.path, reason)
            custom_id = _answered(line)
            if custom_id is None:
                torn_at = number  # if it is the last one
            else:
                self.done.add(custom_id)
                end += len(line)
        if torn_at == 1 and os.fstat(self._fd).st_size and not self._is_torn_answer():
            raise BatchFileError(self.path, "is no file of a batch's answers; name another file")
        os.ftruncate(self._fd, end)

    def _is_torn_answer(self) -> bool:
        """Whether a file of one line may be the begin of an answer, not something else."""
        begin = answer_line("", None, {})[:6]  # {"id":
        return os.pread(self._fd, len(begin), 0) in (begin, begin[: os.fstat(self._fd).st_size])

    def write(self, custom_id: str, line: bytes) -> None:
        """Add an answer. Raises `BatchFileError`; what is torn then is cut off by the next."""
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            raise BatchFileError(self.path, f"cannot be written: {error.strerror}") from error
        self.done.add(custom_id)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def _answered(line: bytes) -> str | None:
    """The custom_id of an answer's line; None if it is none, or not whole."""
    if not line.endswith(b"\n"):
        return None
    try:
        value = msgspec.json.decode(line)
    except msgspec.MsgspecError:
        return None
    custom_id = value.get("custom_id") if isinstance(value, dict) else None
    return custom_id if isinstance(custom_id, str) and "response" in value else None


def answer_line(custom_id: str, response: dict[str, Any] | None, error: Any) -> bytes:
    """Line of the output, as OpenAI's."""
    value = {
        "id": f"batch_req_{custom_id}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(value) + b"\n"


def check_files(source: pathlib.Path, target: pathlib.Path) -> int:
    """How many requests there are; all are read. Raises `BatchFileError`, `InvalidParameter`."""
    if target.exists() and source.exists() and source.samefile(target):
        raise InvalidParameter("output", "must be another file than the input")
    return sum(1 for _ in read_requests(source))
