"""HTTP/1.1 answers as bytes: heads, dates and chunks. Pure."""

from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

Headers = Iterable[tuple[str, str]]
# Browsers take an answer for what its type says.
NO_SNIFFING = ("x-content-type-options", "nosniff")
LAST_CHUNK = b"0\r\n\r\n"
_REASONS = {status.value: status.phrase for status in HTTPStatus}


@lru_cache(1)
def http_date(second: int) -> str:
    """A time in Unix seconds as headers have it (RFC 9110, 5.6.7); many answers share one."""
    return formatdate(second, usegmt=True)


def write_head(status: int, headers: Headers) -> bytes:
    """The head of an answer. Raises `ValueError` for a value that would break it."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, '')}"]
    for name, value in headers:
        if "\r" in value or "\n" in value or "\0" in value:
            raise ValueError(f"the value of the header {name} has a line break")
        lines.append(f"{name}: {value}")
    lines.append("\r\n")
    return "\r\n".join(lines).encode("latin-1")


def write_chunk(data: bytes) -> bytes:
    """Chunk of a body whose length is not known (RFC 9112, 7.1); `data` must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)
