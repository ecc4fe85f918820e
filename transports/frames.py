"""Puts the frames of one message into one run of bytes, for carriers that have no frames.

Sans-IO: bytes in, bytes out. ZeroMQ has multipart messages; a slot of the step ring, a datagram of
the control channel and a payload of the handshake do not. Must not know what the frames hold.

    count (4 bytes) · size of each frame (8 bytes each) · the frames, back to back; little-endian
"""

import struct
from collections.abc import Sequence

from .array import Frame
from .codec import MalformedMessage

_COUNT = struct.Struct("<I")
_SIZE_BYTES = 8
# A count beyond this is nonsense, whatever a codec allows: it bounds what one header makes us read.
PACKED_FRAMES_MAX = 1024


def frame_bytes(frame: Frame) -> int:
    """Size of one frame in bytes, whichever buffer type it is."""
    return frame.nbytes if isinstance(frame, memoryview) else len(frame)


def pack_frames(frames: Sequence[Frame]) -> list[Frame]:
    """A header and the frames themselves, to be written one after the other; nothing is copied."""
    sizes = [frame_bytes(frame) for frame in frames]
    return [struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes), *frames]


def unpack_frames(data: Frame) -> list[Frame]:
    """The frames in `data`, as views of it. Raises `MalformedMessage` unless they fill it."""
    view = memoryview(data)
    if view.nbytes < _COUNT.size:
        raise MalformedMessage(f"{view.nbytes} bytes are no packed frames")
    (count,) = _COUNT.unpack_from(view)
    start = _COUNT.size + count * _SIZE_BYTES
    if count > PACKED_FRAMES_MAX or start > view.nbytes:
        raise MalformedMessage(f"a header for {count} frames in {view.nbytes} bytes")
    sizes = struct.unpack_from(f"<{count}Q", view, _COUNT.size)
    if start + sum(sizes) != view.nbytes:
        raise MalformedMessage(f"frames of {sum(sizes)} bytes in {view.nbytes - start}")
    frames: list[Frame] = []
    for size in sizes:
        frames.append(view[start : start + size])
        start += size
    return frames
