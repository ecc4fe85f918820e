"""Tool calls in the format of Qwen3-Coder, whose arguments are plain text between tags.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

Sans-IO: text in, events out; however the text is cut, the events say the same. What a value means
follows from its parameter's schema: `5` is a number unless a string is wanted. An argument is said
when it is complete.
"""

import enum
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ...engine.grammar.schema_patterns import target_of
from .json_text import read_json
from .tool_calls import (
    AnswerEvent,
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    HeldCallParser,
    TextPiece,
    Tool,
    last_text,
    without_start_of,
)

OPENING, CLOSING = "<tool_call>", "</tool_call>"
# Models leave out the tag around it.
FUNCTION = "<function="
_SPACE = " \t\r\n"
_HEAD = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
VALUE_END = "</parameter>"
_FUNCTION_END = re.compile(r"\s*</function>")
# How templates spell what is no string, if they do not write JSON.
_SPELLINGS = {"True": "true", "False": "false", "None": "null"}
# Numbers of JSON too large for Python's.
_BEYOND = re.compile(r"(?<=\d)[eE][+-]?\d+|(?<=[1-9])\d{300,}")
# Schemas in schemas, and alternatives of one function's parameters, as far as they are followed.
DEPTH_MAX, SHAPES_MAX = 8, 16
_CHOICES = ("anyOf", "oneOf")
_TYPES: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}


class _XmlState(enum.Enum):
    TEXT = "text"  # outside of calls
    HEAD = "head"  # behind an opening, before the function's name
    ARGUMENTS = "arguments"  # inside of a function
    VALUE = "value"  # inside of an argument
    TAIL = "tail"  # behind it, where the closing stands


@attrs.frozen
class Shape:
    """Shape that arguments may have: their schemas by name, and the names that must come."""

    properties: Mapping[str, Any]
    required: frozenset[str]


@attrs.define(eq=False)
class XmlCallParser(HeldCallParser):
    """Parser of calls in XML: see `tool_calls.CallParser`."""

    tools: Sequence[Tool]
    _state: _XmlState = attrs.field(default=_XmlState.TEXT, init=False)
    # The open call: its function's parameters, and how many arguments were said.
    _parameters: Mapping[str, Any] = attrs.field(factory=dict, init=False)
    _shapes: Sequence[Shape] = attrs.field(factory=list, init=False)
    _said: int = attrs.field(default=0, init=False)
    # The open argument: its name, and how far its end was looked for.
    _name: str = attrs.field(default="", init=False)
    _searched: int = attrs.field(default=0, init=False)

    def finish(self) -> list[AnswerEvent]:
        held, self._held = self._held, ""
        match self._state:
            case _XmlState.HEAD:
                return []  # it may be one as far as it goes
            case _XmlState.TEXT if held.strip(_SPACE) or not self.count:
                return last_text(held, OPENING, FUNCTION)
            case _:
                return []

    def _advance(self, events: list[AnswerEvent]) -> bool:
        match self._state:
            case _XmlState.TEXT:
                return self._take_text(events)
            case _XmlState.HEAD:
                return self._take_head(events)
            case _XmlState.ARGUMENTS:
                return self._take_argument(events)
            case _XmlState.VALUE:
                return self._take_value(events)
            case _XmlState.TAIL:
                rest = self._held.lstrip(_SPACE)
                if CLOSING.startswith(rest[: len(CLOSING)]) and len(rest) < len(CLOSING):
                    return False
                self._held, self._state = rest.removeprefix(CLOSING), _XmlState.TEXT
                return True

    def _take_text(self, events: list[AnswerEvent]) -> bool:
        found = [place for tag in (OPENING, FUNCTION) if (place := self._held.find(tag)) >= 0]
        if found:
            said, rest = self._held[: min(found)].rstrip(_SPACE), self._held[min(found) :]
            self._opened_by = OPENING if rest.startswith(OPENING) else ""
            self._held, self._state = rest.removeprefix(OPENING), _XmlState.HEAD
        else:
            ends = (without_start_of(tag, self._held) for tag in (OPENING, FUNCTION))
            said = min(ends, key=len).rstrip(_SPACE)
            self._held = self._held[len(said) :]
        if said:
            events.append(TextPiece(said))
        return bool(found)

    def _take_head(self, events: list[AnswerEvent]) -> bool:
        head = _HEAD.match(self._held)
        if head is not None:
            events.append(CallBegun(self.count, head[1]))
            self.count += 1
            self._held, self._state, self._said = self._held[head.end() :], _XmlState.ARGUMENTS, 0
            named = [tool.parameters for tool in self.tools if tool.name == head[1]]
            self._parameters = named[0] if named else {}
            self._shapes = shapes_of(self._parameters)
            return True
        begin = self._held.lstrip(_SPACE)
        may_come = begin.startswith(FUNCTION) and not set(begin[len(FUNCTION) :]) & set("<>\n")
        if may_come or FUNCTION.startswith(begin):
            return False
        # The first character is text for sure, else it would be looked at again.
        kept = self._opened_by or self._held[0]
        events.append(TextPiece(kept))
        self._held, self._state = self._held[len(kept) - len(self._opened_by) :], _XmlState.TEXT
        return True

    def _take_argument(self, events: list[AnswerEvent]) -> bool:
        index = self.count - 1
        end = _FUNCTION_END.match(self._held)
        if end is not None:
            events += [ArgumentsPiece(index, "}" if self._said else "{}"), CallEnded(index)]
            self._held, self._state = self._held[end.end() :], _XmlState.TAIL
            return True
        argument = _PARAMETER.match(self._held)
        if argument is None:
            return self._skip_nonsense()
        self._name, self._held = argument[1], self._held[argument.end() :]
        self._state, self._searched = _XmlState.VALUE, 0
        return True

    def _take_value(self, events: list[AnswerEvent]) -> bool:
        end = self._held.find(VALUE_END, self._searched)
        if end < 0:  # a file may be in it: nothing is looked at again
            self._searched = max(0, len(self._held) - len(VALUE_END))
            return False
        text = self._held[:end].removeprefix("\n").removesuffix("\n")
        given = [
            each.properties[self._name] for each in self._shapes if self._name in each.properties
        ]
        value = _json_of(text, types_of({"anyOf": given}, self._parameters) if given else None)
        before = ", " if self._said else "{"
        said = f"{before}{json.dumps(self._name, ensure_ascii=False)}: {value}"
        events.append(ArgumentsPiece(self.count - 1, said))
        self._said += 1
        self._held, self._state = self._held[end + len(VALUE_END) :], _XmlState.ARGUMENTS
        return True

    def _skip_nonsense(self) -> bool:
        """Between arguments only tags mean something."""
        begin = self._held.lstrip(_SPACE)
        tags = ("<parameter=", "</function>")
        if any(tag.startswith(begin[: len(tag)]) for tag in tags):
            return False
        self._held = begin[1:]
        return True


def _json_of(text: str, types: set[str] | None) -> str:
    """JSON of a value that may have these types: its own text where that is JSON, else a string."""
    spelled = _SPELLINGS.get(text, text).strip(_SPACE)
    kinds = () if types == {"string"} else _types_in(spelled)
    is_json = bool(kinds) and (types is None or not types.isdisjoint(kinds))
    return spelled if is_json else json.dumps(text, ensure_ascii=False)


def _types_in(text: str) -> tuple[str, ...]:
    """Types of what the text is as JSON, of any size; none of a string, whose marks are its own."""
    try:
        value = read_json(text)
    except ValueError:
        try:
            value = read_json(_BEYOND.sub("", text))
        except ValueError:
            return ()
    return _TYPES.get(type(value), ())


# ---- parameters


def shapes_of(parameters: Mapping[str, Any]) -> list[Shape]:
    """The alternatives of a function's parameters, through references and joined schemas.

    What leads too deep, or into too many alternatives, is left out.
    """
    return _shapes(parameters, parameters, DEPTH_MAX) or [Shape({}, frozenset())]


def _shapes(root: Mapping[str, Any], schema: object, depth: int) -> list[Shape]:
    if not isinstance(schema, dict) or depth == 0:
        return []
    if "object" not in (types_of({"type": schema.get("type")}) or {"object"}):
        return []
    properties, required = schema.get("properties"), schema.get("required")
    own = Shape(
        properties if isinstance(properties, dict) else {},
        frozenset(n for n in required if isinstance(n, str))
        if isinstance(required, list)
        else frozenset(),
    )
    found = [own]
    groups: list[list[object]] = []
    if isinstance(reference := schema.get("$ref"), str):
        groups.append([target_of(root, reference)[1]])
    if isinstance(joined := schema.get("allOf"), list):
        groups += [[each] for each in joined]
    groups += [each for name in _CHOICES if isinstance(each := schema.get(name), list)]
    for group in groups:
        others = [shape for each in group for shape in _shapes(root, each, depth - 1)]
        found = [_joined(one, other) for one in found for other in others] or found
        found = found[:SHAPES_MAX]
    return found


def _joined(one: Shape, other: Shape) -> Shape:
    properties = {**other.properties, **one.properties}
    return Shape(properties, one.required | other.required)


def types_of(
    schema: object, root: Mapping[str, Any] | None = None, depth: int = DEPTH_MAX
) -> set[str] | None:
    """Names of the types that a value may have; None if its schema leaves that open.

    References are followed in `root`.
    """
    if not isinstance(schema, dict) or depth == 0:
        return None
    match schema.get("type"):
        case str(name):
            return {name}
        case list(names):
            return {name for name in names if isinstance(name, str)}
    if root is not None and isinstance(reference := schema.get("$ref"), str):
        return types_of(target_of(root, reference)[1], root, depth - 1)
    for name in _CHOICES:
        if isinstance(branches := schema.get(name), list):
            found = [types_of(branch, root, depth - 1) for branch in branches]
            known = [types for types in found if types is not None]
            return set().union(*known) if len(known) == len(found) else None
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return {name for value in values for name in _TYPES.get(type(value), ("string",))}
    return None


def choices_of(
    schema: object, root: Mapping[str, Any], depth: int = DEPTH_MAX
) -> list[object] | None:
    """Values that a schema lists; None if it does not list them."""
    if not isinstance(schema, dict) or depth == 0:
        return None
    match schema:
        case {"enum": list(values)}:
            return values
        case {"const": value}:
            return [value]
        case {"type": "null"}:
            return [None]
        case {"$ref": str(reference)}:
            return choices_of(target_of(root, reference)[1], root, depth - 1)
    for name in _CHOICES:
        if isinstance(branches := schema.get(name), list):
            found = [choices_of(branch, root, depth - 1) for branch in branches]
            known = [values for values in found if values is not None]
            return list(itertools.chain(*known)) if len(known) == len(found) else None
    return None
