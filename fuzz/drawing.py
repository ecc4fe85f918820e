"""Random values of declared types, and valid input spoiled a little at random.

Messages are drawn without a list of their fields: a class that gets a new field is drawn with it
from then on. Random bytes are refused by the first check that they meet; input that was valid a
moment ago, spoiled byte by byte or in its JSON, comes much further.
"""

import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import attrs

from ..engine.errors import InvalidParameter
from ..transports.array import Array
from ..transports.links.link_keys import KEY_BYTES, LinkKeys

# Small ones, ends of ranges, and what needs each width of msgpack; all fit 64 signed bits.
INTEGERS = (0, 1, 2, 3, 7, 127, 128, 255, 256, 65535, 65536, 2**31, 2**53 + 1, 2**63 - 1)
FLOATS = (0.0, 1.0, 0.5, -1.5, 1e-300, 1e300, 2.0**53)
TEXTS = ("", "a", "f0", "Größe", "你好", "🙂", "\0", "a\nb", "x" * 300)
ITEMS_MAX = 4
# Drawn by hand: their checks refuse nearly all bytes.
BY_HAND: dict[type, Callable[[Random], Any]] = {
    LinkKeys: lambda chance: LinkKeys(chance.randbytes(KEY_BYTES), chance.randbytes(KEY_BYTES)),
}
# A class whose own checks refuse most values is drawn with fewer and fewer of its optional fields.
TRIES_MAX = 10


def draw_message(chance: Random, message_type: type) -> Any:
    """An instance of an attrs class with every field drawn; its own checks have passed."""
    hints = _hints(message_type)
    share = 0.6
    for number in range(TRIES_MAX):
        values = {
            field.name: draw_value(chance, hints[field.name])
            for field in attrs.fields(message_type)
            if field.init and (field.default is attrs.NOTHING or chance.random() < share)
        }
        try:
            return message_type(**values)
        except (InvalidParameter, ValueError):
            share = 0.6 - 0.6 * number / (TRIES_MAX - 2)
    raise TypeError(f"{message_type.__name__} refuses whatever is drawn for its required fields")


@functools.cache
def _hints(message_type: type) -> dict[str, Any]:
    return typing.get_type_hints(message_type)


def draw_value(chance: Random, kind: Any) -> Any:
    """A value of this type annotation. Raises `TypeError` for one that no message has."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return draw_value(chance, chance.choice(arguments))
    if origin is list:
        return [draw_value(chance, arguments[0]) for _ in range(chance.randint(0, ITEMS_MAX))]
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(draw_value(chance, arguments[0]) for _ in range(chance.randint(0, ITEMS_MAX)))
    if origin is tuple:
        return tuple(draw_value(chance, argument) for argument in arguments)
    if origin is dict:
        return {draw_value(chance, arguments[0]): draw_value(chance, arguments[1])}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return chance.choice(list(kind))
    if kind in BY_HAND:
        return BY_HAND[kind](chance)
    if isinstance(kind, type) and attrs.has(kind):
        return draw_message(chance, kind)
    return _draw_plain(chance, kind)


def _draw_plain(chance: Random, kind: Any) -> Any:
    if kind is type(None):
        return None
    if kind is bool:
        return chance.random() < 0.5
    if kind is int:
        return chance.choice(INTEGERS)
    if kind is float:
        return chance.choice(FLOATS)
    if kind is str:
        return chance.choice(TEXTS)
    if kind is bytes:
        return chance.randbytes(chance.choice((0, 1, 32, 300)))
    if kind is Array:
        shape = (chance.randint(0, 3), chance.choice((1, 2, 8)))
        return Array("float32", shape, chance.randbytes(4 * shape[0] * shape[1]))
    raise TypeError(f"no values of {kind} are drawn here")


# Ends of ranges, signs, ASCII that means something to parsers, and UTF-8's forbidden bytes.
TELLING_BYTES = (*b'\x00\x01\x7f\x80\x81\xc0\xff\xf8\r\n"{}[],:0 -\\', 0xED, 0xA0)
TELLING_SIZES = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)
INSERTED_BYTES_MAX = 16


def mutate(chance: Random, data: bytes, *, times: int | None = None) -> bytes:
    """`data` with one to three spoilings, or so many."""
    for _ in range(chance.randint(1, 3) if times is None else times):
        spoil = chance.choice(_SPOILINGS)
        data = spoil(chance, data)
    return data


def _flip_bit(chance: Random, data: bytes) -> bytes:
    if not data:
        return data
    place = chance.randrange(len(data))
    return data[:place] + bytes((data[place] ^ 1 << chance.randrange(8),)) + data[place + 1 :]


def _set_byte(chance: Random, data: bytes) -> bytes:
    if not data:
        return data
    place = chance.randrange(len(data))
    return data[:place] + bytes((chance.choice(TELLING_BYTES),)) + data[place + 1 :]


def _set_size(chance: Random, data: bytes) -> bytes:
    """Something that may be a length becomes another one."""
    width = chance.choice((1, 2, 4, 8))
    if len(data) < width:
        return data
    place = chance.randrange(len(data) - width + 1)
    size: int = chance.choice(TELLING_SIZES) % 2 ** (8 * width)
    written = size.to_bytes(width, "little" if chance.random() < 0.5 else "big")
    return data[:place] + written + data[place + width :]


def _piece(chance: Random, data: bytes) -> tuple[int, int]:
    start = chance.randint(0, len(data))
    return start, min(len(data), start + chance.choice((1, 2, 4, 16, 64)))


def _remove(chance: Random, data: bytes) -> bytes:
    start, end = _piece(chance, data)
    return data[:start] + data[end:]


def _repeat(chance: Random, data: bytes) -> bytes:
    start, end = _piece(chance, data)
    return data[:end] + data[start:end] * chance.randint(1, 3) + data[end:]


def _insert(chance: Random, data: bytes) -> bytes:
    place = chance.randint(0, len(data))
    return data[:place] + chance.randbytes(chance.randint(1, INSERTED_BYTES_MAX)) + data[place:]


def _truncate(chance: Random, data: bytes) -> bytes:
    return data[: chance.randint(0, len(data))]


def _move(chance: Random, data: bytes) -> bytes:
    start, end = _piece(chance, data)
    rest = data[:start] + data[end:]
    place = chance.randint(0, len(rest))
    return rest[:place] + data[start:end] + rest[place:]


_SPOILINGS: Sequence[Callable[[Random, bytes], bytes]] = (
    _flip_bit,
    _flip_bit,
    _set_byte,
    _set_size,
    _remove,
    _repeat,
    _insert,
    _truncate,
    _move,
)

# ---- JSON

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63 - 1, 2**64, -(2**63), 0.5, -0.0, 1e308, 1e-9,
    "", " ", "a", "\0", "\ud7ff", "𝕏" * 3, "a" * 300, "../../etc/passwd", "__class__", "auto",
    [], {}, [[]], [{}], [None], [1, 2, 3], ["x"], {"type": "text"}, {"": ""}, {"a": {"b": []}},
    {"type": "input_text", "text": 1}, {"role": "user", "content": None}, [[[[[[[[]]]]]]]],
)  # fmt: skip


def mutate_json(chance: Random, value: Any, *, names: Sequence[str] = ()) -> Any:
    """A copy with one to three changes of structure; `names` are fields that may appear."""
    for _ in range(chance.randint(1, 3)):
        value = _change(chance, value, names)
    return value


def _change(chance: Random, value: Any, names: Sequence[str]) -> Any:
    """Walk down at random and change what is there."""
    if isinstance(value, dict) and value and chance.random() < 0.75:
        name = chance.choice(list(value))
        return {**value, name: _change(chance, value[name], names)}
    if isinstance(value, list) and value and chance.random() < 0.75:
        place = chance.randrange(len(value))
        return [*value[:place], _change(chance, value[place], names), *value[place + 1 :]]
    return chance.choice(_CHANGES)(chance, value, names)


def _replace(chance: Random, value: Any, names: Sequence[str]) -> Any:
    return chance.choice(ODD_VALUES)


def _shrink_or_grow(chance: Random, value: Any, names: Sequence[str]) -> Any:
    match value:
        case dict() if value:
            gone = chance.choice(list(value))
            return {name: item for name, item in value.items() if name != gone}
        case list() if value:
            return value * chance.choice((0, 2, 3))
        case str():
            return value * chance.choice((0, 2, 50))
        case bool():
            return not value
        case int():
            return value * chance.choice((-1, 10, 10**6)) + chance.choice((-1, 0, 1))
        case float():
            return value * chance.choice((-1.0, 1e3, 0.0)) if math.isfinite(value) else 0.0
        case _:
            return chance.choice(ODD_VALUES)


def _add_field(chance: Random, value: Any, names: Sequence[str]) -> Any:
    name = chance.choice([*names, "x", "", "type", "input"])
    kept = value if isinstance(value, dict) else {"value": value}
    return {**kept, name: chance.choice(ODD_VALUES)}


def _wrap(chance: Random, value: Any, names: Sequence[str]) -> Any:
    for _ in range(chance.choice((1, 1, 2, 100))):
        value = [value] if chance.random() < 0.5 else {"value": value}
    return value


_CHANGES: Sequence[Callable[[Random, Any, Sequence[str]], Any]] = (
    _replace,
    _replace,
    _shrink_or_grow,
    _shrink_or_grow,
    _add_field,
    _wrap,
)
