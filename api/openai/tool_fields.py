"""Reads which functions a model may call, whether it must, and what calls a conversation has.

Sans-IO: JSON values in, typed values or `ApiError` out. Chat completions wrap a function in an
object of its own, Responses do not; both become the same. Must not know how calls look in text.
"""

import re
from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from ...engine.errors import InvalidParameter
from ...engine.sampling_params import SamplingParams
from ...engine.structured_outputs import StructuredOutputs
from ...runtime.text.json_text import check_nesting, read_json
from ...runtime.text.tool_calls import CALLS_MAX, Tool, ToolChoice, forced_calls, strict_calls
from ..errors import bad_field, to_api_error, unsupported
from ..schema.fields import Fields, JsonObject
from ..schema.reader import Field, Flag, wrong_type

# OpenAI's bound, and more than any model is trained on.
TOOLS_MAX = 128
# OpenAI's rule for names of functions.
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)
_MISSING = "missing_required_parameter"
_NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}
_FUNCTION_SCHEMA: JsonObject = {
    "name": {"type": "string"},
    "description": {"type": "string"},
    "parameters": {"type": "object"},
    "strict": {"type": "boolean"},
}


@attrs.frozen
class Tools:
    """`tools`: functions; with `is_flat` as Responses have them."""

    is_flat: bool = False

    def read(self, value: object, path: str) -> list[Tool]:
        """See `schema.Kind`."""
        if not isinstance(value, list):
            raise wrong_type(path, "an array", value)
        if len(value) > TOOLS_MAX:
            raise bad_field(path, f"must have at most {TOOLS_MAX} tools")
        found: list[Tool] = []
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                raise wrong_type(f"{path}[{index}]", "an object", item)
            tool = self._read_one(Fields(item, f"{path}[{index}]"))
            if any(tool.name == other.name for other in found):
                raise bad_field(f"{path}[{index}]", f"has the name {tool.name} once more")
            found.append(tool)
        return found

    def _read_one(self, given: Fields) -> Tool:
        function = _function_of(given, is_flat=self.is_flat)
        name = _read_name(function)
        return Tool(
            name,
            _read_parameters(function),
            function.string("description") or "",
            function.boolean("strict") or False,
        )

    def schema(self) -> JsonObject:
        """See `schema.Kind`."""
        function: JsonObject = {"type": "object", "properties": _FUNCTION_SCHEMA}
        properties = _FUNCTION_SCHEMA if self.is_flat else {"function": function}
        items = {"type": "object", "properties": {"type": {"const": "function"}, **properties}}
        return {"type": "array", "maxItems": TOOLS_MAX, "items": items}


@attrs.frozen
class Choice:
    """What `tool_choice` says; `name` is that of the one function that must be called."""

    choice: ToolChoice
    name: str | None = None


@attrs.frozen
class ToolChoiceField:
    """`tool_choice`: a word, or one function; with `is_flat` as Responses have it."""

    is_flat: bool = False

    def read(self, value: object, path: str) -> Choice:
        """See `schema.Kind`."""
        if isinstance(value, str):
            if value not in list(ToolChoice):
                raise bad_field(path, f"must be one of {', '.join(ToolChoice)}, or a function")
            return Choice(ToolChoice(value))
        if not isinstance(value, dict):
            raise wrong_type(path, "a string or an object", value)
        function = _function_of(Fields(value, path), is_flat=self.is_flat)
        return Choice(ToolChoice.REQUIRED, _read_name(function))

    def schema(self) -> JsonObject:
        """See `schema.Kind`."""
        return {"anyOf": [{"type": "string", "enum": list(ToolChoice)}, {"type": "object"}]}


@attrs.frozen
class ToolUse:
    """The functions of one request. Without any, or with the choice `none`, nothing is called."""

    tools: tuple[Tool, ...] = ()
    choice: Choice = Choice(ToolChoice.AUTO)
    is_parallel: bool = True

    @property
    def is_on(self) -> bool:
        """Whether calls are read out of the answer."""
        return bool(self.tools) and self.choice.choice is not ToolChoice.NONE

    @property
    def calls_max(self) -> int | None:
        """So many calls at most in an answer; None: any number."""
        return None if self.is_parallel else 1

    @property
    def for_template(self) -> list[dict[str, Any]] | None:
        """What the model is shown."""
        return [tool.for_template() for tool in self.tools] if self.is_on else None

    @property
    def objects(self) -> list[JsonObject]:
        """The functions as a response object has them."""
        return [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description or None,
                "parameters": tool.parameters,
                "strict": tool.strict,
            }
            for tool in self.tools
        ]

    @property
    def choice_object(self) -> JsonObject | str:
        """The choice as a response object has it."""
        name = self.choice.name
        return self.choice.choice if name is None else {"type": "function", "name": name}

    def constrained(self, sampling: SamplingParams, form_field: str) -> SamplingParams:
        """These parameters with what must come. Raises `ApiError`; `form_field` asked for another
        form.
        """
        form = self.form()
        if form is None:
            return sampling
        if sampling.structured_outputs is not None:
            raise bad_field(form_field, "must not be together with tools that must be called")
        return attrs.evolve(sampling, structured_outputs=form)

    def form(self) -> StructuredOutputs | None:
        """What the answer must match. Raises `ApiError` of `tools` if it is too large."""
        if not self.is_on:
            return None
        tools = self.tools
        if self.choice.choice is ToolChoice.REQUIRED:
            name = self.choice.name
            tools = tools if name is None else tuple(t for t in tools if t.name == name)
            calls_max = CALLS_MAX if self.is_parallel and name is None else 1
            text = forced_calls(tools, calls_max=calls_max)
        elif any(tool.strict for tool in tools):
            text = strict_calls(tools)
        else:
            return None
        try:
            return StructuredOutputs.grammar(text)
        except InvalidParameter as error:
            raise to_api_error(error, {"structured_outputs": "tools"}) from None


NO_TOOLS = ToolUse()
TOOL_FIELDS: dict[str, Field] = {
    "tools": Field(Tools(), "Functions that the model may call."),
    "tool_choice": Field(ToolChoiceField(), "Whether it must, and which; a call is then valid."),
    "parallel_tool_calls": Field(Flag(), "Whether an answer may have several calls."),
}
FLAT_TOOL_FIELDS: dict[str, Field] = {
    **TOOL_FIELDS,
    "tools": Field(Tools(is_flat=True), TOOL_FIELDS["tools"].about),
    "tool_choice": Field(ToolChoiceField(is_flat=True), TOOL_FIELDS["tool_choice"].about),
}


def tool_use_of(values: Mapping[str, Any], *, has_tools: bool) -> ToolUse:
    """The three fields together. Raises `ApiError`; without `has_tools` for any tool that is on."""
    if values.keys().isdisjoint(TOOL_FIELDS):
        return NO_TOOLS
    tools: list[Tool] = values.get("tools") or []
    choice: Choice = values.get("tool_choice", Choice(ToolChoice.AUTO))
    if choice.choice is ToolChoice.REQUIRED and not tools:
        raise bad_field("tool_choice", "needs `tools`")
    if choice.name is not None and all(tool.name != choice.name for tool in tools):
        raise bad_field("tool_choice", f"names {choice.name}, which is not among `tools`")
    use = ToolUse(tuple(tools), choice, values.get("parallel_tool_calls", True))
    if use.is_on and not has_tools:
        raise unsupported("tools", "the chat template of this model knows no tools")
    return use


def read_calls(message: Fields) -> list[JsonObject]:
    """`tool_calls` of an assistant's message, as templates take them. Raises `ApiError`."""
    return [
        read_call(call.nested("function") or call) for call in message.objects("tool_calls") or []
    ]


def read_call(function: Fields) -> JsonObject:
    """One call: its name, and its arguments parsed, as templates take them. Raises `ApiError`."""
    name = _read_name(function)
    text = function.string("arguments") or "{}"
    try:
        arguments = read_json(text)
    except msgspec.DecodeError:
        raise bad_field(function.at("arguments"), "must be JSON") from None
    except ValueError as error:
        raise bad_field(function.at("arguments"), str(error)) from None
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _read_parameters(function: Fields) -> JsonObject:
    given = function.nested("parameters")
    if given is None:
        return dict(_NO_PARAMETERS)
    try:
        check_nesting(given.values)
    except ValueError as error:
        raise bad_field(given.path, str(error)) from None
    return dict(given.values)


def _function_of(given: Fields, *, is_flat: bool) -> Fields:
    if given.string("type") != "function":
        raise unsupported(given.at("type"), "must be `function`")
    function = given if is_flat else given.nested("function")
    if function is None:
        raise bad_field(given.at("function"), "is missing", _MISSING)
    return function


def _read_name(function: Fields) -> str:
    name = function.string("name")
    if name is None:
        raise bad_field(function.at("name"), "is missing", _MISSING)
    if _NAME.fullmatch(name) is None:
        raise bad_field(
            function.at("name"), "must be 1 to 64 ASCII letters, digits, underscores, dots, hyphens"
        )
    return name
