"""The codec: messages, arrays and packed frames survive whole; the rest is `MalformedMessage`."""

import array
import enum
import struct
from typing import ClassVar

import attrs
import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from triolet.transports.array import DIMENSIONS_MAX, ITEM_BYTES, Array, Frame
from triolet.transports.codec import (
    ARRAY_FRAME_BYTES,
    PACKED_FRAMES_MAX,
    REASON_CHARACTERS_MAX,
    Codec,
    CodecLimits,
    MalformedMessage,
    MessageTooLarge,
    frame_bytes,
    pack_frames,
    unpack_frames,
)


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Refused(Exception):
    """Stands for whatever a class's own checks raise."""


@attrs.frozen
class Inner:
    name: str
    weights: tuple[float, ...] = attrs.field(default=(), converter=tuple)
    count: int = attrs.field(default=0, validator=attrs.validators.ge(0))

    def __attrs_post_init__(self) -> None:
        if self.name == "refused":
            raise Refused
        if self.name == "starved":
            raise MemoryError


@attrs.frozen(kw_only=True)
class Outer:
    inner: Inner
    colour: Colour = Colour.RED
    pairs: list[tuple[int, list[int]]] = attrs.field(factory=list)
    choice: int | str | None = None
    table: dict[str, Inner] = attrs.field(factory=dict)
    raw: bytes = b""


@attrs.frozen
class Empty:
    pass


@attrs.frozen
class Tensors:
    one: Array | None
    many: list[Array] = attrs.field(factory=list)


@attrs.frozen
class Name:
    text: str


@attrs.frozen
class Question:
    text: str
    inner: Inner

    known_when_malformed: ClassVar[type] = Name


CODEC = Codec(Outer, Empty, Tensors)
inners = st.builds(
    Inner,
    st.text(max_size=8).filter(lambda name: name not in ("refused", "starved")),
    st.lists(st.floats(allow_nan=False), max_size=3),
    st.integers(0, 2**63 - 1),
)
outers = st.builds(
    Outer,
    inner=inners,
    colour=st.sampled_from(Colour),
    pairs=st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3))),
    choice=st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=4),
    table=st.dictionaries(st.text(max_size=3), inners, max_size=2),
    raw=st.binary(max_size=8),
)


def _wire(kind: int, fields: object) -> list[Frame]:
    return [bytes((kind,)) + msgspec.msgpack.encode(fields)]


@hypothesis.settings(deadline=None)
@hypothesis.given(outers)
def test_messages_survive_whole(message: Outer) -> None:
    assert CODEC.decode(CODEC.encode(message)) == message


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        ({"text": "a", "inner": 5}, Name("a")),
        ({"text": "a"}, Name("a")),
        ({"text": 5, "inner": 5}, None),
        ([], None),
    ],
)
def test_what_is_known_comes_with_the_error(fields: object, known: object) -> None:
    codec = Codec(Empty, Question)
    with pytest.raises(MalformedMessage, match="Question") as caught:
        codec.decode(_wire(1, fields))
    assert caught.value.known == known


def test_want_of_memory_does_not_make_a_message_malformed() -> None:
    with pytest.raises(MemoryError):
        CODEC.decode(_wire(0, {"inner": {"name": "starved"}}))


def test_the_kind_is_the_place_in_the_list() -> None:
    frames = CODEC.encode(Empty())
    assert frames == [b"\x01\x80"]
    assert CODEC.decode(frames) == Empty()


@pytest.mark.parametrize("size", [8, ARRAY_FRAME_BYTES, ARRAY_FRAME_BYTES * 2])
def test_arrays_survive_in_frames_of_their_own_when_large(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    message = Tensors(Array("uint8", (size,), data), [Array("int8", (1,), b"x")] * 2)
    frames = CODEC.encode(message)
    assert len(frames) == (1 if size < ARRAY_FRAME_BYTES else 2)
    assert CODEC.decode(frames) == message


def test_a_codec_says_whether_its_messages_may_have_arrays() -> None:
    assert CODEC.has_arrays
    assert not Codec(Empty).has_arrays


def test_large_arrays_are_not_copied_on_either_side() -> None:
    data = bytearray(ARRAY_FRAME_BYTES)
    frames = CODEC.encode(Tensors(Array("uint8", (ARRAY_FRAME_BYTES,), data)))
    received = CODEC.decode([bytes(frames[0]), frames[1]])
    assert isinstance(received, Tensors)
    assert received.one is not None
    data[5] = 7
    assert received.one.data[5] == 7
    assert received.one.data.readonly


def test_a_field_of_a_newer_sender_is_skipped_with_its_frame() -> None:
    @attrs.frozen
    class NewerTensors:
        later: Array
        one: Array | None

    large = Array("uint8", (ARRAY_FRAME_BYTES,), bytes(ARRAY_FRAME_BYTES))
    frames = Codec(Outer, Empty, NewerTensors).encode(NewerTensors(large, large))
    assert len(frames) == 3
    assert CODEC.decode(frames) == Tensors(large)


def test_missing_fields_take_their_defaults() -> None:
    assert CODEC.decode(_wire(0, {"inner": {"name": "x"}})) == Outer(inner=Inner("x"))


@pytest.mark.parametrize("message", [Empty(), Tensors(Array("int8", (1,), b"x"))])
def test_room_for_a_carrier_is_left_at_the_front_and_skipped(message: object) -> None:
    plain, with_room = CODEC.encode(message), CODEC.encode(message, room=9)
    assert with_room == [bytes(9) + bytes(plain[0])]
    assert CODEC.decode(with_room, room=9) == message
    for frame in (b"", bytes(8), bytes(9)):
        with pytest.raises(MalformedMessage, match="empty"):
            CODEC.decode([frame], room=9)


def test_room_is_no_part_of_a_messages_size() -> None:
    exact = Codec(Empty, limits=CodecLimits(bytes_max=2))
    assert exact.decode(exact.encode(Empty(), room=50), room=50) == Empty()


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "0 frames"),
        ([b""], "empty"),
        ([b"\x03\x80"], "unknown kind 3"),
        ([b"\xff"], "unknown kind 255"),
        ([b"\x01"], "truncated"),
        ([b"\x01\x80\x80"], "trailing"),
        (_wire(0, {}), "inner"),
        (_wire(0, {"inner": {"name": 3}}), "name"),
        (_wire(0, {"inner": {"name": "x"}, "colour": "green"}), "green"),
        (_wire(0, {"inner": {"name": "x", "count": -1}}), "count"),
        (_wire(0, {"inner": {"name": "refused"}}), "Outer"),
        (_wire(0, {"inner": {"name": "x"}, "pairs": [[1]]}), "pairs"),
        (_wire(2, {"one": ["int8", [1], 1]}), "frame 1"),
        (_wire(2, {"one": ["int8", [1], 0]}), "frame 0"),
        (_wire(2, {"one": ["int8", [2], b"x"]}), "2 bytes"),
        (_wire(2, {"one": ["int8", [True], b"x"]}), "integers"),
        (_wire(2, {"one": ["object", [1], b"x"]}), "object"),
        (_wire(2, {"one": "int8"}), "not an array"),
        ([*_wire(2, {"one": None, "many": [["int8", [1], 1]] * 2}), b"x"], "frame 1"),
        ([b"\x00\x81\xa1x" + b"\x91" * 10_000 + b"\xc0"], "Outer"),
        ([b"\x00" + b"\x91" * 10_000 + b"\xc0"], "Outer"),
        ([b"\x00\xdf\x7f\xff\xff\xff"], "truncated"),
        (_wire(0, {"inner": {"name": "x"}, "colour": "g" * 10_000}), "Outer"),
    ],
)
def test_malformed(frames: list[Frame], reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason) as caught:
        CODEC.decode(frames)
    assert len(caught.value.reason) <= REASON_CHARACTERS_MAX


def test_limits_hold_on_both_sides() -> None:
    small = Codec(Outer, Empty, Tensors, limits=CodecLimits(bytes_max=100, frames_max=1))
    message = Outer(inner=Inner("x"), raw=bytes(100))
    with pytest.raises(MessageTooLarge, match="Outer"):
        small.encode(message)
    with pytest.raises(MalformedMessage, match="limit 100"):
        small.decode(CODEC.encode(message))
    with pytest.raises(MalformedMessage, match="limit 1"):
        small.decode([b"\x01\x80", b""])
    wide = Codec(Tensors, limits=CodecLimits(frames_max=1))
    large = Array("uint8", (ARRAY_FRAME_BYTES,), bytes(ARRAY_FRAME_BYTES))
    with pytest.raises(MessageTooLarge, match="2 frames"):
        wide.encode(Tensors(large))


def test_a_message_of_another_codec_is_our_own_mistake() -> None:
    with pytest.raises(TypeError, match="Inner is no message"):
        CODEC.encode(Inner("x"))


def test_classes_that_would_lose_something_are_refused() -> None:
    @attrs.frozen
    class Private:
        _hidden: int = 0

    @attrs.frozen
    class Derived:
        made: int = attrs.field(default=0, init=False)

    @attrs.frozen
    class Holder:
        inside: list[dict[str, Private | None]]

    @attrs.frozen
    class Ambiguous:
        either: Inner | Empty

    @attrs.frozen
    class Foreign:
        what: object
        other: type

    for wrong in (Private, Derived, Holder, Ambiguous, Foreign, int):
        with pytest.raises(TypeError):
            Codec(wrong)
    with pytest.raises(TypeError, match="different"):
        Codec(Empty, Empty)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.binary(max_size=20), max_size=5))
def test_frames_survive(frames: list[bytes]) -> None:
    assert unpack_frames(b"".join(pack_frames(frames))) == frames


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
def test_what_is_no_packed_frames(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        unpack_frames(data)


def test_packing_copies_nothing() -> None:
    frame = bytearray(b"abc")
    assert pack_frames([frame])[1] is frame


def test_sizes_are_in_bytes_for_every_buffer() -> None:
    assert frame_bytes(memoryview(bytes(8)).cast("Q")) == 8
    assert frame_bytes(b"abc") == 3


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_sizes_follow_from_dtype_and_shape(dtype: str) -> None:
    size = 6 * ITEM_BYTES[dtype]
    assert Array(dtype, (2, 3), bytes(size)).data.nbytes == size
    with pytest.raises(ValueError, match="has"):
        Array(dtype, (2, 3), bytes(size + 1))


def test_scalars_and_empty_arrays() -> None:
    assert Array("int64", (), bytes(8)).shape == ()
    assert Array("float32", (3, 0), b"").data.nbytes == 0


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("complex64", (1,)), ("int8", (-1, -1)), ("__class__", ()), ("int8", (1,) * 9)],
)
def test_refuses(dtype: str, shape: tuple[int, ...]) -> None:
    assert len(shape) != 9 or DIMENSIONS_MAX < 9
    with pytest.raises(ValueError):
        Array(dtype, shape, b"\0")


def test_views_the_buffer_instead_of_copying_it() -> None:
    numbers = array.array("f", [1.0, 2.0])
    seen = Array("float32", (2,), memoryview(numbers))
    numbers[0] = 3.0
    assert seen.data.cast("f").tolist() == [3.0, 2.0]


def test_refuses_a_buffer_with_gaps() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        Array("int8", (2,), memoryview(b"abcd")[::2])


def test_compares_by_value() -> None:
    assert Array("int8", (2,), b"ab") == Array("int8", (2,), bytearray(b"ab"))
    assert Array("int8", (2,), b"ab") != Array("int8", (1, 2), b"ab")
    assert Array("int8", (2,), b"ab") != b"ab"
    assert repr(Array("int8", (2,), b"ab")) == "Array('int8', (2,), 2 bytes)"
