"""Messages and tools of request bodies: the kinds of values they are read by.

Sans-IO: JSON values in, typed values or `ApiError` out. Chat completions wrap a function in an
object of its own, Responses do not; both become the same.
"""

from collections.abc import Callable
from typing import Any

from ....runtime.text.call_arguments import read_arguments
from ....runtime.text.json_text import check_nesting
from ....runtime.text.tool_calls import Tool, ToolChoice
from ...errors import bad_field, unsupported
from ...schema.fields import (
    FLAG,
    FunctionKind,
    JsonObject,
    ObjectFields,
    missing,
    read_array,
    read_objects,
    wrong_type,
)
from ...schema.tables import Field
from ..message_schema import MESSAGE_SCHEMA, NAME, NAME_SCHEMA, PARTS_MAX, ROLES, TEXT_PARTS
from ..template_arguments import with_reasoning
from ..tool_use import ALLOWED_TOOLS, ToolChoiceValue, ToolSet

# Chat templates know three roles; OpenAI's `developer` is their `system`.
TEMPLATE_ROLES = {"developer": "system"}
# Pulled out of the air: a conversation of a thousand turns is beyond every model's length, and a
# template must not render for seconds what the length then refuses.
MESSAGES_MAX = 8192
# OpenAI's bound, and more than any model is trained on.
TOOLS_MAX = 128
_NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}
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
