"""The header frame: there and back, and everything else refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.transports.links.link_header import (
    HEADER_BYTES,
    FrameKind,
    Header,
    MalformedHeader,
    decode_header,
)

_U64 = st.integers(0, 2**64 - 1)


@given(st.sampled_from(FrameKind), st.integers(0, 0xFFFFFFFF), _U64, _U64)
def test_headers_come_back(
    kind: FrameKind, generation: int, sequence: int, acknowledged: int
) -> None:
    header = Header(kind, generation, sequence, acknowledged)
    assert len(header.encode()) == HEADER_BYTES
    assert decode_header(header.encode()) == header
    frame = bytearray(b"\xff" * (HEADER_BYTES + 3))
    header.write_to(frame)
    assert frame == header.encode() + b"\xff" * 3
    assert decode_header(frame) == header, "what follows is not the header's"


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "shorter than 21 bytes"),
        (bytes(HEADER_BYTES - 1), "shorter than 21 bytes"),
        (bytes(HEADER_BYTES), "unknown kind 0"),
        (b"\x63" + bytes(HEADER_BYTES - 1), "unknown kind 99"),
    ],
)
def test_what_is_no_header(frame: bytes, reason: str) -> None:
    with pytest.raises(MalformedHeader, match=reason):
        decode_header(frame)
