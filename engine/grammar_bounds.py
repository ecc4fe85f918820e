"""What a schema or grammar may contain, so that compiling it is bounded in time, memory and stack.

Sans-IO: text in, `InvalidParameter` or nothing out. llguidance counts fuel for most of its work,
but not for all (measured, version 1.9): a chain of 1000 references overflows the stack of its
thread, a multiple of a large number takes seconds and hundreds of megabytes, and the complement of
a terminal may take for ever. What is left after these checks is bounded by its own limits
(`grammar_text.LIMITS`). Must not know llguidance, fields of protocols or tokens.
"""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec

from .errors import InvalidParameter

# Containers in containers; the deepest in use have about 20, llguidance refuses 128.
DEPTH_MAX = 64
# Containers and values; a schema of 500 properties has about 2000.
NODES_MAX = 16_384
# Distinct references × depth bounds how deep a chain of references leads: 900 levels were fine in
# a stack of 8 MiB, 1000 were not. 100 models of depth 8 fit.
CHAIN_MAX = 1024
# Digits that multiples have together, as their least common one: an automaton has so many states.
MULTIPLE_MAX = 10_000
# A chain of 2000 rules was fine in a stack of 8 MiB, 3000 were not.
RULES_MAX = 512

_FIELD = "structured_outputs"
# What may hold any character: strings, regular expressions, comments.
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')
_RULE = re.compile(r"^\s*[?!]?[A-Za-z_]\w*[^:\n]*:", re.MULTILINE)
_OPTIONS = "%llguidance"
_EMBEDDED_SCHEMA = re.compile(r"%json\b\s*")


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


# Python's own decoder would take NaN and infinities.
_DECODER = json.JSONDecoder(parse_constant=_no_json)


def check_schema(text: str) -> dict[str, Any] | bool:
    """The JSON schema in a text. Raises `InvalidParameter` unless it is within the bounds."""
    try:
        schema = msgspec.json.decode(text)
    except RecursionError:
        raise _refused(f"is nested more than {DEPTH_MAX} deep") from None
    except ValueError as error:
        raise _refused(f"is not valid JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise _refused("must be a JSON schema: an object, true or false")
    _check_schema_value(schema)
    return schema


def check_lark(text: str) -> None:
    """Raise `InvalidParameter` unless this Lark grammar is within the bounds."""
    bare = _LITERAL.sub(lambda found: "_" * len(found[0]), text)
    for operator in "&~":
        if operator in bare:
            raise _refused(f"uses the operator {operator}, which may take unbounded time")
    if _OPTIONS in bare:
        raise _refused(f"uses {_OPTIONS}: options are the server's")
    rules = len(_RULE.findall(bare))
    if rules > RULES_MAX:
        raise _refused(f"must have at most {RULES_MAX} rules, not {rules}")
    for found in _EMBEDDED_SCHEMA.finditer(bare):
        try:
            schema, _ = _DECODER.raw_decode(text, found.end())
        except RecursionError:
            raise _refused(f"has %json nested more than {DEPTH_MAX} deep") from None
        except ValueError as error:
            raise _refused(f"has %json that is not valid: {error}") from None
        _check_schema_value(schema)


def _check_schema_value(schema: object) -> None:
    depth, references, multiple = 0, set(), 1
    for count, (level, name, value) in enumerate(_walk(schema), 1):
        if count > NODES_MAX:
            raise _refused(f"has more than {NODES_MAX} values")
        if level > DEPTH_MAX:
            raise _refused(f"is nested more than {DEPTH_MAX} deep")
        depth = max(depth, level)
        if name in ("$ref", "$dynamicRef") and isinstance(value, str):
            references.add(value)
        elif name != "multipleOf" or isinstance(value, bool):  # which Python takes for a number
            continue
        elif isinstance(value, int | float):
            multiple = math.lcm(multiple, _digits(value))
            if multiple > MULTIPLE_MAX:
                raise _refused(f"has multipleOf whose digits have no common {MULTIPLE_MAX}")
    if len(references) * depth > CHAIN_MAX:
        given = f"{len(references)} distinct references in a schema {depth} deep"
        raise _refused(f"has {given}; their product must be at most {CHAIN_MAX}")


def _walk(schema: object) -> Iterator[tuple[int, str, object]]:
    """All values with their depth and, in objects, their names; the first is the schema itself."""
    waiting: list[tuple[int, str, object]] = [(1, "", schema)]
    while waiting:
        level, name, value = waiting.pop()
        yield level, name, value
        if isinstance(value, dict):
            waiting += [(level + 1, name, item) for name, item in value.items()]
        elif isinstance(value, list):
            waiting += [(level + 1, "", item) for item in value]


def _digits(value: float) -> int:
    """The number without its point and what follows no digit: 0.25 is 25, 1e9 is 1."""
    digits = Decimal(repr(value)).normalize().as_tuple().digits
    return int("".join(map(str, digits))) or 1


def _refused(reason: str) -> InvalidParameter:
    return InvalidParameter(_FIELD, reason)
