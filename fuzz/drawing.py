"""Draws values of declared types at random: messages for codecs, without a list of their fields.

A message class that gets a new field is drawn with it from then on. Must not know codecs.
"""

import enum
import functools
import types
import typing
from random import Random
from typing import Any

import attrs

from ..engine.errors import InvalidParameter
from ..transports.array import Array

# Small ones, ends of ranges, and what needs each width of msgpack; all fit 64 signed bits.
INTEGERS = (0, 1, 2, 3, 7, 127, 128, 255, 256, 65535, 65536, 2**31, 2**53 + 1, 2**63 - 1)
FLOATS = (0.0, 1.0, 0.5, -1.5, 1e-300, 1e300, 2.0**53)
TEXTS = ("", "a", "f0", "Größe", "你好", "🙂", "\0", "a\nb", "x" * 300)
ITEMS_MAX = 4
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
