"""Lenient reader of tool-call arguments that a model wrote and a client sends back.

Sans-IO: text in, an object that can be written, kept and shown to any chat template out. A server
takes back whatever it has said, and a model says more than JSON: a raw line break in a string, NaN,
half a pair of surrogates, an object that was cut. Text that has one reading is repaired; any other
is kept whole under one key. Several templates walk through the arguments, so that a bare string
would fail in them, and an empty object would hide from the model what it did wrong.
"""

import json
from typing import Any

from .json_text import NESTING_MAX, check_nesting, read_json

# Key of a text that has no reading.
UNPARSED = "unparsed"
# Levels in an answer, as a client's own parser may take them: far from the end of the stack.
ANSWER_NESTING_MAX = 256


def read_arguments(text: str) -> dict[str, Any]:
    """The arguments as templates take them; a text without a reading is under `UNPARSED`."""
    found = repaired(text)
    return {UNPARSED: text} if found is None else found


def written_arguments(arguments: dict[str, Any]) -> str:
    """The text that `read_arguments` has read, but for spelling."""
    match arguments:
        case {"unparsed": str(text)} if len(arguments) == 1 and repaired(text) is None:
            return text
        case _:
            return json.dumps(arguments, ensure_ascii=False)


def shown_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """An object as templates take it: one that is nested too deep is a text under `UNPARSED`.

    Raises `ValueError` of one that cannot even be written.
    """
    try:
        check_nesting(arguments)
    except ValueError as error:
        try:
            return {UNPARSED: json.dumps(arguments, ensure_ascii=False)}
        except RecursionError:
            raise error from None
    return arguments


def repaired(text: str, nesting_max: int = NESTING_MAX) -> dict[str, Any] | None:
    """The object that the text means; None if it is no object, was cut or is nested deeper.

    Control characters in strings are taken as they are, numbers that JSON cannot say become text,
    half a pair of surrogates the replacement character. No text and null mean no arguments.
    """
    if not text:
        return {}
    try:
        value = read_json(text, nesting_max)
    except ValueError:
        value = _lenient(text, nesting_max)
        if value is None:
            return None
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def _lenient(text: str, nesting_max: int) -> object:
    try:
        found = json.loads(
            text, strict=False, parse_float=_number, parse_int=_number, parse_constant=_number
        )
        check_nesting(found, nesting_max)
        written = json.dumps(found, ensure_ascii=False)
        whole = written.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return read_json(whole, nesting_max)
    except (ValueError, RecursionError):
        return None


def _number(text: str) -> object:
    try:
        return read_json(text)
    except ValueError:
        return text
