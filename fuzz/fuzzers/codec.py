"""Fuzzes the codec and the packing of frames with every message class there is.

Invariant: a message comes back equal; other bytes are decoded or refused as `MalformedMessage`.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random

import attrs

from ...engine.control_messages import ENGINE_TO_ROOT, ROOT_TO_ENGINE, EngineInit, EngineReady
from ...engine.messages import ENGINE_TO_FRONTEND, FRONTEND_TO_ENGINE
from ...engine.step_messages import CORE_TO_WORKER, WORKER_TO_CORE, WorkerInit, WorkerReady
from ...transports.array import ITEM_BYTES, Array, Frame
from ...transports.codec import (
    ARRAY_FRAME_BYTES,
    Codec,
    CodecLimits,
    MalformedMessage,
    pack_frames,
    unpack_frames,
)
from ...transports.control.handshake import HANDSHAKE_MESSAGES
from ..drawing import draw_message, mutate
from ..fuzzer import Fuzzer, each


@attrs.frozen
class Tensors:
    """Arrays inside and beside a message."""

    arrays: list[Array]


_DRAWN = (
    *HANDSHAKE_MESSAGES,
    *FRONTEND_TO_ENGINE,
    *ENGINE_TO_FRONTEND,
    *ROOT_TO_ENGINE,
    *ENGINE_TO_ROOT,
    *CORE_TO_WORKER,
    *WORKER_TO_CORE,
    EngineInit,
    EngineReady,
    WorkerInit,
    WorkerReady,
)
# Small limits, so that they are met; a large array still fits.
LIMITS = CodecLimits(bytes_max=4 * ARRAY_FRAME_BYTES, frames_max=4)
_CODEC = Codec(*_DRAWN, Tensors, limits=LIMITS)


@attrs.frozen
class Keep:
    """This message is encoded, packed, unpacked and decoded."""

    message: object


@attrs.frozen
class Spoiled:
    """Frames that are decoded, whatever they are."""

    frames: tuple[bytes, ...]


@attrs.frozen
class SpoiledPack:
    """This run of bytes is unpacked and decoded."""

    data: bytes


Event = Keep | Spoiled | SpoiledPack


def _draw_event(chance: Random) -> Event:
    """Messages, and frames that were one a moment ago."""
    message = _draw_any(chance)
    if chance.random() < 0.3:
        return Keep(message)
    frames = [bytes(frame) for frame in _CODEC.encode(message)]
    if chance.random() < 0.3:
        return SpoiledPack(mutate(chance, b"".join(map(bytes, pack_frames(frames)))))
    if chance.random() < 0.2:
        frames += [chance.choice(frames)] * chance.randint(1, 4)
    place = chance.randrange(len(frames))
    frames[place] = mutate(chance, frames[place])
    return Spoiled(tuple(frames))


def _draw_any(chance: Random) -> object:
    if chance.random() < 0.1:
        return Tensors([_draw_array(chance) for _ in range(chance.randint(0, 2))])
    return draw_message(chance, chance.choice(_DRAWN))


def _draw_array(chance: Random) -> Array:
    dtype = chance.choice(list(ITEM_BYTES))
    items = chance.choice((0, 1, 6, ARRAY_FRAME_BYTES // ITEM_BYTES[dtype]))
    shape = (items,) if chance.random() < 0.5 else (1, items, 1)
    return Array(dtype, shape, bytes(items * ITEM_BYTES[dtype]))


def check(events: Sequence[Event], codec: Codec) -> Counter[str]:
    """Decode each; whatever was decoded is a message of this codec, and stays the same."""
    reached: Counter[str] = Counter()
    for event in events:
        try:
            match event:
                case Keep(message=message):
                    frames = [bytes(frame) for frame in codec.encode(message)]
                    packed = b"".join(map(bytes, pack_frames(frames)))
                    assert codec.decode(unpack_frames(packed)) == message
                    reached["kept"] += 1
                case Spoiled(frames=spoiled):
                    _check_stable(codec, codec.decode(spoiled))
                    reached["spoiled and decoded"] += 1
                case SpoiledPack(data=data):
                    _check_stable(codec, codec.decode(unpack_frames(data)))
                    reached["spoiled pack and decoded"] += 1
        except MalformedMessage:
            assert not isinstance(event, Keep), "a good message is refused"
            reached["refused"] += 1
    return reached


def _check_stable(codec: Codec, message: object) -> None:
    """Check that a decoded message gives the same bytes again; NaN equals no NaN."""
    assert type(message) in codec.message_types
    once = [bytes(frame) for frame in codec.encode(message)]
    again = [bytes(frame) for frame in codec.encode(codec.decode(once))]
    assert once == again


class _Believing(Codec):
    """Planted: what is refused comes up as some other error."""

    def decode(self, frames: Sequence[Frame], room: int = 0) -> object:
        try:
            return super().decode(frames, room)
        except MalformedMessage as error:
            raise ValueError(str(error)) from error


class _Forgetful(Codec):
    """Planted: an output's last token is lost."""

    def decode(self, frames: Sequence[Frame], room: int = 0) -> object:
        message = super().decode(frames, room)
        ids = getattr(message, "token_ids", None)
        return attrs.evolve(message, token_ids=ids[:-1]) if ids else message  # type: ignore[misc]


FUZZER = Fuzzer[Event, Codec](
    name="codec",
    invariant="a message comes back equal; other bytes are decoded or refused as malformed",
    draw=each(_draw_event),
    check=check,
    target=_CODEC,
    faults={
        "refusals come up as foreign errors": _Believing(*_DRAWN, Tensors, limits=LIMITS),
        "a list of tokens loses its last": _Forgetful(*_DRAWN, Tensors, limits=LIMITS),
    },
    reaches=frozenset({"kept", "refused", "spoiled and decoded", "spoiled pack and decoded"}),
)
