"""The guard agrees with frames built by hand, and with wsproto, however their bytes are cut."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wsproto.frame_protocol import FrameProtocol, ParseFailed

from triolet.api.settings import SocketLimits
from triolet.api.websocket.limits_guard import FrameGuard, FrameViolation
from triolet.fuzz.fuzzers.parsers.websocket import verdict

LIMITS = SocketLimits(
    message_bytes_max=1000, fragments_per_message_max=4, idle_frames_burst=3, idle_frames_per_s=1
)
# So wide that only broken rules are left.
# More than the rest of any head: a length of eight bytes and a mask.
HEAD_REST = bytes(12)
NO_LIMITS = SocketLimits(
    message_bytes_max=2**62, fragments_per_message_max=10**6, idle_frames_burst=10**6
)
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MASK = b"mask"


def frame(
    opcode: int,
    payload: int | bytes,
    *,
    fin: bool = True,
    masked: bool = True,
    reserved: int = 0,
    length_bytes: int = -1,
) -> bytes:
    """One frame; a number stands for so many bytes of ASCII."""
    if isinstance(payload, int):
        payload = b"x" * payload
    length = len(payload)
    first = opcode | (0x80 if fin else 0) | reserved
    mask = 0x80 if masked else 0
    if length_bytes < 0:
        length_bytes = 0 if length < 126 else 2 if length < 2**16 else 8
    short = {0: length, 2: 126, 8: 127}[length_bytes]
    head = bytes((first, mask | short)) + length.to_bytes(length_bytes or 1, "big")[:length_bytes]
    if not masked:
        return head + payload
    return head + MASK + bytes(byte ^ MASK[i % 4] for i, byte in enumerate(payload))


def code_of(*frames: bytes, now: float = 0.0, limits: SocketLimits = LIMITS) -> int | None:
    return verdict(frames, FrameGuard(limits), now)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([frame(TEXT, 1000)] * 5, None),
        ([frame(TEXT, 1001)], 1009),
        ([frame(TEXT, 70_000)[:14]], 1009),
        ([frame(TEXT, 600, fin=False), frame(CONTINUATION, 600)], 1009),
        ([frame(TEXT, 600, fin=False), frame(CONTINUATION, 400), frame(TEXT, 1000)], None),
        ([frame(TEXT, 1, fin=False)] + [frame(CONTINUATION, 1, fin=False)] * 3, None),
        ([frame(TEXT, 1, fin=False)] + [frame(CONTINUATION, 1, fin=False)] * 4, 1008),
        ([frame(PING, 4)] * 3, None),
        ([frame(PING, 4)] * 4, 1008),
        ([frame(TEXT, 0)] * 4, 1008),
        ([frame(TEXT, 2, fin=False)] + [frame(PING, 1)] * 3 + [frame(CONTINUATION, 2)], None),
    ],
)
def test_limits(frames: list[bytes], code: int | None) -> None:
    assert code_of(*frames) == code


# The other rules of framing are the Autobahn list's (`conformance/`), and wsproto's below.
FRAMINGS: dict[str, tuple[list[bytes], int | None]] = {
    "only two bytes of an unmasked frame": ([frame(TEXT, 200, masked=False)[:2]], 1002),
    "long form of a short length, before its mask": ([b"\x81\xfe\x00\x7d"], 1002),
    "longest form of a long length": ([frame(TEXT, 126, length_bytes=8)], 1002),
    "length below zero, before its mask": ([b"\x81\xff\x80" + bytes(7)], 1002),
    "no UTF-8, before the frame ends": ([frame(TEXT, b"\xff" + bytes(100))[:7]], 1007),
    "no UTF-8 across fragments": (
        [frame(TEXT, b"\xe2", fin=False), frame(CONTINUATION, b"a", fin=False)],
        1007,
    ),
    "text after binary": ([frame(BINARY, b"\xff"), frame(TEXT, "ü€".encode())], None),
    "close, then anything": ([frame(CLOSE, b"\x03\xe8bye") + b"\xff\xff", b"\xff"], None),
}


def wsproto_code(data: bytes) -> int | None:
    protocol = FrameProtocol(client=False, extensions=[])
    protocol.receive_bytes(data)
    try:
        list(protocol.received_frames())
    except ParseFailed as error:
        return int(error.code)
    return None


@pytest.mark.parametrize(("frames", "code"), FRAMINGS.values(), ids=FRAMINGS)
def test_rules_of_framing(frames: list[bytes], code: int | None) -> None:
    assert code_of(*frames, limits=NO_LIMITS) == code
    assert code_of(*[bytes((byte,)) for byte in b"".join(frames)], limits=NO_LIMITS) == code


def test_the_bucket_fills_with_time() -> None:
    guard = FrameGuard(LIMITS)
    for second in range(20):
        guard.feed(frame(PING, 0), float(second))
    for _ in range(LIMITS.idle_frames_burst):
        guard.feed(frame(PING, 0), 20.0)
    with pytest.raises(FrameViolation, match="1008"):
        guard.feed(frame(PING, 0), 20.0)


frames = st.builds(
    frame,
    st.sampled_from([TEXT, CONTINUATION, BINARY, PING]),
    st.integers(0, 400) | st.binary(max_size=6),
    fin=st.booleans(),
    masked=st.integers(0, 9).map(bool),
)
# Mostly good, so that a message gets far enough to break a later rule.
any_frames = st.builds(
    frame,
    st.sampled_from([TEXT, CONTINUATION, CONTINUATION, BINARY, PING, PONG, CLOSE, 5, 12]),
    st.sampled_from(["é".encode(), b"\xc3", b"\xa9", b"", b"\x03\xe8", b"\x03\xed"])
    | st.binary(max_size=130),
    fin=st.booleans(),
    masked=st.integers(0, 9).map(bool),
    reserved=st.sampled_from([0, 0, 0, 0, 0x40, 0x20]),
    length_bytes=st.sampled_from([-1, -1, -1, -1, 2, 8]),
)


@given(st.lists(frames, max_size=12), st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_the_verdict_does_not_depend_on_how_bytes_are_cut(
    sent: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(sent)
    pieces: list[bytes] = []
    position = 0
    while position < len(data):
        size = cuts[len(pieces) % len(cuts)]
        pieces.append(data[position : position + size])
        position += size
    assert code_of(*pieces) == code_of(data)


@given(st.lists(any_frames, max_size=6).map(b"".join) | st.binary(max_size=200))
@example(b"\x00~")
def test_wsproto_refuses_nothing_else_and_nothing_less(data: bytes) -> None:
    code = code_of(data, limits=NO_LIMITS)
    # We judge a head's first bytes when they come, wsproto when all of the head is there.
    assert code in (wsproto_code(data), wsproto_code(data + HEAD_REST), 1009)
