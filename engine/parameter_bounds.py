"""Bounds of request parameters: the check that refuses a value, and what documents say of it.

Sans-IO: `sampling_params` declares each parameter with one of these, and `api` derives its reader
and its JSON Schema from the same. Python's own types alone are accepted: numpy's numbers are no
messages, and a bool or a NaN is no number of ours.
"""

from collections.abc import Sequence
from typing import Any, Protocol

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
    """Numbers in a range."""

    least: float
    most: float

    def check(self, name: str, value: Any) -> None:
        """Compare exactly, however long an integer is; a NaN is in no range."""
        if type(value) not in (int, float) or not self.least <= value <= self.most:
            raise InvalidParameter(name, f"must be a number from {self.least:g} to {self.most:g}")


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
