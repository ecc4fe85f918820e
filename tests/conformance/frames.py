"""Client frames built by hand: wsproto refuses to build the broken ones."""

from collections.abc import Iterator

from wsproto.frame_protocol import XorMaskerSimple

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
# The mask of RFC 6455's example (5.7). A fixed one, so that every run sends the same bytes.
MASK = b"\x37\xfa\x21\x3d"


def frame(opcode: int, payload: bytes = b"", *, is_last: bool = True, reserved: int = 0) -> bytes:
    """One masked frame, its length in the shortest form. `reserved` are the three bits, 0 to 7."""
    first = is_last << 7 | reserved << 4 | opcode
    length = len(payload)
    if length < 126:
        head = bytes((first, 0x80 | length))
    elif length < 2**16:
        head = bytes((first, 0x80 | 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((first, 0x80 | 127)) + length.to_bytes(8, "big")
    return head + MASK + XorMaskerSimple(MASK).process(bytearray(payload))


def close(code: int | None = None, reason: bytes = b"") -> bytes:
    """A close frame; without a code its payload is `reason` alone."""
    return frame(CLOSE, (b"" if code is None else code.to_bytes(2, "big")) + reason)


def fragments(opcode: int, payload: bytes, size_bytes: int) -> Iterator[bytes]:
    """A message in frames of at most `size_bytes` bytes of payload."""
    for start in range(0, len(payload), size_bytes):
        end = start + size_bytes
        yield frame(
            CONTINUATION if start else opcode, payload[start:end], is_last=end >= len(payload)
        )


def chopped(data: bytes, size_bytes: int) -> tuple[bytes, ...]:
    """Bytes as so many writes: what TCP may make of one."""
    return tuple(data[start : start + size_bytes] for start in range(0, len(data), size_bytes))
