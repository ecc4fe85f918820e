"""Codec of messages: attrs objects to frames and back, with every type checked on the way in.

Sans-IO: bytes in, objects out. One decoder per kind of message; the first byte of the first frame
is the kind, its place in the list that both sides have. What a decoded message holds is of
the declared types, and its class's own validators have run; all else is `MalformedMessage`, which
the receiver counts and drops. Nothing is looked up by a name from the wire.

A malformed message may have to be answered: its class then names, as `known_when_malformed`,
another one with some of its fields, which is read instead.

Messages are msgpack maps, so that a field appended with a default is compatible both ways: an old
receiver skips it, a new one takes the default. Converters of attrs fields do not run on decoding,
`__attrs_post_init__` and validators do.

    first frame   kind (1 byte), msgpack map of the message's fields
    frame k       data of one `Array` of at least ARRAY_FRAME_BYTES, in the order of encoding

Carriers without frames (a datagram of the control channel) take them packed into one run of bytes:

    count (4 bytes) · size of each frame (8 bytes each) · the frames, back to back; little-endian
"""

import struct
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any

import attrs
import msgspec
import msgspec.inspect

from .array import Array, Frame

# A smaller array is cheaper to copy than to frame (measured: a frame costs about 4 µs a side).
ARRAY_FRAME_BYTES = 64 * 1024
# A kind is one byte.
KINDS_MAX = 256
# Reasons go to logs; they may quote what came over the wire.
REASON_CHARACTERS_MAX = 300
# Packed frames: a count beyond this is nonsense, whatever a codec allows; it bounds what one header
# makes us read.
PACKED_FRAMES_MAX = 1024
_COUNT = struct.Struct("<I")
_SIZE_BYTES = 8


@attrs.frozen
class MalformedMessage(Exception):
    """Frames that are no message of this codec. The sender's fault: count it, drop the message.

    `known` is what could be read of it nevertheless: see the module.
    """

    reason: str
    known: object | None = None

    def __str__(self) -> str:
        return f"malformed message: {self.reason}"


@attrs.frozen
class MessageTooLarge(Exception):
    """Our own message exceeds what the other side accepts; nothing was sent. `unit`: what of it."""

    kind: str
    size: int
    limit: int
    unit: str

    def __str__(self) -> str:
        return f"{self.kind} would have {self.size} {self.unit}, more than {self.limit}"


@attrs.frozen(kw_only=True)
class CodecLimits:
    """Limits of a message, checked on both sides. `bytes_max` is the sum of all frames."""

    # 64 MiB: a prompt of 1 M tokens is 5 MB, a large image 25 MB.
    bytes_max: int = attrs.field(default=64 * 2**20, validator=attrs.validators.ge(1))
    frames_max: int = attrs.field(default=64, validator=attrs.validators.ge(1))


# The frames of the message in hand; msgspec's hooks take no argument for it. A context variable,
# so that threads which share a codec do not meet.
_frames_out: ContextVar[list[Frame]] = ContextVar("_frames_out")
_frames_in: ContextVar["_FramesIn"] = ContextVar("_frames_in")


@attrs.define(eq=False)
class _FramesIn:
    frames: Sequence[Frame]
    last_used: int = 0

    def take(self, number: int) -> memoryview:
        if not self.last_used < number < len(self.frames):
            raise ValueError(f"frame {number} of {len(self.frames)} after {self.last_used}")
        self.last_used = number
        return memoryview(self.frames[number]).toreadonly()


class Codec:
    """Encodes and decodes the given message classes; both sides list the same, in one order.

    Stateless between calls: tasks and threads may share it. Raises `TypeError` at once for classes
    that would lose something on the way (private fields, fields outside `__init__`, unions of two
    classes), so that a codec that could be built keeps messages whole.
    """

    def __init__(self, *message_types: type, limits: CodecLimits | None = None) -> None:
        if len(message_types) > KINDS_MAX or len(set(message_types)) != len(message_types):
            raise TypeError(f"a codec takes up to {KINDS_MAX} different classes")
        with_arrays = [_has_arrays(message_type) for message_type in message_types]
        self.message_types = message_types
        self.limits = limits if limits is not None else CodecLimits()
        self._kinds = {cls: kind for kind, cls in enumerate(message_types)}
        # The kinds whose messages may have more than one frame; all others need no bookkeeping.
        self._with_arrays = {kind for kind, has_them in enumerate(with_arrays) if has_them}
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
        self._decoders: list[msgspec.msgpack.Decoder[Any]] = [
            msgspec.msgpack.Decoder(cls, dec_hook=_decode_array) for cls in message_types
        ]
        self._known_decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {
            kind: msgspec.msgpack.Decoder(known)
            for kind, cls in enumerate(message_types)
            if (known := getattr(cls, "known_when_malformed", None)) is not None
        }

    @property
    def has_arrays(self) -> bool:
        """Whether a message may have more frames than the first."""
        return bool(self._with_arrays)

    def encode(self, message: object, room: int = 0) -> list[Frame]:
        """The frames of one message. Arrays in frames of their own are views, not copies.

        The first frame begins with `room` bytes, zero, for whatever carries it. Raises `TypeError`
        for a class that this codec does not list, `MessageTooLarge`.
        """
        kind = self._kinds.get(type(message))
        if kind is None:
            raise TypeError(f"{type(message).__name__} is no message of this codec")
        head = bytearray(room + 1)
        head[room] = kind
        frames: list[Frame] = [head]
        if kind in self._with_arrays:
            token = _frames_out.set(frames)
            try:
                self._encoder.encode_into(message, head, room + 1)
            finally:
                _frames_out.reset(token)
        else:
            self._encoder.encode_into(message, head, room + 1)
        size = len(head) - room if len(frames) == 1 else sum(map(frame_bytes, frames)) - room
        if size > self.limits.bytes_max:
            raise MessageTooLarge(type(message).__name__, size, self.limits.bytes_max, "bytes")
        if len(frames) > self.limits.frames_max:
            name = type(message).__name__
            raise MessageTooLarge(name, len(frames), self.limits.frames_max, "frames")
        return frames

    def decode(self, frames: Sequence[Frame], room: int = 0) -> object:
        """The message in `frames`, after `room` bytes of the first one that are not the codec's.

        Arrays of frames of their own are views of them. Frames that no array names are ignored: a
        newer sender's field. Raises `MalformedMessage`, and `MemoryError` for want of it.
        """
        if not 0 < len(frames) <= self.limits.frames_max:
            raise MalformedMessage(f"{len(frames)} frames, limit {self.limits.frames_max}")
        head = memoryview(frames[0])
        size = head.nbytes - room if len(frames) == 1 else sum(map(frame_bytes, frames)) - room
        if size > self.limits.bytes_max:
            raise MalformedMessage(f"{size} bytes, limit {self.limits.bytes_max}")
        kind = head[room] if head.nbytes > room else -1
        if not 0 <= kind < len(self._decoders):
            raise MalformedMessage(f"unknown kind {kind}" if kind >= 0 else "first frame is empty")
        try:
            if kind not in self._with_arrays:
                return self._decoders[kind].decode(head[room + 1 :])
            token = _frames_in.set(_FramesIn(frames))
            try:
                return self._decoders[kind].decode(head[room + 1 :])
            finally:
                _frames_in.reset(token)
        except MemoryError:
            raise  # ours, not the message's: dropped, nobody would send it again
        except Exception as error:  # whatever the class's own validators raise, by design
            name = self.message_types[kind].__name__
            reason = f"{name}: {error}"[:REASON_CHARACTERS_MAX]
            raise MalformedMessage(reason, self._known(kind, head[room + 1 :])) from error

    def _known(self, kind: int, data: memoryview) -> object | None:
        """Decode the part of a malformed message that its class names; None if not even that is
        sound."""
        if kind not in self._known_decoders:
            return None
        try:
            known: object = self._known_decoders[kind].decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None  # not even that
        return known


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


def _encode_array(value: object) -> object:
    if not isinstance(value, Array):
        raise TypeError(f"{type(value).__name__} cannot be in a message")
    if value.data.nbytes < ARRAY_FRAME_BYTES:
        return [value.dtype, value.shape, value.data]
    frames = _frames_out.get()
    frames.append(value.data)
    return [value.dtype, value.shape, len(frames) - 1]


def _decode_array(_declared: type, value: object) -> Array:
    match value:
        case [str(dtype), list(shape), bytes(data)]:
            return Array(dtype, _shape(shape), data)
        case [str(dtype), list(shape), int(number)]:
            return Array(dtype, _shape(shape), _frames_in.get().take(number))
        case _:
            raise ValueError("not an array")


def _shape(lengths: list[Any]) -> tuple[int, ...]:
    if any(type(length) is not int for length in lengths):
        raise ValueError("a shape is made of integers")
    return tuple(lengths)


@cache  # handshake messages are in every codec of a control channel
def _has_arrays(message_type: type) -> bool:
    """Whether it holds an `Array`. Raises `TypeError` if it would lose something on the way."""
    if not attrs.has(message_type):
        raise TypeError(f"{message_type.__name__} is not an attrs class")
    for cls in _classes_in(msgspec.inspect.type_info(message_type)):
        if cls is Array:
            continue
        if not attrs.has(cls):
            raise TypeError(f"{cls.__name__} in {message_type.__name__} cannot be decoded")
        for field in attrs.fields(cls):
            if field.name.startswith("_") or not field.init:
                raise TypeError(f"{cls.__name__}.{field.name} would be lost on the way")
    return Array in _classes_in(msgspec.inspect.type_info(message_type))


def _classes_in(info: object, seen: set[type] | None = None) -> Iterator[type]:
    """Every class that msgspec builds field by field, and every one it leaves to our hooks."""
    seen = set() if seen is None else seen
    match info:
        case tuple():
            for item in info:
                yield from _classes_in(item, seen)
        case msgspec.inspect.DataclassType(cls=cls, fields=fields):
            if cls not in seen:
                seen.add(cls)
                yield cls
                yield from _classes_in(tuple(field.type for field in fields), seen)
        case msgspec.inspect.CustomType(cls=cls):
            yield cls
        case msgspec.inspect.UnionType(types=types):
            yield from _classes_in(types, seen)
        case msgspec.inspect.Type():
            inner = ("item_type", "item_types", "key_type", "value_type", "type")
            found = msgspec.structs.asdict(info)
            yield from _classes_in(tuple(found[name] for name in inner if name in found), seen)
