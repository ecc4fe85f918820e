"""Bounds of request parameters: the check that refuses a value, and what documents say of it.

Sans-IO: `sampling_params` declares each parameter with one of these, and `api` derives its reader
and its JSON Schema from the same. Python's own types alone are accepted: numpy's numbers are no
messages, and a bool or a NaN is no number of ours.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import attrs

from .errors import InvalidParameter

# Larger ones do not fit the integers of the wire.
TOKEN_ID_MAX = 2**31 - 1


class Bound(Protocol):
    """Bound of a parameter's values; None, where it is the default, is not asked about."""

    def check(self, name: str, value: Any) -> None:
        """Raises `InvalidParameter`, naming the parameter and its bound."""


@attrs.frozen
class Whole:
    """Integers in a range, and perhaps one `also` that has a meaning of its own."""

    least: int
    most: int
    also: int | None = None

    def check(self, name: str, value: Any) -> None:
        if type(value) is not int or not (self.least <= value <= self.most or value == self.also):
            raise InvalidParameter(name, f"must be a whole number from {self.least} to {self.most}")


@attrs.frozen
class Number:
    """Numbers in a range, and perhaps one `also` that has a meaning of its own."""

    least: float
    most: float
    also: float | None = None

    def check(self, name: str, value: Any) -> None:
        """Compare exactly, however long an integer is; a NaN is in no range."""
        is_number = type(value) in (int, float)
        if not is_number or not (self.least <= value <= self.most or value == self.also):
            or_also = "" if self.also is None else f"{self.also:g}, or "
            reason = f"must be {or_also}a number from {self.least:g} to {self.most:g}"
            raise InvalidParameter(name, reason)


@attrs.frozen
class Seconds:
    """Times from now on: infinite ones never come, negative ones have passed."""

    def check(self, name: str, value: Any) -> None:
        if type(value) not in (int, float) or math.isnan(value):
            raise InvalidParameter(name, "must be a number of seconds")


@attrs.frozen
class Flag:
    """True or false."""

    def check(self, name: str, value: Any) -> None:
        if type(value) is not bool:
            raise InvalidParameter(name, "must be True or False")


@attrs.frozen
class TokenIds:
    """List of token ids; whether the vocabulary has them is checked with the model."""

    items_max: int
    items_min: int = 0

    def check(self, name: str, value: Any) -> None:
        if len(value) < self.items_min:
            raise InvalidParameter(name, "must not be empty")
        _check_count(name, value, self.items_max)
        _check_token_ids(name, value)


@attrs.frozen
class Biases:
    """List of pairs of a token id and a number from -`most` to `most`."""

    items_max: int
    most: float

    def check(self, name: str, value: Any) -> None:
        _check_count(name, value, self.items_max)
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in value):
            raise InvalidParameter(name, "must be pairs of a token id and a number")
        token_ids = [token_id for token_id, _ in value]
        _check_token_ids(name, token_ids)
        bias_bound = Number(-self.most, self.most)
        for _, bias in value:
            bias_bound.check(name, bias)
        if len(set(token_ids)) < len(token_ids):
            raise InvalidParameter(name, "must name a token id once")


@attrs.frozen
class Text:
    """A string, perhaps an empty one."""

    characters_max: int

    def check(self, name: str, value: Any) -> None:
        check_text(name, value)
        if len(value) > self.characters_max:
            raise InvalidParameter(name, f"must have at most {self.characters_max} characters")


def check_text(name: str, value: object) -> None:
    """Raises `InvalidParameter` for what is no string that a message could bring."""
    if not isinstance(value, str):
        raise InvalidParameter(name, "must be text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidParameter(name, f"is not Unicode: {error.reason}") from error


@attrs.frozen
class Texts:
    """List of strings, none of them empty or longer than `characters_max`."""

    items_max: int
    characters_max: int

    def check(self, name: str, value: Any) -> None:
        if len(value) > self.items_max:
            reason = f"must be at most {self.items_max} strings, not {len(value)}"
            raise InvalidParameter(name, reason)
        for text in value:
            if not isinstance(text, str) or not 0 < len(text) <= self.characters_max:
                reason = f"must be strings of 1 to {self.characters_max} characters"
                raise InvalidParameter(name, reason)


@attrs.frozen
class InstanceOf:
    """Values of one class, which checks itself."""

    cls: type

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, self.cls):
            raise InvalidParameter(name, f"must be {self.cls.__name__}")


def _check_token_ids(name: str, values: Sequence[int]) -> None:
    """Quick for many: a request may allow some ten thousand, on both sides of the wire."""
    is_sound = not values or (
        set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= TOKEN_ID_MAX
    )
    if not is_sound:
        raise InvalidParameter(name, "must be token ids of the model's vocabulary")


def _check_count(name: str, values: Sequence[object], most: int) -> None:
    if len(values) > most:
        raise InvalidParameter(name, f"must be at most {most}, not {len(values)}")


# ---- declarations

T = TypeVar("T")
_METADATA = "parameter"


@attrs.frozen
class Parameter:
    """Declaration of a parameter, beside its type and default.

    `neutral` is the value that changes nothing, of a parameter whose None leaves it to the model's
    `generation_config.json`; None for all others.
    """

    bound: Bound
    about: str = ""
    neutral: float | None = None


def declared(bound: Bound, about: str = "", neutral: float | None = None) -> dict[str, Parameter]:
    """A parameter's declaration, as the metadata of its attrs field."""
    return {_METADATA: Parameter(bound, about, neutral)}


def parameter(default: Any, bound: Bound, about: str = "", neutral: float | None = None) -> Any:
    """A field that is declared; its type is the annotation's."""
    return attrs.field(default=default, metadata=declared(bound, about, neutral))


class Declarations:
    """Declarations of one attrs class, each of whose fields is a parameter."""

    def __init__(self, cls: type) -> None:
        fields = attrs.fields(cls)
        self.parameters: Mapping[str, Parameter] = MappingProxyType(
            {field.name: field.metadata[_METADATA] for field in fields}
        )
        self.names = tuple(self.parameters)
        self.values_of = operator.attrgetter(*self.names)
        self._defaults = tuple(field.default for field in fields)
        self._checks = tuple(each.bound.check for each in self.parameters.values())

    def check(self, found: object) -> None:
        """Check the values of an instance. Raises `InvalidParameter`."""
        # A default is in range, and most are left alone: on both sides of the wire.
        for name, value, default, check in zip(
            self.names, self.values_of(found), self._defaults, self._checks, strict=True
        ):
            if value is not default:
                check(name, value)

    def changed(self, found: T, changes: Mapping[str, Any]) -> T:
        """Copy with these values, which are in range: checking all of them again costs most."""
        copy, put = object.__new__(type(found)), object.__setattr__
        for name, value in zip(self.names, self.values_of(found), strict=True):
            put(copy, name, value)
        for name, value in changes.items():
            put(copy, name, value)
        return copy
