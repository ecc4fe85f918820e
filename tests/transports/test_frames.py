"""Packed frames: any list survives, any other bytes are malformed."""

import struct

import hypothesis
import hypothesis.strategies as st
import pytest

from triolet.transports.codec import (
    PACKED_FRAMES_MAX,
    MalformedMessage,
    frame_bytes,
    pack_frames,
    unpack_frames,
)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.binary(max_size=20), max_size=5))
def test_frames_survive(frames: list[bytes]) -> None:
    assert unpack_frames(b"".join(pack_frames(frames))) == frames


@hypothesis.settings(deadline=None)
@hypothesis.given(st.binary(max_size=64))
def test_any_bytes_are_frames_or_malformed(data: bytes) -> None:
    try:
        frames = unpack_frames(data)
    except MalformedMessage:
        return
    assert b"".join(pack_frames(frames)) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0\0",
        b"\1\0\0\0",
        struct.pack("<IQ", 1, 1),
        struct.pack("<IQ", 1, 2**64 - 1) + b"x",
        struct.pack("<I", 0) + b"x",
        struct.pack(f"<I{PACKED_FRAMES_MAX + 1}Q", PACKED_FRAMES_MAX + 1, *[0] * 1025),
    ],
)
def test_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        unpack_frames(data)


def test_packing_copies_nothing() -> None:
    frame = bytearray(b"abc")
    assert pack_frames([frame])[1] is frame


def test_sizes_are_in_bytes_for_every_buffer() -> None:
    assert frame_bytes(memoryview(bytes(8)).cast("Q")) == 8
    assert frame_bytes(b"abc") == 3
