"""WebSocket frames as clients make them, good ones and ones that break a rule; and reading answers.

Sans-IO: bytes in and out, chance comes in. Must not know connections.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random

import attrs

from ..mutation import mutate
from .client_frames import frame_head

HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n"
)
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN = 0x80
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
# Below the bucket of 256 for frames without data, what the server itself causes included.
CONTROL_FRAMES_MAX = 100
# Below the 256 errors that may wait for a client, even if the server reads all before it writes.
MESSAGES_MAX = 120


@attrs.frozen
class FrameScript:
    """The frames of one connection, after its handshake; they are good up to its end.

    `close_code`: what the server must close with in the end; None: that is not known.
    """

    frames: tuple[bytes, ...]
    close_code: int | None


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, mask: bytes = b"\x37\xfa\x21\x3d"
) -> bytes:
    """One masked frame, as short as its length allows."""
    size = len(payload)
    head = frame_head(opcode | (FIN if fin else 0), size)
    turned = (mask * (size // 4 + 1))[:size]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(turned, "big")
    return head + mask + masked.to_bytes(size, "big")


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
    """One whole message, in one frame or in many."""
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


@attrs.frozen
class ServerFrame:
    """One frame of a server's."""

    opcode: int
    payload: bytes


def read_server_frames(data: bytes) -> Iterator[ServerFrame]:
    """All whole frames in `data`; a server's are whole, unmasked and use no extension."""
    position = 0
    while position + 2 <= len(data):
        first, size = data[position], data[position + 1]
        assert first & 0xF0 == FIN, f"a server's frame begins with {first:#x}"
        position += 2
        extended = {126: 2, 127: 8}.get(size, 0)
        assert size < 128, "a server's frame is masked"
        if extended:
            size = int.from_bytes(data[position : position + extended], "big")
            position += extended
        if position + size > len(data):
            return
        yield ServerFrame(first & 0xF, data[position : position + size])
        position += size
