"""Texts for section 6: Markus Kuhn's UTF-8 stress test, by groups, in the order of the suite.

Whether a payload is valid is said by Python's own strict decoder, which follows RFC 3629.
"""

from collections.abc import Iterable

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


_GROUPS: list[tuple[str, list[bytes]]] = [
    (
        "valid sequences",
        [*(f"hello{sign}world".encode() for sign in ("$", "¢", "€", "\U00024b62")), KOSME],
    ),
    ("prefixes of a valid string", [KOSME[:end] for end in range(1, len(KOSME) + 1)]),
    (
        "first possible sequence of a length",
        [b"\x00", b"\xc2\x80", b"\xe0\xa0\x80", b"\xf0\x90\x80\x80"],
    ),
    ("first of five and six bytes", [b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80"]),
    (
        "last possible sequence of a length",
        [b"\x7f", b"\xdf\xbf", b"\xef\xbf\xbf", b"\xf4\x8f\xbf\xbf"],
    ),
    (
        "last of four to six bytes",
        [b"\xf7\xbf\xbf\xbf", b"\xfb\xbf\xbf\xbf\xbf", b"\xfd\xbf\xbf\xbf\xbf\xbf"],
    ),
    (
        "other boundaries",
        [
            b"\xed\x9f\xbf",
            b"\xee\x80\x80",
            b"\xef\xbf\xbd",
            b"\xf4\x8f\xbf\xbf",
            b"\xf4\x90\x80\x80",
        ],
    ),
    (
        "unexpected continuation bytes",
        [
            *(b"\x80", b"\xbf"),
            *((b"\x80\xbf" * 3)[:length] for length in range(2, 7)),
            bytes(range(0x80, 0xBF)),
        ],
    ),
    (
        "lonely starts",
        [
            b"".join(bytes((byte, 0x20)) for byte in range(first, last))
            for first, last in (
                (0xC0, 0xDF),
                (0xE0, 0xEF),
                (0xF0, 0xF7),
                (0xF8, 0xFB),
                (0xFC, 0xFD),
            )
        ],
    ),
    ("last byte missing", _CUT),
    ("incomplete sequences in a row", [b"".join(_CUT)]),
    ("impossible bytes", [b"\xfe", b"\xff", b"\xfe\xfe\xff\xff"]),
    ("overlong slash", _overlong([b"\xc0", *(_CUT[length] for length in range(1, 5))], b"\xaf")),
    (
        "greatest overlong",
        [
            *(b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf"),
            *(b"\xf8\x87\xbf\xbf\xbf", b"\xfc\x83\xbf\xbf\xbf\xbf"),
        ],
    ),
    ("overlong NUL", _overlong([b"\xc0", *(_CUT[length] for length in range(1, 5))], b"\x80")),
    ("single surrogates", _SURROGATES + _LOW_SURROGATES),
    (
        "paired surrogates",
        [high + low for high in _SURROGATES for low in (b"\xed\xb0\x80", b"\xed\xbf\xbf")],
    ),
    ("code points that are no characters", list(_non_characters())),
    ("specials", [chr(code).encode() for code in range(0xFFF9, 0x10000)]),
]


def _is_valid(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


# (what the group is, [(payload, whether it is valid)]); sections 6.5 to 6.23.
SEQUENCES = [
    (name, [(payload, _is_valid(payload)) for payload in payloads]) for name, payloads in _GROUPS
]
