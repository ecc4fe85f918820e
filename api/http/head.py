"""Reads the heads that well-behaved clients send, and writes the heads of answers.

Sans-IO: bytes in, values out, and back. `read_head` knows the common form alone and answers None to
everything else, which h11 then reads or refuses: whatever this accepts, h11 accepts with the same
meaning (a property test holds that), at a tenth of the cost. Must not know connections or routes.
"""

import re
from collections.abc import Iterable
from http import HTTPStatus

import attrs

from .request import HttpRequest

HEAD_END = b"\r\n\r\n"
# A request line with a path, and header lines of printable ASCII without folding (RFC 9112).
_HEAD = re.compile(
    rb"(?!CONNECT )[A-Z]{1,20} /[!-~]* HTTP/1\.1\r\n(?:[!#-'*+.^-z|~0-9A-Z-]+:[ -~\t]*\r\n)+\r\n"
)
# What makes a request more than a head and a counted body: left to h11.
_UNCOMMON = frozenset({"transfer-encoding", "expect", "upgrade"})
# What may be there once: of several only h11 knows what they mean together.
_SINGLE = ("host", "content-length", "connection")
# More digits are no length of ours; h11 takes up to 20.
_LENGTH_DIGITS_MAX = 15
_REASONS = {status.value: status.phrase for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@attrs.frozen
class Head:
    """One head: the request, the bytes of its body, and whether the client wants to go on."""

    request: HttpRequest
    body_bytes: int
    keeps_alive: bool
    size: int  # of the head itself, in bytes


def read_head(data: bytes | bytearray, bytes_max: int) -> Head | None:
    """The head at the start of `data`; None if it is incomplete, uncommon, too long or wrong."""
    end = data.find(HEAD_END, 0, bytes_max)
    if end < 0:
        return None
    size = end + len(HEAD_END)
    if _HEAD.fullmatch(data, 0, size) is None:
        return None
    line, *lines = data[:end].decode("ascii").split("\r\n")
    headers = []
    for each in lines:
        name, _, value = each.partition(":")
        headers.append((name.lower(), value.strip(" \t")))
    method, target, _ = line.split(" ")
    request = HttpRequest.of_target(method, target, tuple(headers))
    names = request.names
    if "host" not in names or not names.isdisjoint(_UNCOMMON):
        return None
    if len(names) < len(headers) and any(_is_repeated(name, headers) for name in _SINGLE):
        return None
    length = request.header("content-length", "0")
    if not length.isdigit() or len(length) > _LENGTH_DIGITS_MAX:
        return None
    connection = request.header("connection", "keep-alive").lower()
    if connection not in ("keep-alive", "close"):
        return None
    return Head(request, int(length), connection == "keep-alive", size)


def _is_repeated(name: str, headers: list[tuple[str, str]]) -> bool:
    return sum(given == name for given, _ in headers) > 1


def write_head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """The head of an answer. Raises `ValueError` for a value that would break it."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, '')}"]
    for name, value in headers:
        if "\r" in value or "\n" in value or "\0" in value:
            raise ValueError(f"the value of the header {name} has a line break")
        lines.append(f"{name}: {value}")
    lines.append("\r\n")
    return "\r\n".join(lines).encode("latin-1")


def write_chunk(data: bytes) -> bytes:
    """One chunk of a body whose length is not known (RFC 9112, 7.1); `data` must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
