"""What a JSON body may hold, as one table for each kind of body: it reads, documents and tests.

Sans-IO: a JSON object in, typed values or an `ApiError` that names the field out. What no table
names is never read, so the OpenAPI document that is made of the tables cannot lie, and tests take
their bad values from there. JSON null is an absent field. Must not know which fields a protocol
has, nor what becomes of the values.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs

from ...engine.errors import InvalidParameter
from ..errors import ApiError, bad_field, unsupported
from .fields import JsonObject, kind

# Python's integers have no end; JSON Schema readers expect those of 64 bits.
INTEGER_MAX = 2**63 - 1
# A float beyond is no exact integer any more, whatever it looks like.
FLOAT_INTEGER_MAX = 2**53


class Kind(Protocol):
    """One kind of value: how it is read, and how JSON Schema says it."""

    def read(self, value: object, path: str) -> Any:
        """The typed value of one that is not null. Raises `ApiError`, naming `path`."""

    def schema(self) -> JsonObject:
        """What is accepted, as JSON Schema 2020-12."""


def wrong_type(path: str, wanted: str, value: object) -> ApiError:
    """A 400 for a value of another type."""
    return bad_field(path, f"must be {wanted}, not {kind(value)}", "invalid_type")


def out_of_range(path: str, wanted: str) -> ApiError:
    """A 400 for a number out of range, with the code that later floors give the same fault."""
    return bad_field(path, f"must be {wanted}", InvalidParameter.code)


@attrs.frozen(kw_only=True)
class Text:
    """A string of at most so many characters; one of `choices` if there are any."""

    characters_max: int | None = None
    choices: tuple[str, ...] = ()

    def read(self, value: object, path: str) -> str:
        """See `Kind`."""
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        if self.choices and value not in self.choices:
            raise bad_field(path, f"must be one of {', '.join(self.choices)}")
        if self.characters_max is not None and len(value) > self.characters_max:
            raise bad_field(path, f"must have at most {self.characters_max} characters")
        return value

    def schema(self) -> JsonObject:
        """See `Kind`."""
        found: JsonObject = {"type": "string"}
        if self.choices:
            found["enum"] = list(self.choices)
        if self.characters_max is not None:
            found["maxLength"] = self.characters_max
        return found


@attrs.frozen
class Flag:
    """True or false."""

    def read(self, value: object, path: str) -> bool:
        """See `Kind`."""
        if not isinstance(value, bool):
            raise wrong_type(path, "true or false", value)
        return value

    def schema(self) -> JsonObject:
        """See `Kind`."""
        return {"type": "boolean"}


@attrs.frozen(kw_only=True)
class Integer:
    """A whole number from `minimum` to `maximum`; `3.0` is one."""

    minimum: int = -INTEGER_MAX
    maximum: int = INTEGER_MAX

    def read(self, value: object, path: str) -> int:
        """See `Kind`."""
        if isinstance(value, float) and value.is_integer() and abs(value) < FLOAT_INTEGER_MAX:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong_type(path, "an integer", value)
        if not self.minimum <= value <= self.maximum:
            raise out_of_range(path, f"from {self.minimum} to {self.maximum}")
        return value

    def schema(self) -> JsonObject:
        """See `Kind`."""
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


@attrs.frozen(kw_only=True)
class Number:
    """A finite number from `minimum` (or above it, when `is_above`) to `maximum`."""

    minimum: float
    maximum: float
    is_above: bool = False

    def read(self, value: object, path: str) -> float:
        """See `Kind`."""
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise wrong_type(path, "a number", value)
        # Python compares integers of any size with floats exactly; NaN is in no range.
        if not self.minimum <= value <= self.maximum or (self.is_above and value == self.minimum):
            since = "above" if self.is_above else "from"
            raise out_of_range(path, f"{since} {self.minimum:g} to {self.maximum:g}")
        return float(value)

    def schema(self) -> JsonObject:
        """See `Kind`."""
        name = "exclusiveMinimum" if self.is_above else "minimum"
        return {"type": "number", name: self.minimum, "maximum": self.maximum}


@attrs.frozen(kw_only=True)
class Texts:
    """An array of strings; one string counts as an array of one."""

    items_max: int
    characters_max: int

    def read(self, value: object, path: str) -> list[str]:
        """See `Kind`."""
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
        """See `Kind`."""
        item = {"type": "string", "minLength": 1, "maxLength": self.characters_max}
        return {"anyOf": [item, {"type": "array", "maxItems": self.items_max, "items": item}]}


@attrs.frozen(kw_only=True)
class TokenIds:
    """An array of token ids; what the vocabulary allows is checked later, by who knows it."""

    items_max: int
    items_min: int = 0
    maximum: int = 2**31 - 1

    def read(self, value: object, path: str) -> list[int]:
        """See `Kind`."""
        if not isinstance(value, list):
            raise wrong_type(path, "an array", value)
        if not value and self.items_min:
            raise bad_field(path, "must not be empty")
        if len(value) > self.items_max:
            raise bad_field(path, f"must have at most {self.items_max} items")
        if all(type(item) is int for item in value):
            if value and not (min(value) >= 0 and max(value) <= self.maximum):
                raise bad_field(path, f"must have token ids from 0 to {self.maximum}")
            return value
        wrong = next(index for index, item in enumerate(value) if type(item) is not int)
        raise wrong_type(f"{path}[{wrong}]", "an integer", value[wrong])

    def schema(self) -> JsonObject:
        """See `Kind`."""
        items = {"type": "integer", "minimum": 0, "maximum": self.maximum}
        bounds = {"minItems": self.items_min, "maxItems": self.items_max}
        return {"type": "array", **bounds, "items": items}


Harmless = Callable[[object], bool]


@attrs.frozen
class Unserved:
    """A field that we know and do not serve: refused when it asks for something, else ignored."""

    is_harmless: Harmless
    reason: str

    def read(self, value: object, path: str) -> None:
        """See `Kind`; there is never anything to use."""
        if not self.is_harmless(value):
            raise unsupported(path, self.reason)

    def schema(self) -> JsonObject:
        """See `Kind`: any value, since what is harmless has no shape."""
        return {"x-unserved": self.reason}


@attrs.frozen
class Nested:
    """An object with a table of its own."""

    body: "Body"

    def read(self, value: object, path: str) -> dict[str, Any]:
        """See `Kind`."""
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        return self.body.read(value, path)

    def schema(self) -> JsonObject:
        """See `Kind`."""
        return self.body.schema()


@attrs.frozen
class Field:
    """One field of a table: its kind, and a sentence about it for the document."""

    kind: Kind
    about: str = ""
    required: bool = attrs.field(default=False, kw_only=True)

    def schema(self) -> JsonObject:
        """As JSON Schema, with the sentence."""
        return {**self.kind.schema(), **({"description": self.about} if self.about else {})}


@attrs.frozen
class Body:
    """The table of one object. Unknown fields are ignored, or refused when `strict`."""

    fields: Mapping[str, Field]
    strict: bool = attrs.field(default=False, kw_only=True)
    _required: tuple[str, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        required = tuple(name for name, field in self.fields.items() if field.required)
        object.__setattr__(self, "_required", required)

    def read(self, values: JsonObject, path: str = "") -> dict[str, Any]:
        """The typed values of the fields that were sent. Raises `ApiError` for the first fault."""
        prefix = f"{path}." if path else ""
        found = {}
        fields = self.fields
        for name, value in values.items():
            field = fields.get(name)
            if field is None:
                if self.strict:
                    raise bad_field(
                        prefix + name[:200], "is not a known field", "unknown_parameter"
                    )
            elif value is not None:
                typed = field.kind.read(value, prefix + name)
                if typed is not None:
                    found[name] = typed
        for name in self._required:
            if name not in found:
                raise bad_field(prefix + name, "is missing", "missing_required_parameter")
        return found

    def schema(self) -> JsonObject:
        """As JSON Schema."""
        found: JsonObject = {
            "type": "object",
            "properties": {name: field.schema() for name, field in self.fields.items()},
        }
        if self._required:
            found["required"] = list(self._required)
        if self.strict:
            found["additionalProperties"] = False
        return found


# ---- values that ask for nothing


def is_empty(value: object) -> bool:
    """Harmless: an empty array, object or string, false or zero."""
    return not value


def one_of(*harmless: object) -> Harmless:
    """Harmless: one of these values (compared with their types: true is not 1)."""
    return lambda value: any(type(value) is type(h) and value == h for h in harmless)


def never(value: object) -> bool:
    """Whatever is given asks for something."""
    return False
