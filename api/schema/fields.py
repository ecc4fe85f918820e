"""Kinds of JSON values: how each is read, typed, checked, and described as JSON Schema.

Sans-IO: JSON in, typed values or an `ApiError` that names the field out. JSON null is an absent
field, as OpenAI's SDKs send it. Tables of fields are made of kinds (`field_tables`); an object
whose shape is not fixed is read field by field (`Fields`).
"""

import codecs
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import attrs
import msgspec

from ...engine.errors import InvalidParameter
from ..errors import ApiError, bad_field

JsonObject = dict[str, object]
# Opening ones, in strings as well: five megabytes of JSON quoted in a prompt have half of that.
BRACKETS_MAX = 2**18
# Two for each key and string: 50 ms of keys. Those that are escaped within a text do not count.
QUOTES_MAX = 2**18
# 50 ms of numbers of five digits, 16 of one; the ids of a million tokens, and some more. They count
# within a text, too, where each but for a run of them is a token: no model takes so many.
COMMAS_MAX = 2**20 + 2**16
# No shorter body has more of anything than its bound.
COUNTED_FROM_BYTES = 2**18
# Python's integers have no end; JSON Schema readers expect those of 64 bits.
INTEGER_MAX = 2**63 - 1
# A float beyond is no exact integer any more, whatever it looks like.
FLOAT_INTEGER_MAX = 2**53
_TYPE_NAMES = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    dict: "an object",
    list: "an array",
    type(None): "null",
}
# The parser wants six characters behind the first half of a pair, and takes fewer for a cut.
_ENDS_IN_HALF_A_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}.{0,5}\Z", re.DOTALL)
# A bound from here on is that of the wire, of which a client need not know.
BOUND_MIN = 2**31 - 1
Value = TypeVar("Value", covariant=True)
Read = TypeVar("Read")


def decode_object(data: bytes) -> JsonObject:
    """Parse one JSON object. Raises `ApiError` (400 `invalid_json`); nesting is bounded.

    It holds the loop, in a thread as well, as the parser keeps the interpreter's lock: 16 MiB of
    text take 8 ms, but of numbers 110 ms, of keys 0.5 s, of empty objects 2.5 s; hence bounds by
    which none takes over 60 ms. What is bounded is counted wherever it stands, which takes no time.
    """
    # A mark that Windows writes in front may be ignored (RFC 8259).
    data = data.removeprefix(codecs.BOM_UTF8)
    _check_counts(data)
    try:
        value: object = msgspec.json.decode(data)
    except msgspec.DecodeError as error:  # its words name the byte
        reason = str(error).removeprefix("JSON is malformed: ")
        text = data.decode("utf-8", "replace")
        if "truncated" in reason and _ENDS_IN_HALF_A_PAIR.search(text):
            reason = "half of an escaped utf-16 surrogate pair"
        raise ApiError(400, f"The body is not valid JSON: {reason}", "invalid_json") from None
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise ApiError(400, "The body is not valid JSON", "invalid_json") from None
    if not isinstance(value, dict):
        reason = f"The body must be a JSON object, not {type_name(value)}"
        raise ApiError(400, reason, "invalid_json")
    return value


def _check_counts(body: bytes) -> None:
    """Raises `ApiError` for a body of too many values."""
    if len(body) <= COUNTED_FROM_BYTES:
        return
    found = (
        (body.count(b"{") + body.count(b"["), BRACKETS_MAX, "opening brackets"),
        # A quote within a text is counted by its backslash.
        (body.count(b'"') - body.count(b'\\"'), QUOTES_MAX, "quotation marks"),
        (body.count(b","), COMMAS_MAX, "commas"),
    )
    for count, most, name in found:
        if count > most:
            raise ApiError(400, f"The body has over {most} {name}", "invalid_json")


def type_name(value: object) -> str:
    """The JSON name of a value's type, with its article."""
    return _TYPE_NAMES.get(type(value), "something else")


# ---- refusals


def wrong_type(path: str, wanted: str, value: object) -> ApiError:
    """A 400 for a value of another type."""
    return bad_field(path, f"must be {wanted}, not {type_name(value)}", "invalid_type")


def out_of_range(path: str, wanted: str) -> ApiError:
    """A 400 for a number out of range, with the code that later floors give the same fault."""
    return bad_field(path, f"must be {wanted}", InvalidParameter.code)


def missing(path: str) -> ApiError:
    """A 400 for a field that must be there."""
    return bad_field(path, "is missing", "missing_required_parameter")


# ---- kinds of values


class Kind(Protocol[Value]):
    """Kind of value: how it is read, and its JSON Schema."""

    def read(self, value: object, path: str) -> Value:
        """The typed value of one that is not null. Raises `ApiError`, naming `path`."""

    def schema(self) -> JsonObject:
        """JSON Schema 2020-12 of accepted values."""


@attrs.frozen(kw_only=True)
class TextKind:
    """A string of at most so many characters; one of `choices` if there are any."""

    characters_max: int | None = None
    choices: tuple[str, ...] = ()

    def read(self, value: object, path: str) -> str:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        if self.choices and value not in self.choices:
            raise bad_field(path, f"must be one of {', '.join(self.choices)}")
        if self.characters_max is not None and len(value) > self.characters_max:
            raise bad_field(path, f"must have at most {self.characters_max} characters")
        return value

    def schema(self) -> JsonObject:
        found: JsonObject = {"type": "string"}
        if self.choices:
            found["enum"] = list(self.choices)
        if self.characters_max is not None:
            found["maxLength"] = self.characters_max
        return found


@attrs.frozen
class FlagKind:
    """True or false."""

    def read(self, value: object, path: str) -> bool:
        if not isinstance(value, bool):
            raise wrong_type(path, "true or false", value)
        return value

    def schema(self) -> JsonObject:
        return {"type": "boolean"}


@attrs.frozen(kw_only=True)
class IntegerKind:
    """A whole number from `minimum` to `maximum`; `3.0` is one."""

    minimum: int = -INTEGER_MAX
    maximum: int = INTEGER_MAX

    def read(self, value: object, path: str) -> int:
        if isinstance(value, float) and value.is_integer() and abs(value) < FLOAT_INTEGER_MAX:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong_type(path, "an integer", value)
        if not self.minimum <= value <= self.maximum:
            is_low = value < self.minimum and self.maximum >= BOUND_MIN
            bounds = f"from {self.minimum} to {self.maximum}"
            raise out_of_range(path, f"at least {self.minimum}" if is_low else bounds)
        return value

    def schema(self) -> JsonObject:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


@attrs.frozen(kw_only=True)
class NumberKind:
    """A finite number from `minimum` to `maximum`."""

    minimum: float
    maximum: float

    def read(self, value: object, path: str) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise wrong_type(path, "a number", value)
        # Python compares integers of any size with floats exactly; NaN is in no range.
        if not self.minimum <= value <= self.maximum:
            raise out_of_range(path, f"from {self.minimum:g} to {self.maximum:g}")
        return float(value)

    def schema(self) -> JsonObject:
        return {"type": "number", "minimum": self.minimum, "maximum": self.maximum}


@attrs.frozen(kw_only=True)
class TextsKind:
    """An array of strings; one string counts as an array of one."""

    items_max: int
    characters_max: int

    def read(self, value: object, path: str) -> list[str]:
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            raise wrong_type(path, "a string or an array of strings", value)
        if len(value) > self.items_max:
            raise bad_field(path, f"must have at most {self.items_max} items")
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise wrong_type(f"{path}[{index}]", "a string", item)
            if not 1 <= len(item) <= self.characters_max:
                raise bad_field(
                    f"{path}[{index}]", f"must have 1 to {self.characters_max} characters"
                )
        return value

    def schema(self) -> JsonObject:
        item = {"type": "string", "minLength": 1, "maxLength": self.characters_max}
        return {"anyOf": [item, {"type": "array", "maxItems": self.items_max, "items": item}]}


@attrs.frozen
class FunctionKind:
    """A kind of its own: a function that reads it, and its schema."""

    read: Callable[[object, str], Any]
    _schema: JsonObject

    def schema(self) -> JsonObject:
        return self._schema


# ---- objects without a table


def read_object(value: object, path: str) -> "ObjectFields":
    """An object with its path. Raises `ApiError`."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    return ObjectFields(value, path)


def read_array(value: object, path: str) -> list[Any]:
    """An array. Raises `ApiError`."""
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    return value


def read_objects(
    value: object, path: str, *, items_max: float = math.inf, noun: str = "items"
) -> Iterator["ObjectFields"]:
    """An array of objects, each with its own path. Raises `ApiError`."""
    items = read_array(value, path)
    if len(items) > items_max:
        raise bad_field(path, f"must have at most {items_max} {noun}")
    return (read_object(item, f"{path}[{index}]") for index, item in enumerate(items))


@attrs.frozen
class ObjectFields:
    """JSON object and the path that led to it (empty at the top)."""

    values: JsonObject
    path: str = ""

    def at(self, name: str) -> str:
        """The path of one field of this object."""
        return f"{self.path}.{name}" if self.path else name

    def get(self, name: str) -> object:
        """The raw value; None when it is absent or null."""
        return self.values.get(name)

    def read(self, name: str, read: Callable[[object, str], Read]) -> Read | None:
        """The typed value, or None when it is absent or null. Raises `ApiError`."""
        value = self.values.get(name)
        return None if value is None else read(value, self.at(name))

    def string(self, name: str) -> str | None:
        """A string, or None when absent. Raises `ApiError`."""
        return self.read(name, TEXT.read)

    def required(self, name: str) -> str:
        """A string that must be there. Raises `ApiError`."""
        text = self.string(name)
        if text is None:
            raise missing(self.at(name))
        return text

    def boolean(self, name: str) -> bool | None:
        """A boolean, or None when absent. Raises `ApiError`."""
        return self.read(name, FLAG.read)

    def nested(self, name: str) -> "ObjectFields | None":
        """A nested object, or None when absent. Raises `ApiError`."""
        return self.read(name, read_object)

    def objects(self, name: str) -> "Iterable[ObjectFields]":
        """An array of objects, each with its own path; none when absent. Raises `ApiError`."""
        return self.read(name, read_objects) or ()


TEXT, FLAG = TextKind(), FlagKind()
