"""Reads the body of a Responses request, over HTTP or as a `response.create` event.

Sans-IO: a JSON object in, `ResponseRequest` or a typed `ApiError` that names the field out. Must
not know sockets or lanes beyond the name of one. OpenAI's fields and their defaults are here only.
"""

import re

import attrs

from ..engine.sampling_params import SamplingParams
from ..runtime.generation import ChatPrompt, Prompt
from .errors import ApiError, bad_field
from .fields import Fields, JsonObject
from .prompt_fields import (
    RuntimeOptions,
    present,
    read_message,
    read_model,
    read_runtime,
    refuse_unserved,
    sampling_params,
)
from .schema import Harmless, is_empty, never, one_of

STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}", re.ASCII)
# OpenAI's bounds on metadata.
METADATA_PAIRS_MAX = 16
METADATA_KEY_CHARACTERS_MAX = 64
METADATA_VALUE_CHARACTERS_MAX = 512
# How `SamplingParams` calls what this protocol calls otherwise.
FIELD_NAMES = {
    "max_tokens": "max_output_tokens",
    "min_tokens": "runtime.min_tokens",
    "top_k": "runtime.top_k",
    "min_p": "runtime.min_p",
    "seed": "runtime.seed",
    "stop": "runtime.stop",
    "stop_token_ids": "runtime.stop_token_ids",
}


def _asks_no_logprobs(value: object) -> bool:
    return not (isinstance(value, list) and "message.output_text.logprobs" in value)


def _asks_plain_text(value: object) -> bool:
    if not isinstance(value, dict):
        return True  # a wrong type is told by `_read_text`
    wanted = value.get("format")
    return wanted is None or (isinstance(wanted, dict) and wanted.get("type") in (None, "text"))


_UNSERVED: dict[str, tuple[Harmless, str]] = {
    "tools": (is_empty, "tools are not served"),
    "tool_choice": (one_of("auto", "none"), "tools are not served"),
    "background": (is_empty, "background responses are not served; keep the connection open"),
    "previous_response_id": (never, "responses are not kept; send the whole conversation"),
    "conversation": (never, "conversations are not kept; send the whole conversation"),
    "prompt": (never, "stored prompts are not served; send `input`"),
    "truncation": (one_of("disabled"), "nothing is dropped from the input; shorten it"),
    "text": (_asks_plain_text, "only the format `text` is served"),
    "include": (_asks_no_logprobs, "logprobs are not served"),
    "top_logprobs": (is_empty, "logprobs are not served"),
    "context_management": (is_empty, "nothing is compacted; send the conversation as wanted"),
    "moderation": (never, "nothing is moderated here"),
    "generate": (one_of(True), "a response without output is not served"),
}


@attrs.frozen(kw_only=True)
class ResponseRequest:
    """One validated request. What is only echoed back to the client is kept as it came."""

    prompt: Prompt
    sampling: SamplingParams
    stream: bool = False
    stream_id: str | None = None  # the lane; None is the default lane, and HTTP
    options: RuntimeOptions = attrs.field(factory=RuntimeOptions)
    instructions: str | None = None
    metadata: dict[str, str] = attrs.field(factory=dict)


def read_stream_id(values: JsonObject) -> str | None:
    """The lane of a socket event. Raises `ApiError` `invalid_stream_id`."""
    stream_id = values.get("stream_id")
    if stream_id is None:
        return None
    if not isinstance(stream_id, str) or STREAM_ID.fullmatch(stream_id) is None:
        raise ApiError(
            400,
            "stream_id must be 1 to 256 ASCII letters, digits, underscores, hyphens or periods",
            "invalid_stream_id",
            param="stream_id",
        )
    return stream_id


def read_response_request(values: JsonObject, *, model: str) -> ResponseRequest:
    """Validate one body; `model` is the served one. Raises `ApiError`."""
    fields = Fields(values)
    stream_id = read_stream_id(values)
    read_model(fields, model)
    refuse_unserved(fields, _UNSERVED)
    fields.nested("text")
    options, extensions = read_runtime(fields)
    instructions = fields.string("instructions")
    sampling = sampling_params(
        {
            **present(
                {
                    "max_tokens": fields.integer("max_output_tokens"),
                    "temperature": fields.number("temperature"),
                    "top_p": fields.number("top_p"),
                }
            ),
            **extensions,
        },
        FIELD_NAMES,
    )
    return ResponseRequest(
        prompt=_read_prompt(fields, options, instructions),
        sampling=sampling,
        stream=bool(fields.boolean("stream")),
        stream_id=stream_id,
        options=options,
        instructions=instructions,
        metadata=_read_metadata(fields),
    )


def _read_prompt(fields: Fields, options: RuntimeOptions, instructions: str | None) -> Prompt:
    if options.input_token_ids is not None:
        if fields.get("input") is not None or instructions is not None:
            raise bad_field("runtime.input_token_ids", "replaces `input` and `instructions`")
        return options.input_token_ids
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    given = fields.get("input")
    if given is None:
        raise bad_field("input", "is missing", "missing_required_parameter")
    if isinstance(given, str):
        return ChatPrompt([*messages, {"role": "user", "content": given}])
    items = fields.objects("input") or []
    if not items:
        raise bad_field("input", "must not be empty")
    for item in items:
        item_type = item.string("type")
        if item_type not in (None, "message"):
            raise bad_field(item.at("type"), "must be `message`", "unsupported_parameter")
        messages.append(read_message(item))
    return ChatPrompt(messages)


def _read_metadata(fields: Fields) -> dict[str, str]:
    given = fields.nested("metadata")
    if given is None:
        return {}
    if len(given.values) > METADATA_PAIRS_MAX:
        raise bad_field("metadata", f"has over {METADATA_PAIRS_MAX} pairs")
    found = {}
    for name in given.values:
        value = given.string(name) or ""
        if len(name) > METADATA_KEY_CHARACTERS_MAX or len(value) > METADATA_VALUE_CHARACTERS_MAX:
            raise bad_field("metadata", "has a key or value that is too long")
        found[name] = value
    return found
