"""Arguments of a tool call: the text that a model streams, and the object read when it comes back.

Sans-IO: text in; text, or an object that can be written, kept and shown to any template, out. A
server takes back whatever it has said, and a model says more than JSON: a raw line break in a
string, NaN, half a pair of surrogates, an object that was cut. Text that has one reading is
repaired; any other is kept whole under one key. Several templates walk through the arguments, so
that a bare string would fail in them, and an empty object would hide from the model what it did
wrong.
"""

import json
from typing import Any

import attrs

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


@attrs.define(eq=False)
class ArgumentsScanner:
    """Finds the end of one object in streamed text, and escapes raw control characters in strings.

    No JSON has the first character of `closing`, the mark behind a call, outside of its strings:
    there the object ends, and what is still open is closed.
    """

    closing: str = ""
    # Brackets that would close what is open; whether a string is open, a character escaped.
    _open: list[str] = attrs.field(factory=list, init=False)
    _in_string: bool = attrs.field(default=False, init=False)
    _escaped: bool = attrs.field(default=False, init=False)

    def push(self, text: str) -> tuple[str, int | None]:
        """Text to say of the new text, and where in it the object has ended, if it has."""
        said, begin = "", 0
        for place, character in enumerate(text):
            if self._in_string:
                if character < " ":  # a backslash before it stands there already
                    said += text[begin:place] + json.dumps(character)[1 + self._escaped : -1]
                    begin = place + 1
                self._in_string = self._escaped or character != '"'
                self._escaped = not self._escaped and character == "\\"
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._open.append("}" if character == "{" else "]")
            elif character in "}]":
                del self._open[-1:]
                if not self._open:
                    return said + text[begin : place + 1], place + 1
            elif self.closing and character == self.closing[0]:
                return said + text[begin:place] + "".join(reversed(self._open)), place
        return said + text[begin:], None
