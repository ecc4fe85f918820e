"""Numbers of JSON schemas, as far as llguidance holds them exactly.

llguidance (1.9) holds numbers as f64 and writes them in the shortest decimals that round to them;
in ranges of integers it casts them to i64. So a constant of 9007199254740993 would come out as
another number, a bound would be another one, and what rounds to -2^63 overflows its stack, which
ends the process. Here a bound is moved inward to the next number that both readings agree on, so
that each answer satisfies the bound as it was written; any other number that is not exact is
refused. Sans-IO: pure functions.
"""

import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeGuard

# Every integer up to it is an f64.
INTEGER_MAX = 2**53
# The largest f64 below 2^63; beyond it an i64 is cut.
NUMBER_MAX = 2**63 - 1024
# Bounds of f64 and f32, which say nothing of a number: generators write them for each float field.
_LIMITS = (1.7976931348623157e308, 3.4028234663852886e38, 3.40282347e38, 3.4028235e38)
# Multiples of 128 000 are exact in both readings up to 2^63, and 512 apart as f64.
_STEPS_MAX = 512
# Lower and upper bounds, and those that exclude their own value.
_BOUNDS = {
    "minimum": ("minimum", True, False),
    "exclusiveMinimum": ("minimum", True, True),
    "maximum": ("maximum", False, False),
    "exclusiveMaximum": ("maximum", False, True),
}
# The library adds one to such a bound of integers, in f64.
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")
# Counts that nothing exceeds.
_COUNTS_MAX = ("maxLength", "maxItems", "maxProperties", "maxContains")


def is_exact(number: float) -> bool:
    """Whether llguidance holds this very number, and writes it."""
    if not math.isfinite(number) or abs(number) > NUMBER_MAX:
        return False
    if abs(number) <= INTEGER_MAX:
        return True
    return Decimal(repr(float(number))) == number == int(float(number))


def inexact(value: object) -> Iterator[float]:
    """The numbers in any JSON that are not exact."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case bool():
                continue
            case int() | float() as number if not is_exact(number):
                yield number
            case dict() as members:
                yield from filter(_is_huge, map(members.get, _EXCLUSIVE))
                waiting += members.values()
            case list() as items:
                waiting += items


def exact_bounds(schema: dict[str, Any]) -> None:
    """Move the bounds of this schema, in place, to numbers that are exact; drop empty ones.

    A bound that nothing can satisfy stays as it is.
    """
    for name in _COUNTS_MAX:
        if _is_huge(count := schema.get(name)) and count > 0:
            del schema[name]
    is_integer = _is_integer(schema.get("type"))
    for name, (keyword, is_lower, is_strict) in _BOUNDS.items():
        bound = schema.get(name)
        if not _is_huge(bound):
            continue
        if not is_integer and abs(bound) in _LIMITS and (bound < 0) == is_lower:
            del schema[name]
        elif (moved := _inward(bound, is_lower=is_lower, is_strict=is_strict)) is not None:
            del schema[name]
            other = schema.get(keyword)  # of the bound that excludes, the one that does not
            values = [moved, other] if isinstance(other, int | float) else [moved]
            schema[keyword] = max(values) if is_lower else min(values)


def _inward(bound: float, *, is_lower: bool, is_strict: bool) -> int | None:
    """The next exact integer inside the bound, or None if there is none."""
    sign = 1 if is_lower else -1
    least = Fraction(bound) * sign
    if least > NUMBER_MAX:
        return None
    number = float(max(least, Fraction(-NUMBER_MAX)))
    for _ in range(_STEPS_MAX):
        inside = Fraction(number) > least or (not is_strict and Fraction(number) == least)
        if inside and is_exact(number) and number.is_integer():
            return int(number) * sign
        number = math.nextafter(number, math.inf)
    return None


def _is_huge(bound: object) -> TypeGuard[float]:
    if isinstance(bound, bool) or not isinstance(bound, int | float):
        return False
    return abs(bound) >= INTEGER_MAX


def _is_integer(kind: object) -> bool:
    kinds = kind if isinstance(kind, list) else [kind]
    return "integer" in kinds and "number" not in kinds
