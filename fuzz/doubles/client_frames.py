"""WebSocket frames from a client's side (RFC 6455), as few steps as can be.

Sans-IO: bytes in, messages out. A load generator must cost less than what it measures, so frames
are masked with zeros (legal, and leaves the bytes as they are) and nothing is checked beyond what
keeps us in step. Must not know what messages mean.
"""

import attrs

TEXT, CLOSE, PING, PONG = 0x1, 0x8, 0x9, 0xA
_FINAL = 0x80
_MASKED = 0x80
_NO_MASK = b"\0\0\0\0"


class FrameFault(Exception):
    """What came is no frame of a server; the connection is of no further use."""


def encode_frame(opcode: int, payload: bytes) -> bytes:
    """One whole message in one frame."""
    return frame_head(_FINAL | opcode, len(payload)) + _NO_MASK + payload


def frame_head(first: int, size: int) -> bytes:
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
            if not first & _FINAL or size & _MASKED:
                raise FrameFault("a fragment or a masked frame")
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
