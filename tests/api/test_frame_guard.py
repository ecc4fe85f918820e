"""The guard agrees with frames built by hand, however their bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.frame_guard import FrameGuard, FrameViolation
from triolet.api.limits import SocketLimits

LIMITS = SocketLimits(
    message_bytes_max=1000, fragments_per_message_max=4, idle_frames_burst=3, idle_frames_per_s=1
)
TEXT, CONTINUATION, PING = 1, 0, 9


def frame(opcode: int, length: int, *, fin: bool = True, masked: bool = True) -> bytes:
    first = opcode | (0x80 if fin else 0)
    mask = 0x80 if masked else 0
    if length < 126:
        head = bytes((first, mask | length))
    elif length < 2**16:
        head = bytes((first, mask | 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((first, mask | 127)) + length.to_bytes(8, "big")
    return head + (b"mask" if masked else b"") + bytes(length)


def code_of(*frames: bytes, now: float = 0.0) -> int | None:
    guard = FrameGuard(LIMITS)
    try:
        for data in frames:
            guard.feed(data, now)
            guard.check_invariants()
    except FrameViolation as violation:
        return violation.code
    return None


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
    st.sampled_from([TEXT, CONTINUATION, PING]),
    st.integers(0, 400),
    fin=st.booleans(),
    masked=st.booleans(),
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


@given(st.binary(max_size=200))
def test_any_bytes_are_counted_or_refused(data: bytes) -> None:
    code_of(data)
