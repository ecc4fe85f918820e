"""Fields of `POST /v1/responses` and `response.create`, and the `runtime` object of all bodies.

Sans-IO: tables, and kinds of values that only these bodies have. With this file go two more: the
kinds of messages, tools and output formats (`message_fields`), and the sampling parameters
(`engine/sampling_params`), each of which is a field of `runtime`. How fields depend on each other
is at the end.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ....engine.sampling_params import LOGPROBS_MAX
from ....runtime.text.call_arguments import read_arguments
from ...errors import ApiError, bad_field, unsupported
from ...schema.fields import (
    FLAG,
    TEXT,
    FunctionKind,
    IntegerKind,
    JsonObject,
    NumberKind,
    ObjectFields,
    TextKind,
    TextsKind,
    missing,
    read_object,
    read_objects,
    wrong_type,
)
from ...schema.tables import IS_EMPTY, NEVER, Body, Field, Nested, Unserved
from ..message_schema import MESSAGE_SCHEMA
from ..response_tools import RESPONSE_TOOL_FIELDS, custom_arguments, shown_name
from ..template_arguments import ENABLE_THINKING, REASONING, TEMPLATE_ARGUMENTS, with_reasoning
from .field_rules import RESPONSES_ALTERNATIVES, RESPONSES_RULES
from .form_fields import TEXT_OPTIONS
from .message_fields import MESSAGES_MAX, Message, read_content, read_message
from .option_fields import OPTION_FIELDS, RANK, RANK_FIELD, RESPONSES_OPTIONS
from .sampling_fields import SAMPLING_FIELDS, UNSERVED_FIELDS, TokenIdsKind, sampling_field

# OpenAI has eight things to include; of those that we know, this one has an effect.
INCLUDES_MAX, INCLUDE_CHARACTERS_MAX = 64, 128
INCLUDE_LOGPROBS = "message.output_text.logprobs"
# OpenAI's bounds on metadata.
METADATA_PAIRS_MAX = 16
METADATA_KEY_CHARACTERS_MAX = 64
METADATA_VALUE_CHARACTERS_MAX = 512
# A day, as a deadline has; the server's own limit is refused with its name.
KEEP_S_MAX = 86_400.0
# No model of today takes more; each id is looked at in a loop.
PROMPT_TOKENS_MAX = 2**20

_KEEP_S = NumberKind(minimum=0, maximum=KEEP_S_MAX)

# ---- the `runtime` object

MODEL = Field(TEXT, "The served model; absent means it.")
STREAM = Field(FLAG, "Answer with server-sent events as tokens come.")
RUNTIME = Body(
    {
        "token_ids": Field(FLAG, "Deltas carry token ids and the index of the first."),
        "input_token_ids": Field(
            TokenIdsKind(items_min=1, items_max=PROMPT_TOKENS_MAX),
            "Replaces the text of the prompt.",
        ),
        **{name: field for name, field in OPTION_FIELDS.items() if name not in RESPONSES_OPTIONS},
        "keep_s": Field(
            FunctionKind(_KEEP_S.read, {**_KEEP_S.schema(), "x-maximum": "resume-keep"}),
            "So long it goes on without a reader; without, it is aborted.",
        ),
        **SAMPLING_FIELDS,
    },
    strict=True,
)
RUNTIME_FIELD = Field(Nested(RUNTIME), "Our extensions, all opt-in.")
_RESPONSES_RUNTIME = Body(
    {
        **RUNTIME.fields,
        **{name: OPTION_FIELDS[name] for name in RESPONSES_OPTIONS},
        "chat_template_kwargs": TEMPLATE_ARGUMENTS,
        "enable_thinking": ENABLE_THINKING,
    },
    strict=True,
)


def model_not_found(model: str, served: Sequence[str], param: str) -> ApiError:
    """The 404 for a model of another name."""
    names = ", ".join(map(repr, served))
    message = f"The model {model[:200]!r} is not available; this server has {names}"
    return ApiError(404, message, "model_not_found", param=param)


def check_model(model: str | None, served: str) -> str:
    """The served model's name. Raises `ApiError` 404 when another is asked for."""
    if model is not None and model != served:
        raise model_not_found(model, [served], "model")
    return served


# ---- responses


def _read_input(value: object, path: str) -> list[Message]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array", value)
    found: list[Message] = []
    reasoning = ""
    for item in read_objects(value, path, items_max=MESSAGES_MAX, noun="messages"):
        if item.get("type") == "reasoning":
            reasoning = _read_reasoning(item)
            continue
        message = _read_item(item)
        is_call = item.get("type") in CALL_TYPES
        if found and is_call and not reasoning and found[-1]["role"] == "assistant":
            # Items of one turn, which templates want as one message.
            calls = [*found[-1].get("tool_calls", ()), *message["tool_calls"]]
            thought = found[-1].pop("reasoning_content", None)
            found[-1].pop("thinking", None)
            found[-1] = with_reasoning({**found[-1], "tool_calls": calls}, thought)
        else:
            is_answer = message["role"] == "assistant"
            found.append(with_reasoning(message, reasoning) if is_answer else message)
        reasoning = ""
    return found


def _read_reasoning(item: ObjectFields) -> str:
    """The reasoning of the next message or call; none of one that is encrypted."""
    parts = [*item.objects("content"), *item.objects("summary")]
    texts = {part.string("type"): part.string("text") or "" for part in parts}
    return texts.get("reasoning_text") or texts.get("summary_text", "")


def _read_item(item: ObjectFields) -> Message:
    if is_reference(item.values):
        return {"role": REFERENCE, "content": item.required("id")}
    match item.string("type"):
        case None | "message":
            return read_message(item)
        case "function_call" | "custom_tool_call":
            call = {**_read_call(item), "id": item.string("call_id") or ""}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output" | "custom_tool_call_output":
            output = read_content(item, "output")
            call_id = item.string("call_id") or ""
            return {"role": "tool", "content": output, "tool_call_id": call_id}
        case _:
            kinds = ", ".join(f"`{kind}`" for kind in _ITEM_TYPES)
            raise unsupported(item.at("type"), f"must be one of {kinds}")


def is_reference(item: JsonObject) -> bool:
    """Whether an item of an input names another one; OpenAI lets it do without a type."""
    kind = item.get("type")
    return kind == REFERENCE or (kind is None and "id" in item and item.get("role") is None)


def _read_call(item: ObjectFields) -> JsonObject:
    """A call as the model was shown it, in the namespace of its tool."""
    name = shown_name(item.required("name"), item.string("namespace"))
    if item.get("type") == "custom_tool_call":
        item.required("input")
        arguments: object = custom_arguments(item.values)
    else:
        arguments = read_arguments(item.string("arguments") or "")
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


# Items that are merged into an assistant's message before them.
CALL_TYPES = ("function_call", "custom_tool_call")
_ITEM_TYPES = (
    "message",
    *(f"{kind}{end}" for kind in CALL_TYPES for end in ("", "_output")),
    "reasoning",
    "item_reference",
)
# Stands, until it is known, for the item of a kept response whose id is its content.
REFERENCE = "item_reference"
# A text, which is a user's message, or an array of items.
_TEXT_SCHEMA: JsonObject = {"type": "string"}


def _item_schema(kind: str, **properties: JsonObject) -> JsonObject:
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, **properties},
        "required": ["type", *properties],
    }


_ITEM_SCHEMAS = [
    MESSAGE_SCHEMA,
    _item_schema("function_call", name=_TEXT_SCHEMA),
    _item_schema("custom_tool_call", name=_TEXT_SCHEMA, input=_TEXT_SCHEMA),
    *(_item_schema(f"{kind}_output", output=_TEXT_SCHEMA) for kind in CALL_TYPES),
    _item_schema("reasoning"),
    _item_schema(REFERENCE, id=_TEXT_SCHEMA),
]
_ITEMS: JsonObject = {
    "type": "array",
    "maxItems": MESSAGES_MAX,
    "items": {"anyOf": _ITEM_SCHEMAS},
}
_INPUT = FunctionKind(_read_input, {"anyOf": [{"type": "string"}, _ITEMS]})


def _read_metadata(value: object, path: str) -> dict[str, str]:
    given, found = read_object(value, path), {}
    if len(given.values) > METADATA_PAIRS_MAX:
        raise bad_field(path, f"has over {METADATA_PAIRS_MAX} pairs")
    for name in given.values:
        text = given.string(name) or ""
        if len(name) > METADATA_KEY_CHARACTERS_MAX:
            reason = f"key {name[:100]!r} has over {METADATA_KEY_CHARACTERS_MAX} characters"
            raise bad_field(path, reason)
        if len(text) > METADATA_VALUE_CHARACTERS_MAX:
            reason = f"has over {METADATA_VALUE_CHARACTERS_MAX} characters"
            raise bad_field(given.at(name), reason)
        found[name] = text
    return found


# Pairs of strings, given back as they came.
_METADATA = FunctionKind(
    _read_metadata,
    {
        "type": "object",
        "maxProperties": METADATA_PAIRS_MAX,
        "propertyNames": {"maxLength": METADATA_KEY_CHARACTERS_MAX},
        "additionalProperties": {
            "type": ["string", "null"],
            "maxLength": METADATA_VALUE_CHARACTERS_MAX,
        },
    },
)
RESPONSES = Body(
    {
        "input": Field(_INPUT, "The conversation, or its new part; required without another."),
        "model": MODEL,
        "instructions": Field(TEXT, "A system message before the input, for this turn alone."),
        "max_output_tokens": sampling_field("max_tokens"),
        "temperature": sampling_field("temperature"),
        "top_p": sampling_field("top_p"),
        "stream": STREAM,
        "previous_response_id": Field(TEXT, "The conversation that this one continues."),
        "generate": Field(FLAG, "False: only compute the prompt, as if to warm a prefix cache."),
        "background": Field(FLAG, "Go on without anybody who reads."),
        "store": Field(FLAG, "Keep the response, to be found by its id; on by default."),
        "reasoning": Field(
            Nested(REASONING), "How much the model thinks, and as what it is shown."
        ),
        "metadata": Field(_METADATA, "Given back as it came."),
        RANK: RANK_FIELD,
        "runtime": Field(Nested(_RESPONSES_RUNTIME), RUNTIME_FIELD.about),
        "text": Field(TEXT_OPTIONS, "`format` says in which form the answer is wanted."),
        **RESPONSE_TOOL_FIELDS,
        "conversation": Field(
            Unserved(NEVER, "conversations are not kept; send the whole conversation")
        ),
        "prompt": Field(Unserved(NEVER, "stored prompts are not served; send `input`")),
        "truncation": Field(
            TextKind(choices=("auto", "disabled")),
            "`auto`: the oldest turns are dropped when the input is too long for the model.",
        ),
        "include": Field(
            TextsKind(items_max=INCLUDES_MAX, characters_max=INCLUDE_CHARACTERS_MAX),
            f"`{INCLUDE_LOGPROBS}` adds the logprob of each token; all else is ignored.",
        ),
        "top_logprobs": Field(
            IntegerKind(minimum=0, maximum=LOGPROBS_MAX),
            "Logprobs of this number of most likely tokens, and of the token itself.",
        ),
        "context_management": Field(
            Unserved(IS_EMPTY, "nothing is compacted; send the conversation as wanted")
        ),
        "moderation": Field(Unserved(NEVER, "nothing is moderated here")),
        **UNSERVED_FIELDS,
    },
    alternatives=RESPONSES_ALTERNATIVES,
    rules=RESPONSES_RULES,
)


def check_together(found: Mapping[str, Any]) -> None:
    """Raise `ApiError` for read values that contradict each other, or lack a conversation."""
    runtime: Mapping[str, Any] = found.get("runtime", {})
    kept = {"background": found.get("background"), "runtime.keep_s": runtime.get("keep_s")}
    for name, value in kept.items():
        if value and not found.get("store", True):
            raise bad_field(name, "requires `store`: true")
    if "input_token_ids" in runtime:
        if "input" in found or "instructions" in found:
            raise bad_field("runtime.input_token_ids", "replaces `input` and `instructions`")
    elif not found.get("input") and "previous_response_id" not in found:
        if "input" in found:
            raise bad_field("input", "must not be empty")
        raise missing("input")
