"""Holds log lines until the reader of stderr takes them; at its bound it drops the least important.

Sans-IO: no file, no clock, no level's name. A process must not wait for whoever reads its log, and
must not grow for it either: over the bound the lowest level goes first, the oldest of it before the
newer ones. What was dropped is counted. Must not know what the lines say.
"""

from collections import deque

import attrs


@attrs.frozen
class Entry:
    """One line, its end included; `number` gives the order over all levels."""

    number: int
    line: bytes


@attrs.define(eq=False)
class LogQueue:
    """First in, first out; `bytes_max` bounds the bytes that wait. A longer line is never taken."""

    bytes_max: int

    # {level: what waits}, no deque empty; their bytes are bounded together by `bytes_max`.
    _waiting: dict[int, deque[Entry]] = attrs.field(factory=dict, init=False)
    waiting_bytes: int = attrs.field(default=0, init=False)
    dropped_total: int = attrs.field(default=0, init=False)
    _number: int = attrs.field(default=0, init=False)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, level: int, line: bytes) -> None:
        """Add a line, dropping less important ones, or itself, where there is no room."""
        self._number += 1
        # Bounded by `bytes_max`, below.
        self._waiting.setdefault(level, deque()).append(Entry(self._number, line))
        self.waiting_bytes += len(line)
        while self.waiting_bytes > self.bytes_max:
            self._pop(min(self._waiting))
            self.dropped_total += 1

    def take(self, bytes_max: int) -> bytes:
        """The oldest lines, whole, as many as fit; at least one. b"" when none waits."""
        taken: list[bytes] = []
        size = 0
        while self._waiting:
            level = min(self._waiting, key=lambda level: self._waiting[level][0].number)
            line = self._waiting[level][0].line
            if taken and size + len(line) > bytes_max:
                break
            taken.append(self._pop(level))
            size += len(line)
        return b"".join(taken)

    def _pop(self, level: int) -> bytes:
        entries = self._waiting[level]
        line = entries.popleft().line
        if not entries:
            del self._waiting[level]
        self.waiting_bytes -= len(line)
        return line

    def check_invariants(self) -> None:
        """For property tests."""
        assert all(self._waiting.values())
        lines = [entry.line for entries in self._waiting.values() for entry in entries]
        assert self.waiting_bytes == sum(map(len, lines)) <= self.bytes_max
