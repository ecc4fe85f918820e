"""Says whether what was written for an option is of the option's type, before it is converted.

The parser itself is lenient: `8124.5` would be port 8124, and a number, a string and a boolean of a
settings file are all one to it. Must not know where values come from, nor what any option means.
"""

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, get_args, get_origin

_WHOLE = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
# What crosses to other processes has 64 bits, and so has at most so many digits.
_INTEGER_MAX = 2**63 - 1
_DIGITS_MAX = 24


def _is_whole(text: str) -> bool:
    is_number = len(text) <= _DIGITS_MAX and _WHOLE.fullmatch(text) is not None
    return is_number and abs(int(text)) <= _INTEGER_MAX


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# Booleans are read by the parser, which knows their words, and takes no other.
_TEXT_TESTS: Mapping[type, Callable[[str], bool]] = MappingProxyType(
    {int: _is_whole, float: _is_number}
)
_WORDS: Mapping[type, str] = MappingProxyType(
    {
        bool: "true or false",
        int: "a whole number of at most 64 bits",
        float: "a finite number",
        str: "text",
    }
)


def fault_of_text(hint: Any, text: str) -> str:
    """What is wrong with `text` for an option of this type, as the end of a sentence; "" if right.

    Of the command line, or the environment.
    """
    kind = _kind(hint)
    is_right = kind not in _TEXT_TESTS or _TEXT_TESTS[kind](text)
    return "" if is_right else f"must be {_WORDS[kind]}, not {text!r}"


def fault_of_value(hint: Any, value: object) -> str:
    """The same of a value that has a type already; for a text, which may be a secret, unquoted."""
    kind = _kind(hint)
    if kind not in _WORDS:
        return ""
    values = value if get_origin(hint) is tuple and isinstance(value, list) else [value]
    return next((fault for each in values if (fault := _fault_of_one(kind, each))), "")


def _fault_of_one(kind: type, value: object) -> str:
    is_right = type(value) is kind or (kind is float and type(value) is int)
    if is_right and (kind not in _TEXT_TESTS or _TEXT_TESTS[kind](str(value))):
        return ""
    return f"must be {_WORDS[kind]}" + ("" if kind is str else f", not {value!r}")


def _kind(hint: Any) -> Any:
    """Of an optional one what it is if given, of many what each of them is."""
    kinds = [each for each in get_args(hint) if each not in (type(None), Ellipsis)]
    return kinds[0] if len(kinds) == 1 else hint
