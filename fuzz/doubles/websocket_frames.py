"""WebSocket frames of clients (RFC 6455): the one encoder and decoder, and scripts of frames.

Sans-IO: bytes in and out, chance comes in. Frames may break rules on purpose. A load generator must
cost less than what it measures, so its frames are masked with zeros (legal, and leaves the bytes as
they are), and of what a server sends only what keeps us in step is checked.
"""

from collections.abc import Callable, Sequence
from random import Random

import attrs

from ..drawing import mutate

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN = 0x80
_MASKED = 0x80
# The mask of RFC 6455's example (5.7). A fixed one, so that every run sends the same bytes.
MASK = b"\x37\xfa\x21\x3d"


class FrameFault(Exception):
    """Bytes that are no frame of a server; the connection is of no further use."""


def encode_frame(opcode: int, payload: bytes) -> bytes:
    """Encode a message in a single frame, masked with zeros: the cheapest."""
    return _head(FIN | opcode, len(payload)) + b"\0\0\0\0" + payload


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, reserved: int = 0, mask: bytes = MASK
) -> bytes:
    """Encode a masked frame, as short as its length allows. `reserved` are three bits, 0 to 7."""
    size = len(payload)
    turned = (mask * (size // 4 + 1))[:size]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(turned, "big")
    head = _head((FIN if fin else 0) | reserved << 4 | opcode, size)
    return head + mask + masked.to_bytes(size, "big")


def _head(first: int, size: int) -> bytes:
    """The head of a masked frame up to its mask, as short as `size` allows; `first` is its byte."""
    if size < 126:
        return bytes((first, _MASKED | size))
    if size < 2**16:
        return bytes((first, _MASKED | 126)) + size.to_bytes(2, "big")
    return bytes((first, _MASKED | 127)) + size.to_bytes(8, "big")


@attrs.define(eq=False)
class FrameReader:
    """Cuts what a server sends into (opcode, payload). Fragments are refused: ours sends none."""

    _rest: bytes = attrs.field(default=b"", init=False)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The messages that are whole now. Raises `FrameFault`."""
        if self._rest:
            data = self._rest + data
        found = []
        start, end = 0, len(data)
        while end - start >= 2:
            first, size = data[start], data[start + 1]
            if first & 0xF0 != FIN or size & _MASKED:
                raise FrameFault("a fragment, a reserved bit or a masked frame")
            begin = start + 2
            if size == 126:
                begin = start + 4
                size = int.from_bytes(data[start + 2 : begin], "big")
            elif size == 127:
                begin = start + 10
                size = int.from_bytes(data[start + 2 : begin], "big")
            if end - begin < size:  # also while the length itself is not whole
                break
            found.append((first & 0x0F, data[begin : begin + size]))
            start = begin + size
        self._rest = data[start:]
        return found


HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n"
)
# Messages that cost the server little, and now and then one that generates a token.
CREATE = b'{"type":"response.create","input":"a","max_output_tokens":1}'
CREATE_SHARE = 0.03
TEXTS = (
    b'{"type":"x"}',
    b'{"type":"response.cancel"}',
    b'{"type":"response.cancel","response_id":"resp_1"}',
    b'{"type":"response.steer","input":"b"}',
    b"{}",
    b"[]",
    b"{",
    "\u20ac🙂".encode(),
)
# Fewer than the bucket of 256 for frames without data, what the server itself causes included.
CONTROL_FRAMES_MAX = 100
# Fewer than the 256 errors that may wait for a client, should the server read all before it writes.
MESSAGES_MAX = 120


@attrs.frozen
class FrameScript:
    """The frames of one connection, after its handshake; they are good up to its end.

    `close_code`: what the server must close with in the end; None: that is not known.
    """

    frames: tuple[bytes, ...]
    close_code: int | None


def draw_script(chance: Random, frames_max: int) -> FrameScript:
    """Good frames, then one that breaks a rule on purpose, or a spoiled one and a close frame."""
    wanted = chance.randrange(frames_max)
    good: list[bytes] = []
    control, messages = 0, 0
    while len(good) < wanted and messages < MESSAGES_MAX:
        if chance.random() < 0.3 and control < CONTROL_FRAMES_MAX:
            control += 1
            good.append(frame(chance.choice((PING, PONG)), chance.randbytes(chance.choice((0, 9)))))
            continue
        messages += 1
        good += _draw_message(chance, wanted - len(good))
    if chance.random() < 0.5:
        breaking, code = chance.choice(VIOLATIONS)
        return FrameScript((*good, *breaking(chance)), code)
    last = frame(chance.choice((TEXT, BINARY, PING, CLOSE)), chance.choice(TEXTS))
    return FrameScript((*good, mutate(chance, last), frame(CLOSE, b"\x03\xe8")), None)


def _draw_message(chance: Random, room: int) -> list[bytes]:
    """Draw a message, in one frame or in many."""
    opcode = chance.choice((TEXT, TEXT, BINARY))
    text = CREATE if chance.random() < CREATE_SHARE else chance.choice(TEXTS)
    count = chance.choice((1, 1, 3, 30, 500))
    if count == 1 or room < count:
        return [frame(opcode, text, mask=chance.randbytes(4))]
    # Many fragments need many bytes: spaces before the text, which JSON does not mind.
    pieces = [b" "] * (count - 1) + [text]
    parts = [frame(opcode, pieces[0], fin=False)]
    parts += [frame(CONTINUATION, piece, fin=False) for piece in pieces[1:-1]]
    return [*parts, frame(CONTINUATION, pieces[-1])]


def _of(*frames: bytes) -> Callable[[Random], tuple[bytes, ...]]:
    return lambda chance: frames


# Rules of RFC 6455 and limits of ours, each with the code that the server must close with.
VIOLATIONS: Sequence[tuple[Callable[[Random], tuple[bytes, ...]], int]] = (
    (_of(b"\x81\x02{}"), 1002),  # not masked
    (_of(b"\xc1" + frame(TEXT, b"{}")[1:]), 1002),  # a reserved bit
    (_of(frame(3, b"x")), 1002),  # an opcode that means nothing
    (_of(frame(15)), 1002),
    (_of(frame(CONTINUATION, b"x")), 1002),  # of no message
    (_of(frame(TEXT, b"x", fin=False), frame(TEXT, b"x")), 1002),  # a message within a message
    (_of(frame(PING, b"x", fin=False)), 1002),  # a control frame in pieces
    (_of(frame(PING, bytes(126))), 1002),  # a control frame too long
    (_of(frame(CLOSE, b"\x03")), 1002),  # half a code
    (_of(frame(CLOSE, (1005).to_bytes(2, "big"))), 1002),  # a code that is never sent
    (_of(b"\x81\xfe\x00\x01abcdx"), 1002),  # a length in more bytes than needed
    (_of(frame(TEXT, b"\xff")), 1007),
    (_of(frame(TEXT, b"\xed\xa0\x80")), 1007),  # a lone surrogate
    (_of(frame(CLOSE, (1000).to_bytes(2, "big") + b"\xff")), 1007),
    (_of(*[frame(PING)] * 400), 1008),  # a flood without data
    (_of(frame(TEXT, b"x", fin=False), *[frame(CONTINUATION, fin=False)] * 400), 1008),
    (_of(frame(TEXT, b"x", fin=False), *[frame(CONTINUATION, b"x", fin=False)] * 1100), 1008),
    (_of(b"\x82\xff" + (2**40).to_bytes(8, "big") + b"abcd"), 1009),  # 1 TiB is announced
)
