"""What `POST /v1/responses` and `response.create` accept, and the `runtime` object of all bodies.

Sans-IO: tables, and kinds of values that only these bodies have. With this file go two more: the
kinds of messages, tools and output formats (`message_fields`), and the sampling parameters
(`engine/sampling_params`), each of which is a field of `runtime`. How fields depend on each other
is at the end.
"""

import math
from collections.abc import Mapping
from typing import Any

import attrs

from ...engine.sampling_params import LOGPROBS_MAX, TOKENS_MAX
from ..errors import ApiError, bad_field, unsupported
from ..schema.fields import (
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
from ..schema.tables import Body, Field, Nested, Unserved, is_empty, never, one_of
from ..settings import MERGE_MS_MAX
from .message_fields import (
    MESSAGE_SCHEMA,
    MESSAGES_MAX,
    TEXT_OPTIONS,
    Message,
    read_call,
    read_content,
    read_message,
    tool_fields,
)
from .sampling_fields import SAMPLING_FIELDS, TokenIdsKind, sampling_arguments, sampling_field

# OpenAI has eight things to include; of those that we know, this one has an effect.
INCLUDES_MAX, INCLUDE_CHARACTERS_MAX = 64, 128
INCLUDE_LOGPROBS = "message.output_text.logprobs"
# OpenAI's bounds on metadata.
METADATA_PAIRS_MAX = 16
METADATA_KEY_CHARACTERS_MAX = 64
METADATA_VALUE_CHARACTERS_MAX = 512
PRIORITY_MAX = 2**31 - 1
# A day; a longer deadline is none.
DEADLINE_MS_MAX = 86_400_000
# A day, as a deadline has; the server's own limit is refused with its name.
KEEP_S_MAX = 86_400.0
CACHE_SALT_CHARACTERS_MAX = 256
# No model of today takes more; each id is looked at in a loop.
PROMPT_TOKENS_MAX = 2**20

# ---- the `runtime` object

MODEL = Field(TEXT, "The served model; absent means it.")
STREAM = Field(FLAG, "Answer with server-sent events as tokens come.")
PRIORITY = Field(
    IntegerKind(minimum=-PRIORITY_MAX, maximum=PRIORITY_MAX),
    "Lower goes first, and is preempted last.",
)
CACHE_SALT = Field(
    TextKind(characters_max=CACHE_SALT_CHARACTERS_MAX),
    "Share cached prefixes with the same salt only.",
)
RUNTIME = Body(
    {
        "token_ids": Field(FLAG, "Deltas carry token ids and the index of the first."),
        "events": Field(
            FLAG, "Responses: tell what the engine does with it, and, on sockets, of a drain."
        ),
        "input_token_ids": Field(
            TokenIdsKind(items_min=1, items_max=PROMPT_TOKENS_MAX),
            "Replaces the text of the prompt.",
        ),
        "inexact_ok": Field(
            FLAG,
            "Go on, where an engine dies, also on one that computes other tokens: an event tells.",
        ),
        "priority": PRIORITY,
        "cache_salt": CACHE_SALT,
        "deadline_ms": Field(
            IntegerKind(minimum=1, maximum=DEADLINE_MS_MAX),
            "When the answer must have ended, from its arrival; it is incomplete otherwise.",
        ),
        "keep_s": Field(
            NumberKind(minimum=0, maximum=KEEP_S_MAX),
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
        "merge_ms": Field(
            IntegerKind(minimum=0, maximum=MERGE_MS_MAX),
            "So long text may wait for more, to be one event; the first and the last do not"
            " wait. The server's setting when absent, usually 0.",
        ),
        "credit": Field(
            IntegerKind(minimum=0, maximum=TOKENS_MAX),
            "Generate so many tokens, and what `runtime.credit` events add.",
        ),
    },
    strict=True,
)


@attrs.frozen(kw_only=True)
class RuntimeOptions:
    """Our extensions, all opt-in.

    `token_ids`: deltas carry ids and the index of the first. `events`: notices of the server, such
    as a drain. `input_token_ids` replaces the text of the prompt. `inexact_ok`: other tokens than
    in an undisturbed run are better than none. `deadline_ms` is in milliseconds.
    """

    token_ids: bool = False
    events: bool = False
    input_token_ids: list[int] | None = None
    priority: int = 0
    cache_salt: str = ""
    inexact_ok: bool = False
    deadline_ms: int | None = None

    @property
    def deadline_s(self) -> float:
        """Seconds from the request's arrival to its end at the latest."""
        return math.inf if self.deadline_ms is None else self.deadline_ms / 1000


_OPTIONS = frozenset(field.name for field in attrs.fields(RuntimeOptions))


def split_runtime(values: Mapping[str, Any]) -> tuple[RuntimeOptions, dict[str, Any]]:
    """Read values of the `runtime` object as options, and arguments for `SamplingParams`."""
    options = {name: value for name, value in values.items() if name in _OPTIONS}
    return RuntimeOptions(**options), sampling_arguments(values)


def check_model(model: str | None, served: str) -> str:
    """The served model's name. Raises `ApiError` 404 when another is asked for."""
    if model is not None and model != served:
        raise ApiError(
            404, f"The model {model[:200]!r} is not served here", "model_not_found", param="model"
        )
    return served


# ---- responses


def _read_input(value: object, path: str) -> list[Message]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array", value)
    found: list[Message] = []
    for item in read_objects(value, path, items_max=MESSAGES_MAX, noun="messages"):
        message = _read_item(item)
        is_call = item.get("type") == "function_call"
        if found and is_call and found[-1]["role"] == "assistant":
            # Items of one turn, which templates want as one message.
            found[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
        else:
            found.append(message)
    return found


def _read_item(message: ObjectFields) -> Message:
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


# A text, which is a user's message, or an array of messages.
_ITEMS: JsonObject = {"type": "array", "maxItems": MESSAGES_MAX, "items": MESSAGE_SCHEMA}
_INPUT = FunctionKind(_read_input, {"anyOf": [{"type": "string"}, _ITEMS]})


def _read_metadata(value: object, path: str) -> dict[str, str]:
    given, found = read_object(value, path), {}
    if len(given.values) > METADATA_PAIRS_MAX:
        raise bad_field(path, f"has over {METADATA_PAIRS_MAX} pairs")
    for name in given.values:
        text = given.string(name) or ""
        if len(name) > METADATA_KEY_CHARACTERS_MAX or len(text) > METADATA_VALUE_CHARACTERS_MAX:
            raise bad_field(path, "has a key or value that is too long")
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
        "metadata": Field(_METADATA, "Given back as it came."),
        "runtime": Field(Nested(_RESPONSES_RUNTIME), RUNTIME_FIELD.about),
        "text": Field(TEXT_OPTIONS, "`format` says in which form the answer is wanted."),
        **tool_fields(is_flat=True),
        "conversation": Field(
            Unserved(never, "conversations are not kept; send the whole conversation")
        ),
        "prompt": Field(Unserved(never, "stored prompts are not served; send `input`")),
        "truncation": Field(
            Unserved(one_of("disabled"), "nothing is dropped from the input; shorten it")
        ),
        "include": Field(
            TextsKind(items_max=INCLUDES_MAX, characters_max=INCLUDE_CHARACTERS_MAX),
            f"`{INCLUDE_LOGPROBS}` adds the logprob of each token; all else is ignored.",
        ),
        "top_logprobs": Field(
            IntegerKind(minimum=0, maximum=LOGPROBS_MAX),
            "Logprobs of so many most likely tokens, and of the token itself.",
        ),
        "context_management": Field(
            Unserved(is_empty, "nothing is compacted; send the conversation as wanted")
        ),
        "moderation": Field(Unserved(never, "nothing is moderated here")),
    }
)


def check_together(found: Mapping[str, Any]) -> None:
    """Raise `ApiError` for read values that contradict each other, or lack a conversation."""
    runtime: Mapping[str, Any] = found.get("runtime", {})
    kept = {"background": found.get("background"), "runtime.keep_s": runtime.get("keep_s")}
    for name, value in kept.items():
        if value and not found.get("store", True):
            raise bad_field(name, "needs `store`: who else would find the response?")
    if "input_token_ids" in runtime:
        if "input" in found or "instructions" in found:
            raise bad_field("runtime.input_token_ids", "replaces `input` and `instructions`")
    elif not found.get("input") and "previous_response_id" not in found:
        if "input" in found:
            raise bad_field("input", "must not be empty")
        raise missing("input")
