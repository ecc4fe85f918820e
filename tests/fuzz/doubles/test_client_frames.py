"""Frames against wsproto, which knows the RFC; and however the bytes are cut."""

import pytest
import wsproto.frame_protocol as rfc
from hypothesis import given
from hypothesis import strategies as st

from triolet.fuzz.doubles.client_frames import PING, TEXT, FrameFault, FrameReader, encode_frame


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_a_server_reads_what_is_sent(size: int) -> None:
    server = rfc.FrameProtocol(client=False, extensions=[])
    server.receive_bytes(encode_frame(TEXT, b"x" * size))
    frames = list(server.received_frames())
    assert "".join(str(frame.payload) for frame in frames) == "x" * size
    assert frames[-1].message_finished


@given(st.lists(st.integers(0, 70000), max_size=4), st.data())
def test_frames_are_found_however_they_are_cut(sizes: list[int], data: st.DataObject) -> None:
    server = rfc.FrameProtocol(client=False, extensions=[])
    wire = b"".join(server.send_data("y" * size, True) for size in sizes)
    wire += server.ping(b"hello")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    reader, found = FrameReader(), []
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        found += reader.feed(wire[begin:end])
    assert [(opcode, len(payload)) for opcode, payload in found] == [
        *((TEXT, size) for size in sizes),
        (PING, 5),
    ]


@pytest.mark.parametrize("wire", [b"\x01\x01a", b"\x81\x81\0\0\0\0a"])
def test_fragments_and_masked_frames_are_refused(wire: bytes) -> None:
    with pytest.raises(FrameFault):
        FrameReader().feed(wire)
