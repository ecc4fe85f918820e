"""Messages, tools and output formats of request bodies: the kinds of values they are read by.

Sans-IO: JSON values in, typed values or `ApiError` out. Sizes are checked here; whether a schema or
grammar can be served is decided by the runtime. Chat completions wrap a function or a schema in an
object of its own, Responses do not (`is_flat`); both become the same.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...engine.errors import InvalidParameter
from ...engine.structured_outputs import CHOICES_MAX, GRAMMAR_CHARACTERS_MAX, StructuredOutputs
from ...runtime.text.call_arguments import read_arguments
from ...runtime.text.json_text import check_nesting
from ...runtime.text.tool_calls import Tool, ToolChoice
from ..errors import bad_field, to_api_error, unsupported
from ..schema.fields import (
    FLAG,
    TEXT,
    FunctionKind,
    JsonObject,
    ObjectFields,
    missing,
    read_array,
    read_object,
    read_objects,
    wrong_type,
)
from ..schema.tables import Field
from .message_schema import MESSAGE_SCHEMA, NAME, NAME_SCHEMA, PARTS_MAX, ROLES, TEXT_PARTS
from .template_arguments import with_reasoning
from .tool_use import ALLOWED_TOOLS, ToolChoiceValue, ToolSet

# Chat templates know three roles; OpenAI's `developer` is their `system`.
TEMPLATE_ROLES = {"developer": "system"}
# Pulled out of the air: a conversation of a thousand turns is beyond every model's length, and a
# template must not render for seconds what the length then refuses.
MESSAGES_MAX = 8192
# OpenAI's bound, and more than any model is trained on.
TOOLS_MAX = 128
_NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}
FORMATS = ("text", "json_object", "json_schema")
Message = dict[str, Any]

# ---- messages


def read_message(message: ObjectFields) -> Message:
    """Read a conversation item with role and text. Raises `ApiError`, naming the path."""
    role = message.required("role")
    if role not in ROLES:
        raise unsupported(message.at("role"), f"must be one of {', '.join(ROLES)}")
    for name in ("function_call", "audio"):
        if message.get(name):
            raise unsupported(message.at(name), "is not served")
    calls = [read_call(call) for call in message.objects("tool_calls")]
    if calls and role != "assistant":
        raise bad_field(message.at("tool_calls"), "is an assistant's")
    found: Message = {"role": TEMPLATE_ROLES.get(role, role)}
    names = ("tool_call_id", "refusal", "reasoning_content", "reasoning")
    call_id, refusal, *reasoning = [message.string(name) or "" for name in names]
    is_silent = message.get("content") is None and role == "assistant"
    if is_silent and refusal and not calls:
        return {**found, "content": refusal}
    found["content"] = "" if calls and is_silent else read_content(message)
    found |= {"tool_call_id": call_id} if role == "tool" else {}
    found |= {"tool_calls": calls} if calls else {}
    return with_reasoning(found, reasoning[0] or reasoning[1]) if role == "assistant" else found


def read_content(message: ObjectFields, name: str = "content") -> str:
    """The text of a message: a string, or text parts joined. Raises `ApiError`."""
    content, path = message.get(name), message.at(name)
    if isinstance(content, str):
        return content
    if content is None:
        raise missing(path)
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array of parts", content)
    pieces = []
    for part in read_objects(content, path, items_max=PARTS_MAX, noun="parts"):
        if part.string("type") == "refusal":
            pieces.append(part.required("refusal"))
            continue
        if part.string("type") not in TEXT_PARTS:
            raise unsupported(part.at("type"), "only text parts are supported")
        pieces.append(part.required("text"))
    return "".join(pieces)


def _read_messages(value: object, path: str) -> list[Message]:
    if not 1 <= len(read_array(value, path)) <= MESSAGES_MAX:
        raise bad_field(path, f"must not be empty, and have at most {MESSAGES_MAX} messages")
    return [read_message(item) for item in read_objects(value, path)]


# A conversation, as chat templates read it: at least one message of role and text.
MESSAGES = FunctionKind(
    _read_messages,
    {"type": "array", "minItems": 1, "maxItems": MESSAGES_MAX, "items": MESSAGE_SCHEMA},
)


# ---- tools

# Whether one of the allowed functions must be called.
ALLOWED_MODES = (ToolChoice.AUTO, ToolChoice.REQUIRED)
_FUNCTION_SCHEMA: JsonObject = {
    "name": NAME_SCHEMA,
    "description": {"type": "string"},
    "parameters": {"type": "object"},
    "strict": {"type": "boolean"},
}


def _read_tools(value: object, path: str) -> ToolSet:
    found: dict[str, Tool] = {}
    for given in read_objects(value, path, items_max=TOOLS_MAX, noun="tools"):
        tool = read_function(_function_of(given))
        if tool.name in found:
            raise bad_field(given.path, f"has the same name as another tool, {tool.name}")
        found[tool.name] = tool
    return ToolSet(tuple(found.values()))


def read_function(function: ObjectFields) -> Tool:
    """Read a function that the model may call. Raises `ApiError`."""
    name, parameters = read_name(function), _read_parameters(function)
    strict = function.boolean("strict") or False
    return Tool(name, parameters, function.string("description") or "", strict)


def choice_word(word: str, path: str) -> ToolChoiceValue:
    """A `tool_choice` that names no function. Raises `ApiError`."""
    if word not in list(ToolChoice):
        raise bad_field(path, f"must be one of {', '.join(ToolChoice)}, or a function")
    return ToolChoiceValue(ToolChoice(word))


def _read_choice(value: object, path: str) -> ToolChoiceValue:
    if isinstance(value, str):
        return choice_word(value, path)
    if not isinstance(value, dict):
        raise wrong_type(path, "a string or an object", value)
    given = ObjectFields(value, path)
    if given.string("type") == ALLOWED_TOOLS:
        if (allowed := given.nested(ALLOWED_TOOLS)) is None:
            raise missing(given.at(ALLOWED_TOOLS))
        return read_allowed(allowed, lambda tool: read_name(_function_of(tool)))
    return ToolChoiceValue(ToolChoice.REQUIRED, read_name(_function_of(given)))


def read_allowed(
    given: ObjectFields, name_of: Callable[[ObjectFields], str | None]
) -> ToolChoiceValue:
    """The mode and the functions that may be called. Raises `ApiError`.

    `name_of` gives None for a tool that is ignored.
    """
    mode = given.required("mode")
    if mode not in ALLOWED_MODES:
        raise bad_field(given.at("mode"), f"must be one of {', '.join(ALLOWED_MODES)}")
    names = [name_of(tool) for tool in given.objects("tools")]
    allowed = tuple(dict.fromkeys(name for name in names if name is not None))
    if not allowed:
        raise bad_field(given.at("tools"), "must name a function")
    return ToolChoiceValue(ToolChoice(mode), allowed=allowed)


def allowed_schema(tool: JsonObject) -> JsonObject:
    """Properties of what `read_allowed` reads."""
    tools: JsonObject = {"type": "array", "minItems": 1, "maxItems": TOOLS_MAX, "items": tool}
    return {"mode": {"enum": list(ALLOWED_MODES)}, "tools": tools}


_FUNCTION: JsonObject = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": _FUNCTION_SCHEMA, "required": ["name"]},
    },
    "required": ["type", "function"],
}
_ALLOWED: JsonObject = {
    "type": "object",
    "properties": {
        "type": {"const": ALLOWED_TOOLS},
        ALLOWED_TOOLS: {
            "type": "object",
            "properties": allowed_schema(_FUNCTION),
            "required": ["mode", "tools"],
        },
    },
    "required": ["type", ALLOWED_TOOLS],
}
# The kind of `tools`: functions that the model may call.
TOOLS = FunctionKind(_read_tools, {"type": "array", "maxItems": TOOLS_MAX, "items": _FUNCTION})
# The kind of `tool_choice`: a word, or one function.
TOOL_CHOICE = FunctionKind(
    _read_choice,
    {"anyOf": [{"type": "string", "enum": list(ToolChoice)}, _FUNCTION, _ALLOWED]},
)
PARALLEL_CALLS = {"parallel_tool_calls": Field(FLAG, "Whether an answer may have several calls.")}
# The three fields of tools, by the names of `tool_use.TOOL_FIELD_NAMES`.
TOOL_FIELDS = {
    "tools": Field(TOOLS, "Functions that the model may call."),
    "tool_choice": Field(TOOL_CHOICE, "Whether it must, and which; a call is then valid."),
    **PARALLEL_CALLS,
}


def read_call(call: ObjectFields) -> JsonObject:
    """Read one call as templates take it, whatever a model may have written. Raises `ApiError`."""
    given = call.nested("function") or call
    arguments = read_arguments(given.string("arguments") or "")
    function = {"name": given.required("name"), "arguments": arguments}
    found: JsonObject = {"type": "function", "function": function}
    return {**found, "id": call_id} if (call_id := call.string("id")) else found


def _read_parameters(function: ObjectFields) -> JsonObject:
    given = function.nested("parameters")
    if given is None:
        return dict(_NO_PARAMETERS)
    try:
        check_nesting(given.values)
    except ValueError as error:
        raise bad_field(given.path, str(error)) from None
    return dict(given.values)


def _function_of(given: ObjectFields) -> ObjectFields:
    if given.string("type") != "function":
        raise unsupported(given.at("type"), "must be `function`")
    function = given.nested("function")
    if function is None:
        raise missing(given.at("function"))
    return function


def read_name(function: ObjectFields) -> str:
    """The name of a function. Raises `ApiError`."""
    name = function.required("name")
    if NAME.fullmatch(name) is None:
        raise bad_field(
            function.at("name"), "must be 1 to 64 ASCII letters, digits, underscores, dots, hyphens"
        )
    return name


# ---- output formats

_SCHEMA: JsonObject = {"anyOf": [{"type": "object"}, {"type": "boolean"}, {"type": "string"}]}
_TEXT: JsonObject = {"type": "string", "maxLength": GRAMMAR_CHARACTERS_MAX}
_CHOICES: JsonObject = {
    "type": "array", "minItems": 1, "maxItems": CHOICES_MAX, "items": {"type": "string"}
}  # fmt: skip


def _form(
    make: Callable[[object, str], StructuredOutputs | None], schema: JsonObject
) -> FunctionKind:
    """The kind of one of vLLM's forms; None of it asks for nothing."""

    def read(value: object, path: str) -> StructuredOutputs | None:
        try:
            return make(value, path)
        except InvalidParameter as error:
            raise to_api_error(error, {"structured_outputs": path}) from None

    return FunctionKind(read, schema)


def _json(value: object, path: str) -> StructuredOutputs:
    if not isinstance(value, dict | bool | str):
        raise wrong_type(path, "a JSON schema", value)
    try:
        check_nesting(value)
    except ValueError as error:
        raise bad_field(path, str(error)) from None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return StructuredOutputs.json(text)


def _choice(value: object, path: str) -> StructuredOutputs:
    items = enumerate(read_array(value, path))
    return StructuredOutputs.choice([TEXT.read(item, f"{path}[{i}]") for i, item in items])


def _json_object(value: object, path: str) -> StructuredOutputs | None:
    return StructuredOutputs.json_object() if FLAG.read(value, path) else None


FORMS = {
    "json": _form(_json, _SCHEMA),
    "regex": _form(lambda value, path: StructuredOutputs.regex(TEXT.read(value, path)), _TEXT),
    "choice": _form(_choice, _CHOICES),
    "grammar": _form(lambda value, path: StructuredOutputs.grammar(TEXT.read(value, path)), _TEXT),
    "json_object": _form(_json_object, {"type": "boolean"}),
}


def _read_structured_outputs(value: object, path: str) -> StructuredOutputs | None:
    values = read_object(value, path).values
    given = {name: item for name, item in values.items() if item is not None}
    # vLLM's clients send all of its options; one that is off asks for nothing.
    unknown = [name for name in given if name not in FORMS and given[name] is not False]
    if unknown:
        reason = f"is not served; one of {', '.join(FORMS)} is"
        raise unsupported(f"{path}.{unknown[0][:200]}", reason)
    known = [name for name in given if name in FORMS]
    forms = [FORMS[name].read(given[name], f"{path}.{name}") for name in known]
    found: list[StructuredOutputs] = [form for form in forms if form is not None]
    if len(found) > 1:
        raise bad_field(path, f"must have only one of {', '.join(given)}")
    return found[0] if found else None


# vLLM's `structured_outputs`: an object with exactly one of the forms, or none.
STRUCTURED_OUTPUTS = FunctionKind(
    _read_structured_outputs,
    {
        "type": "object",
        "properties": {name: form.schema() for name, form in FORMS.items()},
        "maxProperties": 1,
    },
)


def _read_format(value: object, path: str, *, is_flat: bool = False) -> StructuredOutputs | None:
    """The form that a format asks for; None is plain text."""
    given = read_object(value, path)
    holder = given if is_flat else given.nested("json_schema")
    if holder is not None:
        holder.string("name")
        holder.boolean("strict")
    match given.string("type"):
        case None | "text":
            return None
        case "json_object":
            return StructuredOutputs.json_object()
        case "json_schema":
            if holder is None:
                raise missing(given.at("json_schema"))
            if holder.get("schema") is None:
                raise missing(holder.at("schema"))
            return holder.read("schema", FORMS["json"].read)
        case _:
            raise unsupported(given.at("type"), f"must be one of {', '.join(FORMATS)}")


def _read_text_options(value: object, path: str) -> StructuredOutputs | None:
    return read_object(value, path).read("format", partial(_read_format, is_flat=True))


_TYPE: JsonObject = {"type": {"type": "string", "enum": list(FORMATS)}}
_NAMED: JsonObject = {"name": {"type": "string"}, "strict": {"type": "boolean"}, "schema": {}}
# `response_format` of chat and completions, and `text` of Responses, of which the format counts.
ANSWER_FORMAT = FunctionKind(
    _read_format,
    {
        "type": "object",
        "properties": {**_TYPE, "json_schema": {"type": "object", "properties": _NAMED}},
    },
)
TEXT_OPTIONS = FunctionKind(
    _read_text_options,
    {
        "type": "object",
        "properties": {"format": {"type": "object", "properties": {**_TYPE, **_NAMED}}},
    },
)


def form_of(
    values: Mapping[str, Any], names: tuple[str, ...]
) -> tuple[str, StructuredOutputs] | None:
    """The one form among read values, and the field of `names` that asks for it.

    Raises `ApiError` if another one asks as well.
    """
    given = [(name, values[name]) for name in names if values.get(name) is not None]
    if len(given) > 1:
        raise bad_field(given[1][0], f"must not be together with `{given[0][0]}`")
    return given[0] if given else None
