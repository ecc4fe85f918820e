"""Tools as Responses have them: functions, custom tools, namespaces of both, and OpenAI's own.

Sans-IO: JSON values in, what the model is shown out, and for its calls the way back. A model is
shown functions alone:

    function     itself
    namespace    its tools, each under the name `namespace__tool`
    custom       a function of one string, `input`, which its call is given as. A regex is enforced;
                 a Lark grammar is described to the model, as JSON cannot hold one in a string
    all others   are carried out by OpenAI's servers, and ignored here
"""

import json
import re
from typing import Any

import attrs

from ...runtime.text.tool_calls import Tool, ToolChoice
from ..errors import bad_field, unsupported
from ..schema.fields import FunctionKind, JsonObject, ObjectFields, read_objects, wrong_type
from ..schema.tables import Field
from .fields.message_fields import (
    PARALLEL_CALLS,
    TOOLS_MAX,
    allowed_schema,
    choice_word,
    read_allowed,
    read_function,
    read_name,
)
from .message_schema import NAME_SCHEMA
from .tool_use import ALLOWED_TOOLS, ToolChoiceValue, ToolOrigin, ToolSet

# Tools that OpenAI's servers, or clients by a protocol of their own, carry out.
HOSTED = frozenset(
    (
        *("apply_patch", "code_interpreter", "computer", "computer_use_preview", "file_search"),
        *("image_generation", "local_shell", "mcp", "programmatic_tool_calling", "shell"),
        *("tool_search", "web_search", "web_search_2025_08_26", "web_search_preview"),
        "web_search_preview_2025_03_11",
    )
)
_KINDS = "`function`, `custom`, `namespace` or a tool of OpenAI's servers, which is ignored"
_INPUT_NAME = "input"


def shown_name(name: str, namespace: str | None) -> str:
    """Name for the model of a tool that may be in a namespace."""
    return name if namespace is None else f"{namespace.rstrip('_')}__{name}"


@attrs.define
class _Found:
    """The tools read so far, by the names that the model is shown."""

    tools: dict[str, Tool] = attrs.field(factory=dict)
    origins: dict[str, ToolOrigin] = attrs.field(factory=dict)
    ignored: list[str] = attrs.field(factory=list)

    def add(self, tool: Tool, origin: ToolOrigin, path: str) -> None:
        name = shown_name(origin.name, origin.namespace)
        if name in self.tools:
            raise bad_field(path, f"has the same name as another tool, {name}")
        self.tools[name] = attrs.evolve(tool, name=name)
        if origin != ToolOrigin(name):
            self.origins[name] = origin

    def read(self, given: ObjectFields, namespace: str | None = None) -> None:
        """Read a tool, or all of a namespace."""
        kind = given.required("type")
        if kind == "function":
            tool = read_function(given)
            self.add(tool, ToolOrigin(tool.name, namespace), given.path)
        elif kind == "custom":
            tool = _read_custom(given)
            self.add(tool, ToolOrigin(tool.name, namespace, is_custom=True), given.path)
        elif kind == "namespace" and namespace is None:
            name = read_name(given)
            for each in given.objects("tools"):
                self.read(each, name)
        elif kind in HOSTED:
            self.ignored.append(kind)
        else:
            raise unsupported(given.at("type"), f"must be {_KINDS}")


def _read_custom(given: ObjectFields) -> Tool:
    form = given.nested("format")
    about, argument = given.string("description") or "", dict[str, Any](type="string")
    if form is not None and form.string("type") == "grammar":
        syntax, definition = form.string("syntax"), form.required("definition")
        if syntax not in ("lark", "regex"):
            raise bad_field(form.at("syntax"), "must be `lark` or `regex`")
        if syntax == "regex":
            argument["pattern"] = f"^(?:{definition})$"
        else:
            about = f"{about}\n\nThe input matches this Lark grammar:\n{definition}".lstrip()
    elif form is not None and form.string("type") not in (None, "text"):
        raise bad_field(form.at("type"), "must be `text` or `grammar`")
    parameters = {
        "type": "object",
        "properties": {_INPUT_NAME: argument},
        "required": [_INPUT_NAME],
        "additionalProperties": False,
    }
    return Tool(read_name(given), parameters, about, strict=True)


def _read_tools(value: object, path: str) -> ToolSet:
    found = _Found()
    for given in read_objects(value, path, items_max=TOOLS_MAX, noun="tools"):
        found.read(given)
    if len(found.tools) > TOOLS_MAX:
        raise bad_field(path, f"must have at most {TOOLS_MAX} functions, in all namespaces")
    assert isinstance(value, list)
    return ToolSet(tuple(found.tools.values()), found.origins, tuple(found.ignored), tuple(value))


def _read_choice(value: object, path: str) -> ToolChoiceValue:
    if isinstance(value, str):
        return choice_word(value, path)
    if not isinstance(value, dict):
        raise wrong_type(path, "a string or an object", value)
    given = ObjectFields(value, path)
    kind = given.string("type")
    if kind == ALLOWED_TOOLS:
        return read_allowed(given, _chosen_name)
    name = _chosen_name(given)
    if name is None:
        raise unsupported(path, f"{kind} is carried out by OpenAI's servers; it is ignored here")
    return ToolChoiceValue(ToolChoice.REQUIRED, name)


def _chosen_name(given: ObjectFields) -> str | None:
    """The chosen tool as the model is shown it; None for one of OpenAI's servers."""
    kind = given.string("type")
    if kind in HOSTED:
        return None
    if kind not in ("function", "custom"):
        raise unsupported(given.at("type"), "must be `function` or `custom`")
    return shown_name(read_name(given), given.string("namespace"))


_TEXT_SCHEMA: JsonObject = {"type": "string"}


def _of_kind(kind: str, **properties: JsonObject) -> JsonObject:
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, "name": NAME_SCHEMA, **properties},
        "required": ["type", "name"],
    }


_FORMAT: JsonObject = {
    "anyOf": [
        {"type": "object", "properties": {"type": {"const": "text"}}},
        {
            "type": "object",
            "properties": {
                "type": {"const": "grammar"},
                "syntax": {"enum": ["lark", "regex"]},
                "definition": _TEXT_SCHEMA,
            },
            "required": ["type", "syntax", "definition"],
        },
    ]
}
_HOSTED: JsonObject = {
    "type": "object",
    "properties": {"type": {"enum": sorted(HOSTED)}},
    "required": ["type"],
}
_SINGLE = [
    _of_kind(
        "function",
        description=_TEXT_SCHEMA,
        parameters={"type": "object"},
        strict={"type": "boolean"},
    ),
    _of_kind("custom", description=_TEXT_SCHEMA, format=_FORMAT),
    _HOSTED,
]
_NAMESPACE = _of_kind("namespace", tools={"type": "array", "items": {"anyOf": _SINGLE}})
_SCHEMA: JsonObject = {
    "type": "array",
    "maxItems": TOOLS_MAX,
    "items": {"anyOf": [*_SINGLE, _NAMESPACE]},
}
_CHOSEN: JsonObject = {
    "type": "object",
    "properties": {"type": {"enum": ["function", "custom"]}, "name": NAME_SCHEMA},
    "required": ["type", "name"],
}
_ALLOWED: JsonObject = {
    "type": "object",
    "properties": {
        "type": {"const": ALLOWED_TOOLS},
        **allowed_schema({"anyOf": [_CHOSEN, _HOSTED]}),
    },
    "required": ["type", "mode", "tools"],
}
_CHOICE: JsonObject = {
    "anyOf": [{"type": "string", "enum": list(ToolChoice)}, _CHOSEN, _ALLOWED],
}
RESPONSE_TOOL_FIELDS = {
    "tools": Field(
        FunctionKind(_read_tools, _SCHEMA),
        "Functions and custom tools that the model may call, also in namespaces.",
    ),
    "tool_choice": Field(
        FunctionKind(_read_choice, _CHOICE),
        "Whether it must call one, and which; a call is then valid.",
    ),
    **PARALLEL_CALLS,
}

# ---- the input of custom tools


def custom_arguments(call: JsonObject) -> JsonObject | None:
    """The arguments that the model gave, of the call of a custom tool; None of a function's."""
    return {_INPUT_NAME: call[_INPUT_NAME]} if call["type"] == "custom_tool_call" else None


_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# The whole part of a JSON string: a high surrogate is not without what follows it.
_TEXT = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[0-9a-fA-F]{4}|(?=[^\\]|\\[^u])))*"
)


@attrs.define(eq=False)
class CustomInput:
    """The string in a call's arguments, `{"input": "…"}`, however they are cut."""

    _held: str = ""
    _is_begun: bool = False

    def push(self, piece: str) -> str:
        """Input in this piece of the arguments."""
        self._held += piece
        if not self._is_begun:
            head = _HEAD.match(self._held)
            if head is None:
                return ""
            self._held, self._is_begun = self._held[head.end() :], True
        match = _TEXT.match(self._held)
        assert match is not None, "it may be empty"
        self._held = self._held[match.end() :]
        return decoded(match[0])


def decoded(escaped: str) -> str:
    """The text of what is between the quotes of a JSON string; lone surrogates are replaced."""
    text: str = json.loads(f'"{escaped}"', strict=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
