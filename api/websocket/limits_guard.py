"""WebSocket frame validator: framing, UTF-8 and limits of what a client sends, byte by byte.

Sans-IO: bytes and `now` in, a violation out. It knows all rules of framing (RFC 6455, 5.1 to 5.5,
7.4 and 8.1), so that wsproto, which sees the same bytes afterwards, finds nothing more to refuse: a
test holds the two against each other. Why it is there: `frames`.
"""

import codecs
from collections import deque
from collections.abc import Iterator

import attrs

from ..connection_shares import InputShare
from ..settings import SocketLimits

PROTOCOL_ERROR = 1002
INVALID_TEXT = 1007
POLICY_VIOLATION = 1008
MESSAGE_TOO_BIG = 1009
TRY_AGAIN_LATER = 1013
_FIN = 0x80
_RESERVED_BITS = 0x70
_LENGTH = 0x7F
_MASKED = 0x80
_OPCODE = 0x0F
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_OPCODES = frozenset({_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG})
_FIRST_CONTROL_OPCODE = 8
_CONTROL_BYTES_MAX = 125
# Marks in the second byte, and the least length that needs so many more bytes.
_EXTENDED = {126: (2, 126), 127: (8, 2**16)}
# RFC 6455, 7.4: what may be sent. 1004 to 1006 and 1015 never are; 3000 on is free.
_CLOSE_CODES = frozenset({*range(1000, 1004), *range(1007, 1014), *range(3000, 5000)})


@attrs.frozen
class FrameViolation(Exception):
    """The client broke a rule or a limit: close with `code` and `reason` (both in the frame)."""

    code: int
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} (close code {self.code})"


@attrs.define(eq=False)
class FrameGuard:
    """Follows one direction of one socket. Feed it everything, in order."""

    limits: SocketLimits
    # Bytes of unfinished messages; released when the connection ends.
    share: InputShare = attrs.field(factory=InputShare)
    # Gets the number of bytes that were fed up to the end of each message; who takes the messages
    # takes these.
    message_ends: deque[int] | None = None

    # Bytes of the header that is being read, at most 14.
    _header: bytearray = attrs.field(factory=bytearray, init=False)
    # The current frame, once its header is whole; the mask turns with the bytes that are read.
    _opcode: int = attrs.field(default=_CONTINUATION, init=False)
    _is_last: bool = attrs.field(default=True, init=False)
    _mask: bytes = attrs.field(default=b"", init=False)
    # Payload bytes of the current frame that are still to come.
    _payload_left: int = attrs.field(default=0, init=False)
    # The message that is not finished: its frames and bytes so far. No frames: there is none.
    _fragments: int = attrs.field(default=0, init=False)
    _message_bytes: int = attrs.field(default=0, init=False)
    # Decoder that checks a text message's UTF-8, a character cut by two frames included.
    _decoder: codecs.IncrementalDecoder | None = attrs.field(default=None, init=False)
    # Payload of a close frame, at most 125 bytes; what follows the frame does not count any more.
    _close: bytearray = attrs.field(factory=bytearray, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    # Count of all bytes so far.
    _fed: int = attrs.field(default=0, init=False)
    # Token bucket for frames that bring no data; full at the start.
    _bucket: float = attrs.field(init=False)
    _bucket_at_s: float | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._bucket = float(self.limits.idle_frames_burst)

    def feed(self, data: bytes | bytearray, now: float) -> None:
        """Read the frames in `data`. Raises `FrameViolation`; the guard is useless afterwards."""
        for piece in self.pieces(data, now):
            self.read(piece)

    def pieces(self, data: bytes | bytearray, now: float) -> Iterator[bytes]:
        """The payloads in `data` that have rules, unmasked: the caller has each read, by `read`,
        before it asks for the next. Raises as `feed`.
        """
        position = 0
        fed, self._fed = self._fed, self._fed + len(data)
        while position < len(data) and not self._is_closed:
            if self._payload_left:
                piece = data[position : position + self._payload_left]
                position += len(piece)
                self._payload_left -= len(piece)
                if self._opcode == _CLOSE or (
                    self._opcode < _FIRST_CONTROL_OPCODE and self._decoder is not None
                ):
                    yield self._unmasked(piece)
            else:
                self._header.append(data[position])
                position += 1
                if not self._is_header_whole():
                    continue
                self._handle_header(now)
            if not self._payload_left:
                self._handle_frame_end(fed + position)

    # ---- headers

    def _is_header_whole(self) -> bool:
        """Raises `FrameViolation` as soon as the first two bytes, or the length, break a rule."""
        header = self._header
        if len(header) < 2:
            return False
        if len(header) == 2:
            self._check_start(header[0], header[1])
        extended, least = _EXTENDED.get(header[1] & _LENGTH, (0, 0))
        if extended and len(header) == 2 + extended:  # wsproto does not wait for the mask
            length = int.from_bytes(header[2:], "big")
            if length < least or length >= 2**63:
                raise _broken("a length must be written in its shortest form")
        return len(header) == 2 + extended + 4

    def _check_start(self, first: int, second: int) -> None:
        opcode = first & _OPCODE
        if first & _RESERVED_BITS:
            raise _broken("a reserved bit is set, and no extension is used")
        if opcode not in _OPCODES:
            raise _broken(f"the opcode {opcode} means nothing")
        if not second & _MASKED:
            raise _broken("a client's frames must be masked")
        if opcode >= _FIRST_CONTROL_OPCODE:
            if not first & _FIN:
                raise _broken("a control frame must not be fragmented")
            if second & _LENGTH > _CONTROL_BYTES_MAX:
                raise _broken(f"a control frame has at most {_CONTROL_BYTES_MAX} bytes")
        elif opcode == _CONTINUATION and not self._fragments:
            raise _broken("a continuation of no message")
        elif opcode != _CONTINUATION and self._fragments:
            raise _broken("a new message within a fragmented one")

    def _handle_header(self, now: float) -> None:
        header = self._header
        length = header[1] & _LENGTH
        if length in _EXTENDED:
            length = int.from_bytes(header[2:-4], "big")
        self._opcode, self._is_last = header[0] & _OPCODE, bool(header[0] & _FIN)
        self._mask = bytes(header[-4:])
        self._payload_left = length
        header.clear()
        is_control = self._opcode >= _FIRST_CONTROL_OPCODE
        if is_control or length == 0:
            self._take_from_bucket(now)
        if not is_control:
            self._count(length)
        if self._opcode == _TEXT:
            self._decoder = codecs.getincrementaldecoder("utf-8")()

    def _count(self, length: int) -> None:
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
        if not self.share.reserve(self._message_bytes):
            raise FrameViolation(TRY_AGAIN_LATER, "no room for so large a message now")

    def _take_from_bucket(self, now: float) -> None:
        if self._bucket_at_s is not None:
            gained = (now - self._bucket_at_s) * self.limits.idle_frames_per_s
            self._bucket = min(self._bucket + gained, self.limits.idle_frames_burst)
        self._bucket_at_s = now
        self._bucket -= 1
        if self._bucket < 0:
            raise FrameViolation(POLICY_VIOLATION, "too many frames without data")

    # ---- payloads

    def read(self, piece: bytes) -> None:
        """Check what `pieces` has given last. Raises `FrameViolation`."""
        if self._opcode == _CLOSE:
            self._close += piece
            if not self._payload_left:
                _check_close(self._close)
        else:
            self._check_text(piece, is_end=False)

    def _unmasked(self, piece: bytes | bytearray) -> bytes:
        """Unmask as integers: xor byte by byte would cost more than all the rest."""
        count, turn = len(piece), len(piece) % 4
        mask = (self._mask * (count // 4 + 1))[:count]
        self._mask = self._mask[turn:] + self._mask[:turn]
        plain = int.from_bytes(piece, "little") ^ int.from_bytes(mask, "little")
        return plain.to_bytes(count, "little")

    def _handle_frame_end(self, fed: int) -> None:
        if self._opcode == _CLOSE:
            self._is_closed = True
        elif self._opcode < _FIRST_CONTROL_OPCODE and self._is_last:
            self._check_text(b"", is_end=True)
            self._fragments = self._message_bytes = 0
            self.share.release()
            self._decoder = None
            if self.message_ends is not None:
                self.message_ends.append(fed)

    def _check_text(self, piece: bytes, *, is_end: bool) -> None:
        if self._decoder is None:
            return
        try:
            self._decoder.decode(piece, is_end)
        except UnicodeDecodeError:
            raise FrameViolation(INVALID_TEXT, "a text message is not UTF-8") from None

    def check_invariants(self) -> None:
        """Assert that counts stay within the limits; for property tests."""
        assert len(self._header) < 14
        assert len(self._close) <= _CONTROL_BYTES_MAX
        assert 0 <= self._message_bytes <= self.limits.message_bytes_max
        assert 0 <= self._fragments <= self.limits.fragments_per_message_max
        assert 0 <= self._bucket <= self.limits.idle_frames_burst


def _check_close(payload: bytearray) -> None:
    """Raise `FrameViolation` unless a close frame that says anything has a code and a reason."""
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or code not in _CLOSE_CODES:
        raise _broken("a close frame needs a code that may be sent")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        raise FrameViolation(INVALID_TEXT, "a close frame's reason is not UTF-8") from None


def _broken(rule: str) -> FrameViolation:
    return FrameViolation(PROTOCOL_ERROR, rule)
