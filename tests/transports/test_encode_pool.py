"""The pool reuses a buffer only when nobody reads it any more, and keeps no more than it may."""

import attrs
import hypothesis
import hypothesis.strategies as st
import pytest

from triolet.transports.codec import Codec, CodecLimits, MessageTooLarge
from triolet.transports.encode_pool import EncodePool


@attrs.frozen
class Note:
    text: str


@attrs.define
class FakeTracker:
    done: bool = False


CODEC = Codec(Note, limits=CodecLimits(bytes_max=2000))


def test_a_released_buffer_is_used_again() -> None:
    pool = EncodePool()
    first = pool.encode(CODEC, Note("a"))
    pool.release(first)
    second = pool.encode(CODEC, Note("b"))
    assert second[0] is first[0]
    assert (pool.made, pool.reused) == (1, 1)
    assert CODEC.decode(second) == Note("b")


def test_a_tracked_buffer_is_used_again_only_when_its_tracker_is_done() -> None:
    pool = EncodePool()
    tracker = FakeTracker()
    first = pool.encode(CODEC, Note("a"))
    pool.release(first, tracker)
    assert pool.encode(CODEC, Note("b"))[0] is not first[0]
    assert CODEC.decode(first) == Note("a")
    tracker.done = True
    assert pool.encode(CODEC, Note("c"))[0] is first[0]


def test_a_large_buffer_is_not_kept() -> None:
    pool = EncodePool(buffer_bytes_max=100)
    first = pool.encode(CODEC, Note("x" * 200))
    pool.release(first)
    assert pool.encode(CODEC, Note("y"))[0] is not first[0]


def test_a_message_that_does_not_encode_gives_its_buffer_back() -> None:
    pool = EncodePool()
    with pytest.raises(MessageTooLarge):
        pool.encode(CODEC, Note("x" * 3000))
    pool.encode(CODEC, Note("x"))
    assert (pool.made, pool.reused) == (1, 1)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.tuples(st.sampled_from(["send", "track", "done"]), st.integers(0))))
def test_what_is_in_flight_is_never_written(events: list[tuple[str, int]]) -> None:
    pool = EncodePool(buffers_max=3)
    in_flight: list[tuple[bytes, bytearray, FakeTracker]] = []
    for number, (what, choice) in enumerate(events):
        if what == "done":
            if in_flight:
                in_flight.pop(choice % len(in_flight))[2].done = True
        else:
            frames = pool.encode(CODEC, Note(str(number)))
            assert isinstance(frames[0], bytearray)
            tracker = FakeTracker()
            pool.release(frames, tracker if what == "track" else None)
            if what == "track":
                in_flight.append((bytes(frames[0]), frames[0], tracker))
        for copy, buffer, _ in in_flight:
            assert buffer == copy
        pool.check_invariants()
