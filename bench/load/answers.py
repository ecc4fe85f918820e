"""HTTP/1.1 answers from a client's side: head, then body bytes as they come.

Sans-IO: bytes in, parts out. Understands what a server of ours sends (a length, or chunks) and no
more, because a load generator must cost less than what it measures. Must not know bodies.
"""

import attrs

HEAD_END = b"\r\n\r\n"
_CHUNKED = b"transfer-encoding: chunked"
_LENGTH = b"content-length:"


class AnswerFault(Exception):
    """What came is no answer that we understand; the connection is of no further use."""


@attrs.define(eq=False)
class AnswerReader:
    """One connection's answers, one after the other. `next_answer` begins another."""

    # 0 until the head of the present answer is here.
    status: int = attrs.field(default=0, init=False)
    # The whole answer is here.
    is_whole: bool = attrs.field(default=False, init=False)
    # The server closes after this answer.
    closes: bool = attrs.field(default=False, init=False)
    # Bytes behind the present answer, or behind a head that has no body (an upgrade).
    rest: bytes = attrs.field(default=b"", init=False)
    _chunked: bool = attrs.field(default=False, init=False)
    # Body bytes still to come; of the present chunk when chunked.
    _left: int = attrs.field(default=0, init=False)

    def next_answer(self) -> None:
        """The present answer was taken; bytes that came behind it belong to the next."""
        self.status, self.is_whole, self.closes, self._chunked, self._left = (
            0,
            False,
            False,
            False,
            0,
        )

    def feed(self, data: bytes) -> bytes:
        """Body bytes that `data` completes. Raises `AnswerFault`."""
        self.rest += data
        if not self.status and not self._read_head():
            return b""
        if self._chunked:
            return self._read_chunks()
        body, self.rest = self.rest[: self._left], self.rest[self._left :]
        self._left -= len(body)
        self.is_whole = self._left == 0
        return body

    def _read_head(self) -> bool:
        head, found, rest = self.rest.partition(HEAD_END)
        if not found:
            return False
        lower = head.lower()
        try:
            self.status = int(head[9:12])
            if _LENGTH in lower:
                self._left = int(lower.partition(_LENGTH)[2].partition(b"\r\n")[0])
        except ValueError as error:
            raise AnswerFault(f"a head that makes no sense: {head[:60]!r}") from error
        self._chunked = _CHUNKED in lower
        self.closes = b"\r\nconnection: close" in lower
        self.rest = rest
        return True

    def _read_chunks(self) -> bytes:
        """Chunks are cut at their announced sizes; a size line that is not whole waits."""
        data, place, parts = self.rest, 0, []
        while True:
            if self._left:
                # The two bytes behind a chunk belong to it and are dropped.
                part = data[place : place + self._left]
                if len(part) < self._left:
                    break
                parts.append(part[:-2])
                place += self._left
                self._left = 0
            line_end = data.find(b"\r\n", place)
            if line_end < 0:
                break
            try:
                size = int(data[place:line_end], 16)
            except ValueError as error:
                raise AnswerFault(f"no chunk size: {data[place : place + 20]!r}") from error
            if size == 0:
                if len(data) < line_end + 4:
                    break
                place, self.is_whole = line_end + 4, True
                break
            place, self._left = line_end + 2, size + 2
        self.rest = data[place:]
        return b"".join(parts)
