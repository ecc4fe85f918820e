"""Body of `POST /v1/messages`: its fields, and the chat request that it is.

Sans-IO: a JSON object in, `MessagesRequest` or a typed `ApiError` that names the field out. The
answer is generated as that of a chat completion, so the request is one: it differs in how it is
written down, and in how its answer is. Fields that steer Anthropic's own servers are ignored.
"""

import re
from typing import Any, ClassVar

import attrs

from ...engine.structured_outputs import StructuredOutputs
from ...runtime.text.answer_format import TEXT_ALONE, AnswerFormat
from ...runtime.text.json_text import check_nesting
from ...runtime.text.prompts import ChatPrompt
from ...runtime.text.tool_calls import Tool, ToolChoice
from ..errors import bad_field, unsupported
from ..openai.chat_requests import ChatRequest, with_tools
from ..openai.completion_requests import read_shared
from ..openai.fields.field_rules import MESSAGES_RULES
from ..openai.fields.form_fields import FORMS
from ..openai.fields.message_fields import TOOLS_MAX
from ..openai.fields.option_fields import RANK, RANK_FIELD
from ..openai.fields.responses_fields import MODEL, RUNTIME, RUNTIME_FIELD, STREAM, check_model
from ..openai.fields.sampling_fields import UNSERVED_FIELDS, sampling_field
from ..openai.template_arguments import EFFORT, template_arguments
from ..openai.tool_use import ToolChoiceValue, ToolSet, ToolUse, tool_use_of
from ..schema.fields import (
    FunctionKind,
    IntegerKind,
    JsonObject,
    ObjectFields,
    TextKind,
    missing,
    read_object,
    read_objects,
)
from ..schema.tables import IS_EMPTY, Body, Field, Nested, Unserved
from .turns import NAME_SCHEMA, SYSTEM, TURNS, MessageTurns, object_schema, read_tool_name

MESSAGES_KIND = "msg"
# Claude Code asks for models of these names, whatever is served.
CLAUDE = "claude-"
_CUSTOM = "custom"
# Tools whose schema the model itself would have to know, such as `web_search_20250305`: Anthropic's
# servers carry them out, or clients by a protocol of their own.
_HOSTED = re.compile("[a-z0-9_]{1,64}_20[0-9]{6}|mcp_toolset")
_CHOICES = {
    "auto": ToolChoice.AUTO,
    "any": ToolChoice.REQUIRED,
    "tool": ToolChoice.REQUIRED,
    "none": ToolChoice.NONE,
}

# ---- tools


@attrs.define
class _GivenTools:
    """Value of `tools`, before it is known which of those that are deferred were asked for."""

    tools: dict[str, Tool] = attrs.field(factory=dict)
    deferred: set[str] = attrs.field(factory=set)
    ignored: list[str] = attrs.field(factory=list)

    def add(self, given: ObjectFields) -> None:
        kind = given.string("type")
        if kind is not None and kind != _CUSTOM:
            if _HOSTED.fullmatch(kind) is None:
                raise unsupported(given.at("type"), "must be `custom`, or a tool of Anthropic's")
            self.ignored.append(kind)
            return
        name, schema = read_tool_name(given), given.nested("input_schema")
        if schema is None:
            raise missing(given.at("input_schema"))
        if name in self.tools:
            raise bad_field(given.path, f"has the same name as another tool, {name}")
        try:
            check_nesting(schema.values)
        except ValueError as error:
            raise bad_field(schema.path, str(error)) from None
        is_strict, about = given.boolean("strict") or False, given.string("description") or ""
        self.tools[name] = Tool(name, schema.values, about, is_strict)
        if given.boolean("defer_loading"):
            self.deferred.add(name)

    def shown(self, offered: dict[str, bool]) -> ToolSet:
        """Tools that the model is shown, after the conversation's own changes."""
        names = [name for name in self.tools if offered.get(name, name not in self.deferred)]
        return ToolSet(tuple(self.tools[name] for name in names), ignored=tuple(self.ignored))


def _read_tools(value: object, path: str) -> _GivenTools:
    found = _GivenTools()
    for given in read_objects(value, path, items_max=TOOLS_MAX, noun="tools"):
        found.add(given)
    return found


def _read_choice(value: object, path: str) -> tuple[ToolChoiceValue, bool]:
    """Read the tool choice, and whether several calls may come."""
    given = read_object(value, path)
    kind = given.required("type")
    if kind not in _CHOICES:
        raise bad_field(given.at("type"), f"must be one of {', '.join(_CHOICES)}")
    given.string("name")  # of any kind; only one takes it
    name = read_tool_name(given) if kind == "tool" else None
    is_parallel = not given.boolean("disable_parallel_tool_use")
    return ToolChoiceValue(_CHOICES[kind], name), is_parallel


_TOOL: JsonObject = {
    "anyOf": [
        object_schema(
            {"name": NAME_SCHEMA, "input_schema": {"type": "object"}},
            type={"const": _CUSTOM},
            description={"type": "string"},
            strict={"type": "boolean"},
            defer_loading={"type": "boolean"},
        ),
        object_schema({"type": {"type": "string", "pattern": f"^({_HOSTED.pattern})$"}}),
    ]
}
_PARALLEL: JsonObject = {"type": "boolean"}
_CHOICE: JsonObject = {
    "anyOf": [
        object_schema(
            {"type": {"const": "tool"}, "name": NAME_SCHEMA}, disable_parallel_tool_use=_PARALLEL
        ),
        object_schema(
            {"type": {"enum": [kind for kind in _CHOICES if kind != "tool"]}},
            name={"type": "string"},
            disable_parallel_tool_use=_PARALLEL,
        ),
    ]
}

# ---- thinking, effort, the form of the answer


def _read_format(value: object, path: str) -> StructuredOutputs:
    given = read_object(value, path)
    if given.required("type") != "json_schema":
        raise unsupported(given.at("type"), "must be `json_schema`")
    given.nested("schema")  # chat completions take a text as well
    form: StructuredOutputs | None = given.read("schema", FORMS["json"].read)
    if form is None:
        raise missing(given.at("schema"))
    return form


_FORMAT = Field(
    FunctionKind(
        _read_format,
        {
            "type": "object",
            "properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}},
            "required": ["type", "schema"],
        },
    ),
    "The answer must be JSON of this schema.",
)
_OUTPUT_CONFIG = Body({"effort": EFFORT, "format": _FORMAT})
_THINKING = Body(
    {
        "type": Field(
            TextKind(choices=("enabled", "adaptive", "disabled")),
            "`adaptive`: as the chat template has it. Left out it is `disabled`.",
            required=True,
        ),
        "budget_tokens": Field(IntegerKind(minimum=0), "No template knows one; it is ignored."),
        "display": Field(
            TextKind(choices=("summarized", "omitted")),
            "`omitted`: blocks of thinking have no text, but a signature that holds it.",
        ),
    }
)
# Fields without a place in an answer of this protocol, or with another name.
_NO_PLACE = frozenset(
    {"token_ids", "input_token_ids", "events", "inexact_ok", "top_k", "stop", "structured_outputs"}
)
_RUNTIME = Body(
    {name: RUNTIME.fields[name] for name in RUNTIME.fields if name not in _NO_PLACE},
    strict=True,
)
_RUNTIME_NAMES = {name: f"runtime.{name}" for name in _RUNTIME.fields}
COUNT_TOKENS = Body(
    {
        "messages": Field(TURNS, "The conversation; it ends with the user's turn.", required=True),
        "model": MODEL,
        "system": Field(SYSTEM, "The system prompt."),
        "tools": Field(
            FunctionKind(_read_tools, {"type": "array", "maxItems": TOOLS_MAX, "items": _TOOL}),
            "What the model may call; tools of Anthropic's servers are ignored.",
        ),
        "tool_choice": Field(
            FunctionKind(_read_choice, _CHOICE),
            "Whether it must call one, and which; a call is then valid.",
        ),
        "thinking": Field(Nested(_THINKING), "Whether the model thinks first, and says so."),
        "output_config": Field(Nested(_OUTPUT_CONFIG), "Effort, and the form of the answer."),
        "output_format": Field(_FORMAT.kind, "The older name of `output_config.format`."),
        "mcp_servers": Field(Unserved(IS_EMPTY, "servers of tools are the client's to ask")),
    }
)
MESSAGES_BODY = Body(
    {
        "max_tokens": attrs.evolve(sampling_field("max_tokens"), required=True),
        **COUNT_TOKENS.fields,
        "stream": STREAM,
        "temperature": sampling_field("temperature"),
        "top_p": sampling_field("top_p"),
        "top_k": sampling_field("top_k"),
        "stop_sequences": sampling_field("stop"),
        RANK: RANK_FIELD,
        "runtime": Field(Nested(_RUNTIME), RUNTIME_FIELD.about),
        **UNSERVED_FIELDS,
    },
    rules=MESSAGES_RULES,
)
# Fields that have the names of chat completions.
_SHARED = ("stream", "temperature", "top_p", "top_k", RANK, "runtime")


@attrs.frozen(kw_only=True)
class MessagesRequest(ChatRequest):
    """Messages request, validated."""

    kind: ClassVar[str] = MESSAGES_KIND
    # Blocks of thinking have no text.
    omits_thinking: bool = False

    @property
    def names(self) -> dict[str, str]:
        """How this request calls what `SamplingParams` calls otherwise; see `to_api_error`."""
        return {**_RUNTIME_NAMES, **super().names}


def _prompt_of(values: dict[str, Any], tools: ToolUse) -> ChatPrompt:
    turns: MessageTurns = values["messages"]
    system = [*values.get("system", ()), *turns.system]
    messages = [{"role": "system", "content": "\n".join(system)}] if system else []
    given: dict[str, Any] = {}
    thinking: str = values.get("thinking", {}).get("type", "disabled")
    if thinking != "adaptive":
        given["enable_thinking"] = thinking == "enabled"
    effort = values.get("output_config", {}).get("effort")
    if effort is not None:
        given["reasoning_effort"] = effort
    arguments = template_arguments(given, tools.answer_format)
    return ChatPrompt([*messages, *turns.messages], True, tools.for_template, arguments)


def _tool_use(values: dict[str, Any], answer_format: AnswerFormat) -> ToolUse:
    given: _GivenTools = values.get("tools", _GivenTools())
    found: dict[str, Any] = {"tools": given.shown(values["messages"].offered)}
    if "tool_choice" in values:
        found["tool_choice"], found["parallel_tool_calls"] = values["tool_choice"]
    return tool_use_of(found, answer_format)


def _check_name(model: str | None, served: str) -> None:
    if model is None or not model.startswith(CLAUDE):
        check_model(model, served)


def read_messages_request(
    body: JsonObject, *, model: str, answer_format: AnswerFormat = TEXT_ALONE
) -> MessagesRequest:
    """Validate one body; `model` is the served one, which answers in this format.

    Raises `ApiError`.
    """
    values = MESSAGES_BODY.read(body)
    _check_name(values.get("model"), model)
    shared = {name: values[name] for name in _SHARED if name in values}
    shared["stop"] = values.get("stop_sequences", [])
    form = values.get("output_config", {}).get("format", values.get("output_format"))
    if form is not None:
        shared["structured_outputs"] = form
    options, sampling = read_shared(shared, _RUNTIME_NAMES, max_tokens=values["max_tokens"])
    options = attrs.evolve(options, form_field="output_config.format", include_usage=True)
    tools = _tool_use(values, answer_format)
    options, sampling = with_tools(tools, options, sampling)
    thinking = values.get("thinking", {})
    return MessagesRequest(
        prompt=_prompt_of(values, tools),
        sampling=sampling,
        options=options,
        tools=tools,
        with_reasoning=thinking.get("type", "disabled") != "disabled",
        omits_thinking=thinking.get("display") == "omitted",
    )


def read_count_request(
    body: JsonObject, *, model: str, answer_format: AnswerFormat = TEXT_ALONE
) -> ChatPrompt:
    """The prompt of one body of `POST /v1/messages/count_tokens`; see `read_messages_request`."""
    values = COUNT_TOKENS.read(body)
    _check_name(values.get("model"), model)
    return _prompt_of(values, _tool_use(values, answer_format))
