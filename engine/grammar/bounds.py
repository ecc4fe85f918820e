"""Bounds of schemas and grammars, so that compiling them is bounded in time, memory and stack.

Sans-IO: text in, `InvalidParameter` or nothing out. llguidance counts fuel for most of its work,
but not for all (measured, version 1.9): a chain of 1000 references overflows the stack of its
thread, a multiple of a large number takes seconds and hundreds of megabytes, the complement of a
terminal may take for ever, and so may many patterns that a text has to match at once. What is left
after these checks is bounded by its own limits (`text.LIMITS`).
"""

import json
import math
import re
from decimal import Decimal
from typing import Any

import msgspec

from ..errors import InvalidParameter
from .numbers import inexact
from .schema_patterns import patterns_together
from .subschemas import values_of

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
# Parts of a terminal once its references are written out: 2^20 took 5 ms, and a grammar of 8 kB
# whose terminals each have the next one twice took 5 s.
TERMINAL_PARTS_MAX = 2**20
# Characters of a text in a reason.
EXCERPT_CHARACTERS = 40
# Patterns that one text has to match; 10 took 0.03 s, 14 took 8 s (`schema_patterns`).
PATTERNS_TOGETHER_MAX = 8
# Patterns of all objects, each compared with each other: 64 take 0.04 s, 400 took 26 s.
NAME_PATTERNS_MAX = 64
# Classes of characters in regular expressions that ignore case, as each is compared with all of
# Unicode: up to 14 ms.
CASELESS_CLASSES_MAX = 64

_FIELD = "structured_outputs"
_DEFINED = re.compile(r"([A-Z_][A-Z0-9_]*)(?:\[[^\]]*\]|\.-?\d+)*\s*$")
_TERMINAL = re.compile(r"\b[A-Z_][A-Z0-9_]*\b")
_IGNORES_CASE = re.compile(r"\(\?[a-z-]*i", re.IGNORECASE)
_CLASS = re.compile(r"\[|\\[pP]")
# The pieces of a Lark grammar as llguidance reads them: a regular expression may span lines, a
# string may not. What is begun and does not end is no piece, so each character is looked at once.
_PIECE = re.compile(
    r"""(?P<plain> [^"/<\#%&~:]+ | (?:\#|//)[^\n]* | "(?:\\.|[^"\\\n])*"
                 | /(?:\\.|[^/\\])+/[imslux]* | <[^<>\s]+> | %(?!json|llguidance) )
      | (?P<rule> : ) | (?P<operator> [&~] ) | (?P<options> %llguidance )
      | (?P<schema> %json[ \t\r\n]* )""",
    re.VERBOSE,
)


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


def check_pattern(pattern: str) -> None:
    """Raise `InvalidParameter` unless this regular expression is within the bounds."""
    _check_caseless(_caseless_classes(pattern))


def check_numbers(schema: object) -> None:
    """Raise `InvalidParameter` if it has a number that would come out as another one."""
    for number in inexact(schema):
        raise _refused(
            f"has the number {number!s:.40}, which the mask library does not hold exactly"
        )


def check_lark(text: str) -> None:
    """Raise `InvalidParameter` unless this Lark grammar is within the bounds."""
    place, rules, caseless = 0, 0, 0
    defined, terminals = "", dict[str, list[str]]()
    while place < len(text):
        piece = _PIECE.match(text, place)
        if piece is None:
            raise _refused(f"cannot be read from {text[place : place + EXCERPT_CHARACTERS]!r} on")
        place = piece.end()
        match piece.lastgroup:
            case "plain":
                flags = piece[0].rpartition("/")[2] if piece[0].startswith("/") else ""
                caseless += _caseless_classes(piece[0], ignores_case="i" in flags)
                if piece[0][0] not in '"/<#':
                    name = _DEFINED.search(piece[0]) if text[place : place + 1] == ":" else None
                    parts = piece[0][: name.start()] if name else piece[0]
                    terminals.setdefault(defined, []).extend(_TERMINAL.findall(parts))
                    defined = name[1] if name else defined
            case "rule":
                rules += 1
            case "operator":
                raise _refused(f"uses the operator {piece[0]}, which may take unbounded time")
            case "options":
                raise _refused("uses %llguidance: options are the server's")
            case "schema":
                schema, place = _embedded_schema(text, place)
                check_numbers(schema)
                caseless += _check_schema_value(schema)
    if rules > RULES_MAX:
        raise _refused(f"must have at most {RULES_MAX} rules, not {rules}")
    _check_caseless(caseless)
    _check_terminals(terminals)


def _check_terminals(references: dict[str, list[str]]) -> None:
    """Bound what terminals are made of; `references` has what the definition of each refers to."""
    parts = dict.fromkeys(references, 1)
    # Each round reaches one level further; what refers to itself is llguidance's to refuse.
    for _ in references:
        grown = {
            name: 1 + sum(parts.get(each, 1) for each in used) for name, used in references.items()
        }
        if grown == parts:
            return
        if max(grown.values()) > TERMINAL_PARTS_MAX:
            raise _refused(f"has terminals made of more than {TERMINAL_PARTS_MAX} parts")
        parts = grown


def _embedded_schema(text: str, begin: int) -> tuple[object, int]:
    """The JSON at a place of a grammar, and where it ends."""
    try:
        return _DECODER.raw_decode(text, begin)
    except RecursionError:
        raise _refused(f"has %json nested more than {DEPTH_MAX} deep") from None
    except ValueError as error:
        raise _refused(f"has %json that is not valid: {error}") from None


def _check_schema_value(schema: object) -> int:
    """The classes in it whose case is ignored: a grammar may have many schemas."""
    depth, references, multiple, names, caseless = 0, set(), 1, 0, 0
    for count, (level, keyword, name, value) in enumerate(values_of(schema), 1):
        if count > NODES_MAX:
            raise _refused(f"has more than {NODES_MAX} values")
        if level > DEPTH_MAX:
            raise _refused(f"is nested more than {DEPTH_MAX} deep")
        depth = max(depth, level)
        caseless += _caseless_classes(name)
        if isinstance(value, str):
            caseless += _caseless_classes(value)
        if keyword in ("$ref", "$dynamicRef") and isinstance(value, str):
            references.add(value)
        elif keyword == "patternProperties" and isinstance(value, dict):
            names += len(value)
        elif keyword != "multipleOf" or isinstance(value, bool):  # which Python takes for a number
            continue
        elif isinstance(value, int | float):
            multiple = math.lcm(multiple, _digits(value))
            if multiple > MULTIPLE_MAX:
                raise _refused(f"has multipleOf whose digits have no common {MULTIPLE_MAX}")
    if len(references) * depth > CHAIN_MAX:
        given = f"{len(references)} distinct references in a schema {depth} deep"
        raise _refused(f"has {given}; their product must be at most {CHAIN_MAX}")
    _check_caseless(caseless)
    if names > NAME_PATTERNS_MAX:
        raise _refused(f"has more than {NAME_PATTERNS_MAX} patternProperties")
    if patterns_together(schema, PATTERNS_TOGETHER_MAX) > PATTERNS_TOGETHER_MAX:
        most = f"{PATTERNS_TOGETHER_MAX} patterns and formats"
        raise _refused(f"joins schemas so that one text may have to match more than {most}")
    return caseless


def _caseless_classes(pattern: str, *, ignores_case: bool = False) -> int:
    if ignores_case or _IGNORES_CASE.search(pattern):
        return len(_CLASS.findall(pattern))
    return 0


def _check_caseless(classes: int) -> None:
    if classes > CASELESS_CLASSES_MAX:
        most = f"{CASELESS_CLASSES_MAX} classes of characters"
        raise _refused(f"ignores the case of {classes}, but at most of {most}")


def _digits(value: float) -> int:
    """The number without its point and what follows no digit: 0.25 is 25, 1e9 is 1."""
    digits = Decimal(repr(value)).normalize().as_tuple().digits
    return int("".join(map(str, digits))) or 1


def _refused(reason: str) -> InvalidParameter:
    return InvalidParameter(_FIELD, reason)
