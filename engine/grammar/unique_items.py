"""Arrays of unique items, where the items are a few values: sets of enums, of booleans.

llguidance has no `uniqueItems`. An array whose items are k known values, n of them at most, is one
of the orders of n of them: each is written as an alternative, the last place of which may be any
value that is left. These are k! / (k - n + 1)!: 120 for a set of five, 90 for three of ten. Where
they are too many, and where the values are not known, the keyword stays, which is refused by name.
Sans-IO: pure functions.
"""

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterator
from functools import cached_property
from typing import Any, TypeGuard

import attrs

from .schema_patterns import target_of
from .subschemas import SILENT, join, values_of

# Alternatives of all arrays of a schema together, as an `anyOf` of objects that begin alike has all
# of them in one row of the parser, three items each: three sets of five were fine with a vocabulary
# of every three marks of JSON, four had too many items for some masks.
ALTERNATIVES_MAX = 360
# Schemas and values looked at for a whole schema, which has so many at most but may refer to the
# same ones again and again.
VISITS_MAX = 16_384
# References to references.
LEVELS_MAX = 16
_TYPES = ("null", "boolean", "number", "string", "array", "object")
_FINITE: dict[str, list[Any]] = {"boolean": [False, True], "null": [None]}
# Keywords that say which values an item may have.
_LISTING = {"const", "enum", "$ref", "anyOf", "oneOf"}
_PLACES = ("prefixItems", "additionalItems")
Schema = dict[str, Any]


@attrs.define(eq=False)
class UniqueItems:
    """Rewrites `uniqueItems` in the parts of one schema."""

    root: object
    alternatives_left: int = ALTERNATIVES_MAX
    visits_left: int = VISITS_MAX

    @cached_property
    def _is_moved(self) -> bool:
        """Whether some references count from another root than this schema's."""
        objects = (value for *_, value in values_of(self.root) if isinstance(value, dict))
        return any("$id" in each for each in objects if each is not self.root)

    def write_out(self, schema: Schema) -> None:
        """Replace the keyword in this schema, in place, where that can be done."""
        least, most = schema.get("minItems", 0), schema.get("maxItems", VISITS_MAX)
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]
        if schema.get("uniqueItems") is not True or not (_is_count(least) and _is_count(most)):
            return
        is_list = not any(name in schema for name in _PLACES)
        known = self._values(schema.get("items", True), 0) if is_list else None
        if known is None:
            if most <= 1:  # where it says nothing
                del schema["uniqueItems"]
            return
        most = min(most, len(known))
        orders = math.perm(len(known), max(most - 1, 0))
        if orders > self.alternatives_left:
            return
        self.alternatives_left -= orders
        for name in ("uniqueItems", "items", "minItems", "maxItems"):
            schema.pop(name, None)
        arrays = _orders(list(known.values()), least, most) if least <= most else ()
        others = {"type": [kind for kind in _TYPES if kind != "array"]}
        join(schema, {"anyOf": [*arrays, others]})

    def _values(self, schema: object, level: int) -> dict[Hashable, Any] | None:
        """The values that a schema allows, by what makes them equal; None if it may allow more."""
        self.visits_left -= 1
        if schema is False:
            return {}
        if not isinstance(schema, dict) or self.visits_left < 0 or level > LEVELS_MAX:
            return None
        if not schema.keys() <= {*_LISTING, "type", *SILENT}:
            return None
        kinds = schema.get("type", list(_TYPES))
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if _LISTING.isdisjoint(schema):
            if not all(isinstance(kind, str) and kind in _FINITE for kind in kinds):
                return None
            return self._equal([value for kind in kinds for value in _FINITE[kind]])
        listed = [self._listed(name, schema[name], level + 1) for name in _LISTING & schema.keys()]
        if (parts := [part for part in listed if part is not None]) != listed:
            return None
        return {
            key: value
            for key, value in parts[0].items()
            if all(key in part for part in parts) and _is_of(value, kinds)
        }

    def _listed(self, name: str, value: Any, level: int) -> dict[Hashable, Any] | None:
        match name, value:
            case "const", _:
                return self._equal([value])
            case "enum", list():
                return self._equal(value)
            case "$ref", str() if not self._is_moved:
                found, target = target_of(self.root, value)
                return self._values(target, level) if found else None
            case "anyOf" | "oneOf", list():
                listed = [self._values(part, level) for part in value]
                if (parts := [part for part in listed if part is not None]) != listed:
                    return None
                counts = Counter(key for part in parts for key in part)
                united = {key: each for part in parts for key, each in part.items()}
                once = name == "oneOf"
                return {key: each for key, each in united.items() if not once or counts[key] == 1}
        return None

    def _equal(self, values: list[Any]) -> dict[Hashable, Any]:
        self.visits_left -= len(values)
        return {_identity(value): value for value in reversed(values)}


def _orders(values: list[Any], least: int, most: int) -> Iterator[Schema]:
    """Arrays of so many of these values, each at one place at most.

    Places are a list of `items`, which llguidance reads in all drafts of JSON Schema.
    """
    if not most:
        yield {"type": "array", "maxItems": 0}
        return
    for first in itertools.permutations(range(len(values)), most - 1):
        left = [value for place, value in enumerate(values) if place not in first]
        yield {
            "type": "array",
            "items": [*({"enum": [values[place]]} for place in first), {"enum": left}],
            "additionalItems": False,
            "minItems": least,
        }


def _identity(value: Any) -> Hashable:
    """Equal for values that JSON Schema takes for equal: 1 and 1.0 are, 1 and true are not."""
    match value:
        case bool():
            return ("boolean", value)
        case list():
            return ("array", *map(_identity, value))
        case dict():
            return frozenset((name, _identity(each)) for name, each in value.items())
        case _:
            return value  # type: ignore[no-any-return]  # null, a number or a string


def _is_of(value: Any, kinds: list[Any]) -> bool:
    match value:
        case None:
            return "null" in kinds
        case bool():
            return "boolean" in kinds
        case int() | float():
            return "number" in kinds or ("integer" in kinds and value == math.floor(value))
        case str():
            return "string" in kinds
        case list():
            return "array" in kinds
        case _:
            return "object" in kinds


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
