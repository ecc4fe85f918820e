"""Counts what a WebSocket client sends, frame by frame, before any parser allocates for it.

Sans-IO: bytes and `now` in, a violation out. trio-websocket bounds the bytes of a message but not
the number of its fragments (measured: 1.86 M empty ones grew a process without bound), nor pings.
This reads frame headers only (RFC 6455, 5.2) and skips payloads; whether masks, opcodes and UTF-8
are right stays wsproto's affair, which sees the same bytes afterwards.
"""

import attrs

from .limits import SocketLimits

MESSAGE_TOO_BIG = 1009
POLICY_VIOLATION = 1008
_FIN = 0x80
_LENGTH = 0x7F
_MASKED = 0x80
_OPCODE = 0x0F
_CONTINUATION = 0
_FIRST_CONTROL_OPCODE = 8


@attrs.frozen
class FrameViolation(Exception):
    """The client went over a limit: close with `code` and `reason` (both go into the frame)."""

    code: int
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} (close code {self.code})"


@attrs.define(eq=False)
class FrameGuard:
    """Follows one direction of one socket. Feed it everything, in order."""

    limits: SocketLimits

    # Bytes of the header that is being read, at most 14.
    _header: bytearray = attrs.field(factory=bytearray, init=False)
    # Payload bytes of the current frame that are still to come.
    _payload_left: int = attrs.field(default=0, init=False)
    # The message that is not finished: its frames and bytes so far.
    _fragments: int = attrs.field(default=0, init=False)
    _message_bytes: int = attrs.field(default=0, init=False)
    # Token bucket for frames that bring no data; full at the start.
    _bucket: float = attrs.field(init=False)
    _bucket_at_s: float | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._bucket = float(self.limits.idle_frames_burst)

    def feed(self, data: bytes | bytearray, now: float) -> None:
        """Count the frames in `data`. Raises `FrameViolation`; the guard is useless afterwards."""
        position = 0
        while position < len(data):
            if self._payload_left:
                skipped = min(self._payload_left, len(data) - position)
                self._payload_left -= skipped
                position += skipped
                continue
            self._header.append(data[position])
            position += 1
            if len(self._header) >= 2 and len(self._header) == self._header_bytes():
                self._handle_header(now)

    def _header_bytes(self) -> int:
        """Whole length of the header whose first two bytes are there."""
        length = self._header[1] & _LENGTH
        extended = {126: 2, 127: 8}.get(length, 0)
        return 2 + extended + (4 if self._header[1] & _MASKED else 0)

    def _handle_header(self, now: float) -> None:
        header = self._header
        length = header[1] & _LENGTH
        if length == 126:
            length = int.from_bytes(header[2:4], "big")
        elif length == 127:
            length = int.from_bytes(header[2:10], "big")
        opcode, is_last = header[0] & _OPCODE, bool(header[0] & _FIN)
        header.clear()
        self._payload_left = length
        if opcode >= _FIRST_CONTROL_OPCODE or length == 0:
            self._take_from_bucket(now)
        if opcode < _FIRST_CONTROL_OPCODE:
            self._handle_data(length, is_start=opcode != _CONTINUATION, is_last=is_last)

    def _handle_data(self, length: int, *, is_start: bool, is_last: bool) -> None:
        if is_start:
            self._fragments = self._message_bytes = 0
        self._fragments += 1
        self._message_bytes += length
        if self._message_bytes > self.limits.message_bytes_max:
            raise FrameViolation(
                MESSAGE_TOO_BIG, f"message over {self.limits.message_bytes_max} bytes"
            )
        if self._fragments > self.limits.fragments_per_message_max:
            raise FrameViolation(
                POLICY_VIOLATION, f"over {self.limits.fragments_per_message_max} fragments"
            )
        if is_last:
            self._fragments = self._message_bytes = 0

    def _take_from_bucket(self, now: float) -> None:
        if self._bucket_at_s is not None:
            gained = (now - self._bucket_at_s) * self.limits.idle_frames_per_s
            self._bucket = min(self._bucket + gained, self.limits.idle_frames_burst)
        self._bucket_at_s = now
        self._bucket -= 1
        if self._bucket < 0:
            raise FrameViolation(POLICY_VIOLATION, "too many frames without data")

    def check_invariants(self) -> None:
        """For property tests: counts stay within what the limits allow."""
        assert len(self._header) < 14
        assert 0 <= self._message_bytes <= self.limits.message_bytes_max
        assert 0 <= self._fragments <= self.limits.fragments_per_message_max
        assert 0 <= self._bucket <= self.limits.idle_frames_burst
