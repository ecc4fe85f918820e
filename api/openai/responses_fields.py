"""The table of a Responses body: of `POST /v1/responses`, and of `response.create` on a socket.

Sans-IO: plain data and the kinds of values that only this body has. Must not know what becomes of
the values, or how fields depend on each other: `responses_request` does.
"""

from typing import Any

import attrs

from ...engine.sampling_params import LOGPROBS_MAX, TEMPERATURE_MAX, TOKENS_MAX
from ..errors import bad_field, unsupported
from ..limits import MERGE_MS_MAX
from ..schema.fields import Fields, JsonObject
from ..schema.reader import (
    Body,
    Field,
    Flag,
    Integer,
    Nested,
    Number,
    Text,
    Texts,
    Unserved,
    is_empty,
    never,
    one_of,
    wrong_type,
)
from .output_format import TextOptions
from .prompt_fields import MESSAGE_SCHEMA, MESSAGES_MAX, RUNTIME, read_content, read_message
from .tool_fields import FLAT_TOOL_FIELDS, read_call

# OpenAI has eight things to include; of those that we know, this one says something.
INCLUDES_MAX, INCLUDE_CHARACTERS_MAX = 64, 128
INCLUDE_LOGPROBS = "message.output_text.logprobs"
# OpenAI's bounds on metadata.
METADATA_PAIRS_MAX = 16
METADATA_KEY_CHARACTERS_MAX = 64
METADATA_VALUE_CHARACTERS_MAX = 512
# A day, as a deadline has; the server's own limit is told with its name.
KEEP_S_MAX = 86_400.0
RUNTIME_FIELD = Field(
    Nested(
        Body(
            {
                **RUNTIME.fields,
                "keep_s": Field(
                    Number(minimum=0, maximum=KEEP_S_MAX),
                    "So long it goes on without a reader; without, it is aborted.",
                ),
                "merge_ms": Field(
                    Integer(minimum=0, maximum=MERGE_MS_MAX),
                    "So long text may wait for more, to be one event; the first and the last do not"
                    " wait. The server's setting when absent, usually 0.",
                ),
                "credit": Field(
                    Integer(minimum=0, maximum=TOKENS_MAX),
                    "Generate so many tokens, and what `runtime.credit` events add.",
                ),
            },
            strict=True,
        )
    ),
    "Our extensions, all opt-in.",
)
Message = dict[str, Any]


@attrs.frozen
class Input:
    """A text, which is a user's message, or an array of messages."""

    def read(self, value: object, path: str) -> list[Message]:
        """See `schema.Kind`."""
        if isinstance(value, str):
            return [{"role": "user", "content": value}]
        if not isinstance(value, list):
            raise wrong_type(path, "a string or an array", value)
        if len(value) > MESSAGES_MAX:
            raise bad_field(path, f"must have at most {MESSAGES_MAX} messages")
        found: list[Message] = []
        for index, item in enumerate(value):
            message = _read_item(item, f"{path}[{index}]")
            if found and _is_call(item) and found[-1]["role"] == "assistant":
                # Items of one turn, which templates want as one message.
                found[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
            else:
                found.append(message)
        return found

    def schema(self) -> JsonObject:
        """See `schema.Kind`."""
        items = {"type": "array", "maxItems": MESSAGES_MAX, "items": MESSAGE_SCHEMA}
        return {"anyOf": [{"type": "string"}, items]}


def _is_call(item: dict[str, object]) -> bool:
    return item.get("type") == "function_call"


def _read_item(item: object, path: str) -> Message:
    if not isinstance(item, dict):
        raise wrong_type(path, "an object", item)
    message = Fields(item, path)
    match message.string("type"):
        case None | "message":
            return read_message(message)
        case "function_call":
            call_id = message.string("call_id") or ""
            calls = [{**read_call(message), "id": call_id}]
            return {"role": "assistant", "content": "", "tool_calls": calls}
        case "function_call_output":
            call_id = message.string("call_id") or ""
            output = read_content(message, "output")
            return {"role": "tool", "content": output, "tool_call_id": call_id}
        case _:
            kinds = "`message`, `function_call` or `function_call_output`"
            raise unsupported(message.at("type"), f"must be {kinds}")


@attrs.frozen
class Metadata:
    """Pairs of strings, given back as they came."""

    def read(self, value: object, path: str) -> dict[str, str]:
        """See `schema.Kind`."""
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        if len(value) > METADATA_PAIRS_MAX:
            raise bad_field(path, f"has over {METADATA_PAIRS_MAX} pairs")
        given, found = Fields(value, path), {}
        for name in value:
            text = given.string(name) or ""
            if len(name) > METADATA_KEY_CHARACTERS_MAX or len(text) > METADATA_VALUE_CHARACTERS_MAX:
                raise bad_field(path, "has a key or value that is too long")
            found[name] = text
        return found

    def schema(self) -> JsonObject:
        """See `schema.Kind`."""
        value = {"type": ["string", "null"], "maxLength": METADATA_VALUE_CHARACTERS_MAX}
        name = {"maxLength": METADATA_KEY_CHARACTERS_MAX}
        bounds = {"maxProperties": METADATA_PAIRS_MAX, "propertyNames": name}
        return {"type": "object", **bounds, "additionalProperties": value}


RESPONSES = Body(
    {
        "input": Field(Input(), "The conversation, or its new part; required without another."),
        "model": Field(Text(), "The served model; absent means it."),
        "instructions": Field(Text(), "A system message before the input, for this turn alone."),
        "max_output_tokens": Field(
            Integer(minimum=1, maximum=TOKENS_MAX), "So many tokens at most."
        ),
        "temperature": Field(Number(minimum=0, maximum=TEMPERATURE_MAX), "0 is greedy."),
        "top_p": Field(
            Number(minimum=0, maximum=1, is_above=True),
            "Draw from the most probable tokens up to it.",
        ),
        "stream": Field(Flag(), "Answer with server-sent events as tokens come."),
        "previous_response_id": Field(Text(), "The conversation that this one continues."),
        "generate": Field(Flag(), "False: only compute the prompt, as if to warm a prefix cache."),
        "background": Field(Flag(), "Go on without anybody who reads."),
        "store": Field(Flag(), "Keep the response for whoever has its id; on by default."),
        "metadata": Field(Metadata(), "Given back as it came."),
        "runtime": RUNTIME_FIELD,
        "text": Field(TextOptions(), "`format` says in which form the answer is wanted."),
        **FLAT_TOOL_FIELDS,
        "conversation": Field(
            Unserved(never, "conversations are not kept; send the whole conversation")
        ),
        "prompt": Field(Unserved(never, "stored prompts are not served; send `input`")),
        "truncation": Field(
            Unserved(one_of("disabled"), "nothing is dropped from the input; shorten it")
        ),
        "include": Field(
            Texts(items_max=INCLUDES_MAX, characters_max=INCLUDE_CHARACTERS_MAX),
            f"`{INCLUDE_LOGPROBS}` tells the logprob of each token; all else is ignored.",
        ),
        "top_logprobs": Field(
            Integer(minimum=0, maximum=LOGPROBS_MAX),
            "Logprobs of so many most likely tokens, and of the token itself.",
        ),
        "context_management": Field(
            Unserved(is_empty, "nothing is compacted; send the conversation as wanted")
        ),
        "moderation": Field(Unserved(never, "nothing is moderated here")),
    }
)
