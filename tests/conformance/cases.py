"""The Autobahn test suite's WebSocket cases, without compression, as data: 301 of them.

Source: the case list of crossbario/autobahn-testsuite 25.10.1 (names, what is sent, what may come
back), written anew; its texts for section 6 are Markus Kuhn's UTF-8 stress test, and which of them
are valid is said by Python's strict decoder, which follows RFC 3629. A case sends its steps to an
echo server; what comes back must be `expected`, or `non_strict` where the suite allows it, and the
connection must end as `close` says. Pure data: `client` runs it. Sections 12 and 13
(permessage-deflate) are left out: the server never agrees to an extension.
"""

from collections.abc import Iterable, Iterator

import attrs

from triolet.fuzz.doubles.websocket_frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    frame,
)

GREETING = "Hello-µ@ßöäüàá-UTF-8!!".encode()
# With U+1F79, an accented letter of three bytes.
KOSME = "κ\u1f79σμε".encode()

# Sequences of 2 to 6 bytes whose last is missing: the least of each length, then the greatest.
_CUT = [
    *(b"\xc0", b"\xe0\x80", b"\xf0\x80\x80", b"\xf8\x80\x80\x80", b"\xfc\x80\x80\x80\x80"),
    *(b"\xdf", b"\xef\xbf", b"\xf7\xbf\xbf", b"\xfb\xbf\xbf\xbf", b"\xfd\xbf\xbf\xbf\xbf"),
]
_SURROGATES = [b"\xed\xa0\x80", b"\xed\xad\xbf", b"\xed\xae\x80", b"\xed\xaf\xbf"]
_LOW_SURROGATES = [b"\xed\xb0\x80", b"\xed\xbe\x80", b"\xed\xbf\xbf"]


def _overlong(second_to_last: Iterable[bytes], last: bytes) -> list[bytes]:
    return [start + last for start in second_to_last]


def _non_characters() -> Iterable[bytes]:
    """U+nFFFE and U+nFFFF of every plane; those of plane 0 come first."""
    yield from ("\ufffe".encode(), "\uffff".encode())
    for plane in range(1, 17):
        for low in (0xFFFE, 0xFFFF):
            yield chr(plane << 16 | low).encode()


_OVER_STARTS = [b"\xc0", *(_CUT[length] for length in range(1, 5))]
_GROUPS: list[list[bytes]] = [
    # Valid sequences; the prefixes of a valid string.
    [*(f"hello{sign}world".encode() for sign in ("$", "¢", "€", "\U00024b62")), KOSME],
    [KOSME[:end] for end in range(1, len(KOSME) + 1)],
    # The first possible sequence of each length, up to four bytes, then of five and six.
    [b"\x00", b"\xc2\x80", b"\xe0\xa0\x80", b"\xf0\x90\x80\x80"],
    [b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80"],
    # The last possible one, likewise; other boundaries.
    [b"\x7f", b"\xdf\xbf", b"\xef\xbf\xbf", b"\xf4\x8f\xbf\xbf"],
    [b"\xf7\xbf\xbf\xbf", b"\xfb\xbf\xbf\xbf\xbf", b"\xfd\xbf\xbf\xbf\xbf\xbf"],
    [
        *(b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xef\xbf\xbd"),
        *(b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80"),
    ],
    # Unexpected continuation bytes; starts without continuation.
    [
        *(b"\x80", b"\xbf"),
        *((b"\x80\xbf" * 3)[:length] for length in range(2, 7)),
        bytes(range(0x80, 0xBF)),
    ],
    [
        b"".join(bytes((byte, 0x20)) for byte in range(first, last))
        for first, last in ((0xC0, 0xDF), (0xE0, 0xEF), (0xF0, 0xF7), (0xF8, 0xFB), (0xFC, 0xFD))
    ],
    # The last byte missing, alone and in a row; impossible bytes.
    _CUT,
    [b"".join(_CUT)],
    [b"\xfe", b"\xff", b"\xfe\xfe\xff\xff"],
    # Overlong: a slash, the greatest of each length, NUL.
    _overlong(_OVER_STARTS, b"\xaf"),
    [
        *(b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf"),
        *(b"\xf8\x87\xbf\xbf\xbf", b"\xfc\x83\xbf\xbf\xbf\xbf"),
    ],
    _overlong(_OVER_STARTS, b"\x80"),
    # Surrogates, single and in pairs; code points that are no characters; specials.
    _SURROGATES + _LOW_SURROGATES,
    [high + low for high in _SURROGATES for low in (b"\xed\xb0\x80", b"\xed\xbf\xbf")],
    list(_non_characters()),
    [chr(code).encode() for code in range(0xFFF9, 0x10000)],
]


def _is_valid(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


# [[(payload, whether it is valid)]]; sections 6.5 to 6.23.
SEQUENCES = [[(payload, _is_valid(payload)) for payload in payloads] for payloads in _GROUPS]

NORMAL, PROTOCOL_ERROR, INVALID_PAYLOAD = 1000, 1002, 1007
HELLO = b"Hello, world!"
OCTETS = b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff"
KIB, MIB = 2**10, 2**20


@attrs.frozen
class Write:
    """Bytes in so many writes. `settle`: the server has seen each before the next is sent."""

    pieces: tuple[bytes, ...]
    settle: bool = False


@attrs.frozen
class Quiet:
    """The server must neither answer nor close by now; if the connection is open, that is noted."""

    mark: str


@attrs.frozen
class RoundTrips:
    """Send this message, wait for its echo, so many times."""

    opcode: int
    payload: bytes
    count: int


Step = Write | Quiet | RoundTrips


@attrs.frozen
class Message:
    """A whole message came back."""

    opcode: int
    payload: bytes = attrs.field(repr=lambda payload: f"{len(payload)} bytes")


@attrs.frozen
class Pong:
    """A pong came."""

    payload: bytes


Received = Message | Pong | Quiet


@attrs.frozen
class Ending:
    """Who closes, with which codes (or none at all), and whether the handshake must be whole."""

    by_client: bool
    codes: tuple[int, ...]
    is_clean: bool


OURS = Ending(by_client=True, codes=(NORMAL,), is_clean=True)
BROKEN = Ending(by_client=False, codes=(PROTOCOL_ERROR,), is_clean=False)
NOT_TEXT = Ending(by_client=False, codes=(INVALID_PAYLOAD,), is_clean=False)


@attrs.frozen
class Case:
    """One case. `closes`: the client closes with 1000 when everything expected has come."""

    name: str
    steps: tuple[Step, ...]
    expected: tuple[Received, ...] = ()
    non_strict: tuple[Received, ...] | None = None
    ending: Ending = OURS
    closes: bool = True
    is_informational: bool = False


def close(code: int | None = None, reason: bytes = b"") -> bytes:
    """A close frame; without a code its payload is `reason` alone."""
    return frame(CLOSE, (b"" if code is None else code.to_bytes(2, "big")) + reason)


def fragments(opcode: int, payload: bytes, size: int) -> Iterator[bytes]:
    """A message in frames of at most `size` bytes of payload."""
    for start in range(0, len(payload), size):
        part, fin = payload[start : start + size], start + size >= len(payload)
        yield frame(CONTINUATION if start else opcode, part, fin=fin)


def chopped(data: bytes, size: int) -> tuple[bytes, ...]:
    """Bytes as so many writes: what TCP may make of one."""
    return tuple(data[start : start + size] for start in range(0, len(data), size))


def at_once(*frames: bytes) -> tuple[Step, ...]:
    """All frames in one write."""
    return (Write((b"".join(frames),)),)


def one_by_one(*frames: bytes) -> tuple[Step, ...]:
    """Each frame in a write of its own, seen before the next."""
    return (Write(frames, settle=True),)


def in_octets(*frames: bytes) -> tuple[Step, ...]:
    """One byte at a time."""
    return (Write(chopped(b"".join(frames), 1)),)


# How sections 5.3 to 5.14 send the same frames.
WAYS = (at_once, one_by_one, in_octets)


def echo(name: str, opcode: int, payload: bytes, steps: tuple[Step, ...] | None = None) -> Case:
    """A message comes back as it was."""
    return Case(name, steps or at_once(frame(opcode, payload)), (Message(opcode, payload),))


def repeated(pattern: bytes, length: int) -> bytes:
    """`pattern` over and over, `length` bytes of it."""
    return (pattern * (length // len(pattern) + 1))[:length]


def sizes() -> Iterator[Case]:
    """1: messages of the lengths at which the header changes its form."""
    for section, opcode, byte in ((1, TEXT, b"*"), (2, BINARY, b"\xfe")):
        for number, length in enumerate((0, 125, 126, 127, 128, 65535, 65536), 1):
            yield echo(f"1.{section}.{number}", opcode, byte * length)
        payload = byte * 65536
        steps = (Write(chopped(frame(opcode, payload), 997)),)
        yield echo(f"1.{section}.8", opcode, payload, steps)


def pings() -> Iterator[Case]:
    """2: pings and pongs."""
    most = b"\xfe" * 125
    for number, payload in enumerate((b"", HELLO, OCTETS, most), 1):
        yield Case(f"2.{number}", at_once(frame(PING, payload)), (Pong(payload),))
    yield Case("2.5", at_once(frame(PING, b"\xfe" * 126)), ending=BROKEN)
    yield Case("2.6", in_octets(frame(PING, most)), (Pong(most),))
    unsolicited = frame(PONG, b"unsolicited pong payload")
    for number, pong in ((7, frame(PONG)), (8, unsolicited)):
        yield Case(f"2.{number}", at_once(pong, close(NORMAL)), closes=False)
    yield Case("2.9", at_once(unsolicited, frame(PING, b"ping payload")), (Pong(b"ping payload"),))
    ten = [b"payload-%d" % number for number in range(10)]
    for number, way in ((10, at_once), (11, in_octets)):
        yield Case(f"2.{number}", way(*[frame(PING, p) for p in ten]), tuple(map(Pong, ten)))


def refused_after_hello(name: str, bad: bytes, way: int) -> Case:
    """A good message, a bad frame, a ping: the echo comes, the pong does not."""
    steps = WAYS[way](frame(TEXT, HELLO), bad, frame(PING))
    return Case(name, steps, (Message(TEXT, HELLO),), non_strict=(), ending=BROKEN)


def reserved() -> Iterator[Case]:
    """3 and 4: reserved bits, reserved opcodes."""
    yield Case("3.1", at_once(frame(TEXT, HELLO, reserved=1)), ending=BROKEN)
    for number in (2, 3, 4):
        bad = frame(TEXT, HELLO, reserved=number)
        yield refused_after_hello(f"3.{number}", bad, number - 2)
    last = ((5, BINARY, OCTETS), (6, BINARY, HELLO), (7, CLOSE, b""))
    for number, opcode, payload in last:
        bad = frame(opcode, payload, reserved=number)
        yield Case(f"3.{number}", at_once(bad), ending=BROKEN)
    for section, first in ((1, 3), (2, 11)):
        yield Case(f"4.{section}.1", at_once(frame(first)), ending=BROKEN)
        second = frame(first + 1, b"reserved opcode payload")
        yield Case(f"4.{section}.2", at_once(second), ending=BROKEN)
        yield refused_after_hello(f"4.{section}.3", frame(first + 2), 0)
        yield refused_after_hello(f"4.{section}.4", frame(first + 3, HELLO), 0)
        yield refused_after_hello(f"4.{section}.5", frame(first + 4, HELLO), 2)


def fragmentation() -> Iterator[Case]:
    """5: messages in several frames, and what must not come between them."""
    one, two, three = b"fragment1", b"fragment2", b"fragment3"
    ping, both = frame(PING, b"ping payload"), Message(TEXT, one + two)
    first, second = frame(TEXT, one, fin=False), frame(CONTINUATION, two)
    yield Case("5.1", at_once(frame(PING, one, fin=False), second), ending=BROKEN)
    yield Case("5.2", at_once(frame(PONG, one, fin=False), second), ending=BROKEN)
    for number, way in enumerate(WAYS):
        yield Case(f"5.{3 + number}", way(first, second), (both,))
        yield Case(f"5.{6 + number}", way(first, ping, second), (Pong(b"ping payload"), both))
        for start, fin in ((9, True), (12, False)):
            lonely = frame(CONTINUATION, b"non-continuation payload", fin=fin)
            yield Case(f"5.{start + number}", way(lonely, frame(TEXT, HELLO)), ending=BROKEN)
    more = (frame(CONTINUATION, three, fin=False), frame(TEXT, b"fragment4"))
    yield Case("5.15", at_once(first, second, *more), (both,), non_strict=(), ending=BROKEN)
    for number, fin in ((16, False), (17, True)):
        again = (frame(CONTINUATION, one, fin=fin), frame(TEXT, two, fin=False))
        steps = at_once(*(*again, frame(CONTINUATION, three)) * 2)
        yield Case(f"5.{number}", steps, ending=BROKEN)
    yield Case("5.18", at_once(first, frame(TEXT, two)), ending=BROKEN)
    yield from pings_between()


def pings_between() -> Iterator[Case]:
    """5.19, 5.20: a long message with two pings in it, and a pause in the middle."""
    parts = [b"fragment%d" % number for number in range(1, 6)]
    frames = [frame(CONTINUATION, part, fin=False) for part in parts]
    frames[0] = frame(TEXT, parts[0], fin=False)
    frames[4] = frame(CONTINUATION, parts[4])
    asks = (b"pongme 1!", b"pongme 2!")
    early = (*frames[:2], frame(PING, asks[0]))
    late = (*frames[2:4], frame(PING, asks[1]), frames[4])
    whole = (Pong(asks[0]), Pong(asks[1]), Message(TEXT, b"".join(parts)))
    for name, way in (("5.19", at_once), ("5.20", one_by_one)):
        settled = Write((b"",), settle=True)
        yield Case(name, (*way(*early), settled, *way(*late)), whole)


def text() -> Iterator[Case]:
    """6: UTF-8, whole, cut within characters, and wrong; wrong is found at the first bad byte."""
    yield echo("6.1.1", TEXT, b"")
    empty = [frame(TEXT, b"", fin=False), frame(CONTINUATION, b"", fin=False)]
    end = frame(CONTINUATION)
    yield Case("6.1.2", at_once(*empty, end), (Message(TEXT, b""),))
    middle = b"middle frame payload"
    steps = at_once(empty[0], frame(CONTINUATION, middle, fin=False), end)
    yield Case("6.1.3", steps, (Message(TEXT, middle),))
    yield echo("6.2.1", TEXT, GREETING)
    halves = at_once(frame(TEXT, GREETING[:16], fin=False), frame(CONTINUATION, GREETING[16:]))
    yield echo("6.2.2", TEXT, GREETING, halves)
    for number, payload in ((3, GREETING), (4, KOSME)):
        yield echo(f"6.2.{number}", TEXT, payload, at_once(*fragments(TEXT, payload, 1)))
    wrong = KOSME + b"\xed\xa0\x80edited"
    yield Case("6.3.1", at_once(frame(TEXT, wrong)), ending=NOT_TEXT)
    yield Case("6.3.2", at_once(*fragments(TEXT, wrong, 1)), ending=NOT_TEXT)
    yield from failing_fast()
    for section, payloads in enumerate(SEQUENCES, 5):
        for number, (payload, is_valid) in enumerate(payloads, 1):
            name = f"6.{section}.{number}"
            if is_valid:
                yield echo(name, TEXT, payload)
            else:
                yield Case(name, at_once(frame(TEXT, payload)), ending=NOT_TEXT)


def failing_fast() -> Iterator[Case]:
    """6.4: a good part, then one that makes the text wrong; nothing may be waited for."""
    late = KOSME + b"\xf4\x90\x80\x80edited"
    quiet = (Quiet("A"),)
    too_late = (Quiet("A"), Quiet("B"))
    for number, cuts in ((1, (11, 15)), (2, (12, 13))):
        parts = (late[: cuts[0]], late[cuts[0] : cuts[1]], late[cuts[1] :])
        head, tail = frame(TEXT, late)[: -len(late)], frame(TEXT, late)[-len(late) :]
        frames = (
            frame(TEXT, parts[0], fin=False),
            frame(CONTINUATION, parts[1], fin=False),
            frame(CONTINUATION, parts[2]),
        )
        chops = (head + tail[: cuts[0]], tail[cuts[0] : cuts[1]], tail[cuts[1] :])
        for offset, pieces in ((0, frames), (2, chops)):
            one, two, three = (Write((piece,)) for piece in pieces)
            steps = (one, Quiet("A"), two, Quiet("B"), three)
            yield Case(f"6.4.{number + offset}", steps, quiet, too_late, NOT_TEXT)


def closing() -> Iterator[Case]:
    """7: the closing handshake, its codes and reasons, and what comes after it."""
    yield echo("7.1.1", TEXT, b"Hello World!")
    bye = close(NORMAL)
    after = (frame(CLOSE), frame(PING), frame(TEXT, b"Hello World!"))
    for number, late in enumerate(after, 2):
        yield Case(f"7.1.{number}", at_once(bye, late), closes=False)
    one, two = frame(TEXT, b"fragment1", fin=False), frame(CONTINUATION, b"fragment2")
    yield Case("7.1.5", at_once(one, bye, two), closes=False)
    large = frame(TEXT, repeated(b"BAsd7&jh23", 256 * KIB))
    steps = at_once(large, frame(TEXT, b"Hello World!"), bye, frame(PING))
    yield Case("7.1.6", steps, closes=False, is_informational=True)
    refused = Ending(by_client=True, codes=(PROTOCOL_ERROR,), is_clean=False)
    reasons = (close(), close(None, b"a"), bye, close(NORMAL, b"Hello World!"))
    longest = (close(NORMAL, b"*" * 123), close(NORMAL, b"*" * 124))
    for number, sent in enumerate(reasons + longest, 1):
        ending = refused if number in (2, 6) else OURS
        yield Case(f"7.3.{number}", at_once(sent), ending=ending, closes=False)
    wrong = close(NORMAL, KOSME + b"\xed\xa0\x80edited")
    either = Ending(by_client=True, codes=(PROTOCOL_ERROR, INVALID_PAYLOAD), is_clean=False)
    yield Case("7.5.1", at_once(wrong), ending=either, closes=False)
    valid = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999)
    for number, code in enumerate(valid, 1):
        echoed = Ending(by_client=True, codes=(NORMAL, code), is_clean=True)
        yield Case(f"7.7.{number}", at_once(close(code)), ending=echoed, closes=False)
    invalid = (0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999)
    for number, code in enumerate(invalid, 1):
        yield Case(f"7.9.{number}", at_once(close(code)), ending=refused, closes=False)
    for number, code in ((1, 5000), (2, 65535)):
        yield Case(
            f"7.13.{number}",
            at_once(close(code)),
            ending=Ending(by_client=True, codes=(NORMAL, code, PROTOCOL_ERROR), is_clean=False),
            closes=False,
            is_informational=True,
        )


def large() -> Iterator[Case]:
    """9: large messages, whole, in many frames, in many writes; and many small ones in turn."""
    patterns = {TEXT: b"BAsd7&jh23", BINARY: b"\x00\xfe\x23\xfa\xf0"}
    for section, (opcode, pattern) in enumerate(patterns.items(), 1):
        lengths = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 8 * MIB, 16 * MIB)
        for number, length in enumerate(lengths, 1):
            yield echo(f"9.{section}.{number}", opcode, repeated(pattern, length))
    for section, (opcode, byte) in enumerate(((TEXT, b"*"), (BINARY, b"\xfe")), 3):
        payload = byte * (4 * MIB)
        sizes_bytes = (64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB)
        for number, size in enumerate(sizes_bytes, 1):
            steps = (Write(tuple(fragments(opcode, payload, size))),)
            yield echo(f"9.{section}.{number}", opcode, payload, steps)
    for section, (opcode, pattern) in enumerate(patterns.items(), 5):
        payload = repeated(pattern, MIB)
        for number, size in enumerate((64, 128, 256, 512, 1024, 2048), 1):
            steps = (Write(chopped(frame(opcode, payload), size)),)
            yield echo(f"9.{section}.{number}", opcode, payload, steps)
    for section, (opcode, byte) in enumerate(((TEXT, b"*"), (BINARY, b"\xfe")), 7):
        for number, length in enumerate((0, 16, 64, 256, 1024, 4096), 1):
            yield Case(f"9.{section}.{number}", (RoundTrips(opcode, byte * length, 1000),))


def fragmented_by_size() -> Iterator[Case]:
    """10: a message cut into frames of 1300 bytes."""
    payload = b"*" * 65536
    yield echo("10.1.1", TEXT, payload, at_once(*fragments(TEXT, payload, 1300)))


def all_cases() -> Iterator[Case]:
    """Every case, section by section."""
    for section in (sizes, pings, reserved, fragmentation, text, closing, large):
        yield from section()
    yield from fragmented_by_size()
