"""Fuzzes WebSocket frames in memory: the guard in front of wsproto, and wsproto behind it.

Invariant: however the bytes are cut, the guard's verdict is the same, and its code the right one;
what it lets pass wsproto reads without a fault, whole texts and bytes, and what breaks RFC 6455
neither lets pass.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import attrs
from wsproto.frame_protocol import FrameProtocol, ParseFailed

from ....api.settings import SocketLimits
from ....api.websocket.limits_guard import (
    INVALID_TEXT,
    MESSAGE_TOO_BIG,
    POLICY_VIOLATION,
    PROTOCOL_ERROR,
    FrameGuard,
    FrameViolation,
)
from ...doubles.websocket_frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    VIOLATIONS,
    frame,
)
from ...drawing import mutate
from ...fuzzer import Fuzzer, each

ODD_SHARE = 0.08
OPCODES = (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG, 3, 7, 11, 15)
SHORT_PAYLOADS = (b"", b"x", b"\x03\xe8", b"\x03\xe8bye", b"\x03\xe8\xff", b"\x03", b"\x03\xed",
                  b"\x0f\xa0x", b"\x13\x88", b"x" * 125, b"x" * 126)  # fmt: skip
# Texts, parts of characters, marks, what is compressed, and what is long.
PAYLOADS = (
    b"", b"{}", "é€🙂".encode(), b"a" * 9, b'{"type":"x"}', "\u0301".encode(), b"\xc3", b"\xa9",
    b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\x99\x82",
    b"\xef\xbb\xbf{}", b"\xed\xa0\x80", b"\xed\xb0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xff",
    b"\0" * 130, b"\xaa\x56\x4a\x2d\x4a\x05\0", b"x" * 125, b"x" * 126, b"[" * 400, b"a" * 70_000,
)  # fmt: skip
# More than the rest of any head: a length of eight bytes and a mask.
_HEAD_REST = bytes(12)
# Codes of our own limits, which wsproto does not know.
_OURS = frozenset({POLICY_VIOLATION, MESSAGE_TOO_BIG})
NO_TIME = 0.0


@attrs.frozen
class Frames:
    """Frames that a client sends, in pieces; `code` is what it must be closed with, if known."""

    pieces: tuple[bytes, ...]
    code: int | None


@attrs.frozen
class GuardHost:
    """Makes the guard of one socket."""

    make: Callable[[SocketLimits], FrameGuard]


def _draw_frames(chance: Random) -> Frames:
    """Frames put together at random, spoiled ones, and rules broken on purpose."""
    code = None
    frames = [each for _ in range(chance.randrange(4)) for each in _draw_message(chance)]
    if chance.random() < 0.2:
        whole = frame(TEXT, chance.choice(PAYLOADS[:3]), mask=chance.randbytes(4))
        breaking, code = chance.choice(VIOLATIONS)
        frames = [whole] * chance.randrange(3) + list(breaking(chance))
    data = b"".join(frames)
    if code is None and chance.random() < 0.25:
        data = mutate(chance, data)
    cuts = sorted(chance.randint(0, len(data)) for _ in range(chance.choice((1, 2, 8))))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return Frames(tuple(pieces), code)


def _draw_message(chance: Random) -> list[bytes]:
    """A message in one to four frames, control frames between them; now and then one is odd."""
    count = chance.choice((1, 1, 2, 4))
    frames = []
    for number in range(count):
        opcode = CONTINUATION if number else chance.choice((TEXT, TEXT, BINARY))
        frames.append(_draw_frame(chance, opcode, fin=number == count - 1))
        if chance.random() < 0.2:
            frames.append(_draw_frame(chance, chance.choice((PING, PONG, CLOSE)), fin=True))
    return frames


def _draw_frame(chance: Random, opcode: int, *, fin: bool) -> bytes:
    if chance.random() < ODD_SHARE:
        opcode, fin = chance.choice(OPCODES), chance.random() < 0.5
    payload = chance.choice(SHORT_PAYLOADS if opcode >= CLOSE else PAYLOADS)
    reserved = 4 if chance.random() < ODD_SHARE / 3 else 0
    found = frame(opcode, payload, fin=fin, reserved=reserved, mask=chance.randbytes(4))
    is_masked = chance.random() > ODD_SHARE / 3
    return found if is_masked else bytes((found[0], found[1] & 0x7F)) + found[2:]


def check(events: Sequence[Frames], host: GuardHost) -> Counter[str]:
    """Feed each as a whole and in pieces, then to wsproto; see the module's invariant."""
    reached: Counter[str] = Counter()
    limits = SocketLimits()
    for event in events:
        data = b"".join(event.pieces)
        code = verdict((data,), host.make(limits))
        assert verdict(event.pieces, host.make(limits)) == code, "it depends on the cut"
        assert event.code in (None, code), f"closed with {code} instead of {event.code}"
        reached[f"code {code}"] += 1
        if code in _OURS:
            continue
        # The guard judges the first bytes of a head when they come, wsproto the whole of it.
        whole = _wsproto_code(data, reached)
        assert code in (whole, _wsproto_code(data + _HEAD_REST, Counter())), (code, whole)
    return reached


def verdict(pieces: Sequence[bytes], guard: FrameGuard, now: float = NO_TIME) -> int | None:
    """The code that the guard ends a socket with at these bytes; None: it does not."""
    try:
        for piece in pieces:
            guard.feed(piece, now)
            guard.check_invariants()
    except FrameViolation as violation:
        return violation.code
    return None


def _wsproto_code(data: bytes, reached: Counter[str]) -> int | None:
    """Code with which wsproto refuses; None if it reads all."""
    protocol = FrameProtocol(client=False, extensions=[])
    protocol.receive_bytes(data)
    try:
        for found in protocol.received_frames():
            reached["frames"] += 1
            if found.opcode is TEXT:
                assert isinstance(found.payload, str), found
    except ParseFailed as error:
        return int(error.code)
    return None


# ---- planted faults


class _Forgetful(FrameGuard):
    """Planted: a head that comes in two pieces is begun anew."""

    def feed(self, data: bytes | bytearray, now: float) -> None:
        self._header.clear()
        super().feed(data, now)


class _Lenient(FrameGuard):
    """Planted: what is no UTF-8 passes."""

    def _check_text(self, piece: bytes, *, is_end: bool) -> None:
        return


FUZZER = Fuzzer[Frames, GuardHost](
    name="websocket",
    invariant="however frames are cut, one verdict, the right one, and wsproto has no other",
    draw=each(_draw_frames),
    check=check,
    target=GuardHost(FrameGuard),
    faults={
        "a head in two pieces is begun anew": GuardHost(_Forgetful),
        "what is no UTF-8 passes": GuardHost(_Lenient),
    },
    round_events=1000,
    smoke_rounds=3,
    reaches=frozenset(
        {
            "frames",
            "code None",
            *(
                f"code {code}"
                for code in (PROTOCOL_ERROR, INVALID_TEXT, POLICY_VIOLATION, MESSAGE_TOO_BIG)
            ),
        }
    ),
    event_s_max=1.0,
)
