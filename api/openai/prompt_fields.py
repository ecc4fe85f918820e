"""Reads what Responses and chat requests have in common: messages, sampling, our `runtime` object.

Sans-IO: JSON values in, values or `ApiError` out. OpenAI's top level ignores fields that nobody
knows; fields we know but do not serve are refused only when they ask for something (`tools: []`
does not). Our own `runtime` object is strict. Must not know event or answer formats.
"""

import math
from collections.abc import Mapping
from typing import Any

import attrs

from ...engine.errors import InvalidParameter
from ...engine.sampling_params import (
    ALLOWED_TOKEN_IDS_MAX,
    BAD_WORD_CHARACTERS_MAX,
    BAD_WORDS_MAX,
    PENALTY_MAX,
    REPETITION_PENALTY_MAX,
    REPETITION_PENALTY_MIN,
    SEED_MAX,
    STOP_STRING_CHARACTERS_MAX,
    STOP_STRINGS_MAX,
    STOP_TOKEN_IDS_MAX,
    TOKENS_MAX,
    SamplingParams,
)
from ..errors import ApiError, bad_field, to_api_error, unsupported
from ..schema.fields import Fields, JsonObject, kind
from ..schema.kinds import Biases, PromptLength
from ..schema.reader import (
    Body,
    Field,
    Flag,
    Integer,
    Nested,
    Number,
    Text,
    Texts,
    TokenIds,
    wrong_type,
)
from .output_format import STRUCTURED_OUTPUTS
from .tool_fields import read_calls

TEXT_PARTS = ("text", "input_text", "output_text")
ROLES = ("system", "developer", "user", "assistant", "tool")
# Chat templates know three roles; OpenAI's `developer` is their `system`.
TEMPLATE_ROLES = {"developer": "system"}
PRIORITY_MAX = 2**31 - 1
# A day; whoever wants longer wants no deadline.
DEADLINE_MS_MAX = 86_400_000
CACHE_SALT_CHARACTERS_MAX = 256
# Pulled out of the air: a conversation of a thousand turns is beyond every model's length, and a
# template must not render for seconds what the length then refuses.
MESSAGES_MAX = 8192
PARTS_MAX = 1024
# No model of today takes more; each id is looked at in a loop.
PROMPT_TOKENS_MAX = 2**20

# Sampling fields that OpenAI lacks and vLLM's clients send.
SAMPLING_FIELDS: dict[str, Field] = {
    "seed": Field(Integer(minimum=0, maximum=SEED_MAX), "Same seed, same tokens."),
    "stop": Field(
        Texts(items_max=STOP_STRINGS_MAX, characters_max=STOP_STRING_CHARACTERS_MAX),
        "Strings that end the answer; they are not part of it.",
    ),
    "stop_token_ids": Field(
        TokenIds(items_max=STOP_TOKEN_IDS_MAX), "Token ids that end the answer."
    ),
    "min_tokens": Field(
        Integer(minimum=0, maximum=TOKENS_MAX), "So many tokens before anything may end it."
    ),
    "top_k": Field(
        Integer(minimum=-1, maximum=2**31 - 1), "Draw from so many tokens; 0 or -1 is all."
    ),
    "min_p": Field(
        Number(minimum=0, maximum=1), "Draw from tokens at least so probable as this × the best."
    ),
    "presence_penalty": Field(
        Number(minimum=-PENALTY_MAX, maximum=PENALTY_MAX),
        "Taken off the logit of each token that the answer has already.",
    ),
    "frequency_penalty": Field(
        Number(minimum=-PENALTY_MAX, maximum=PENALTY_MAX),
        "Taken off it as many times as the answer has the token.",
    ),
    "repetition_penalty": Field(
        Number(minimum=REPETITION_PENALTY_MIN, maximum=REPETITION_PENALTY_MAX),
        "Divides positive logits, multiplies negative ones, of tokens that prompt or answer have.",
    ),
    "logit_bias": Field(Biases(), "Token ids and what is added to their logits."),
    "allowed_token_ids": Field(
        TokenIds(items_min=1, items_max=ALLOWED_TOKEN_IDS_MAX), "Draw from these alone."
    ),
    "bad_words": Field(
        Texts(items_max=BAD_WORDS_MAX, characters_max=BAD_WORD_CHARACTERS_MAX),
        "The answer has none of these, as the tokenizer spells them with or without a space.",
    ),
    "truncate_prompt_tokens": Field(
        PromptLength(), "Keep the last so many tokens of the prompt; -1: as many as fit."
    ),
    "ignore_eos": Field(Flag(), "Go on after an end of sequence."),
    "skip_special_tokens": Field(Flag(), "Leave special tokens out of the text."),
    "structured_outputs": STRUCTURED_OUTPUTS,
    "include_stop_str_in_output": Field(Flag(), "Keep the stop string in the text."),
}
PRIORITY = Field(
    Integer(minimum=-PRIORITY_MAX, maximum=PRIORITY_MAX),
    "Lower goes first, and is preempted last.",
)
CACHE_SALT = Field(
    Text(characters_max=CACHE_SALT_CHARACTERS_MAX),
    "Share cached prefixes with the same salt only.",
)
RUNTIME = Body(
    {
        "token_ids": Field(Flag(), "Deltas carry token ids and the index of the first."),
        "events": Field(
            Flag(), "Responses: tell what the engine does with it, and, on sockets, of a drain."
        ),
        "input_token_ids": Field(
            TokenIds(items_min=1, items_max=PROMPT_TOKENS_MAX), "Replaces the text of the prompt."
        ),
        "priority": PRIORITY,
        "cache_salt": CACHE_SALT,
        "deadline_ms": Field(
            Integer(minimum=1, maximum=DEADLINE_MS_MAX),
            "When the answer must have ended, from its arrival; it is incomplete otherwise.",
        ),
        **SAMPLING_FIELDS,
    },
    strict=True,
)
RUNTIME_FIELD = Field(Nested(RUNTIME), "Our extensions, all opt-in.")


@attrs.frozen(kw_only=True)
class RuntimeOptions:
    """Our extensions, all opt-in.

    `token_ids`: deltas carry ids and the index of the first. `events`: notices of the server, such
    as a drain. `input_token_ids` replaces the text of the prompt. `deadline_ms` is in milliseconds.
    """

    token_ids: bool = False
    events: bool = False
    input_token_ids: list[int] | None = None
    priority: int = 0
    cache_salt: str = ""
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


def sampling_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for `SamplingParams` among the read values of `SAMPLING_FIELDS`."""
    found = {name: value for name, value in values.items() if name in SAMPLING_FIELDS}
    if found.get("top_k") == -1:  # vLLM's and Hugging Face's spelling of "off"
        found["top_k"] = 0
    return found


def sampling_params(arguments: dict[str, Any], names: dict[str, str]) -> SamplingParams:
    """Build the checked parameters. Raises `ApiError` with the protocol's name of the field."""
    try:
        return SamplingParams(**arguments)
    except InvalidParameter as error:
        raise to_api_error(error, names) from None


def check_model(model: str | None, served: str) -> str:
    """The served model's name. Raises `ApiError` 404 when another is asked for."""
    if model is not None and model != served:
        raise ApiError(
            404, f"The model {model[:200]!r} is not served here", "model_not_found", param="model"
        )
    return served


def read_message(message: Fields) -> dict[str, Any]:
    """One conversation item with role and text. Raises `ApiError`, naming the path."""
    role = message.string("role")
    if role is None:
        raise bad_field(message.at("role"), "is missing", "missing_required_parameter")
    if role not in ROLES:
        raise unsupported(message.at("role"), f"must be one of {', '.join(ROLES)}")
    for name in ("function_call", "audio"):
        if message.get(name):
            raise unsupported(message.at(name), "is not served")
    calls = read_calls(message)
    if calls and role != "assistant":
        raise bad_field(message.at("tool_calls"), "is an assistant's")
    found = {"role": TEMPLATE_ROLES.get(role, role)}
    if calls and message.get("content") is None:
        return {**found, "content": "", "tool_calls": calls}
    found["content"] = read_content(message)
    if role == "tool":
        found["tool_call_id"] = message.string("tool_call_id") or ""
    return {**found, "tool_calls": calls} if calls else found


def read_content(message: Fields, name: str = "content") -> str:
    """The text of a message: a string, or text parts joined. Raises `ApiError`."""
    content = message.get(name)
    if isinstance(content, str):
        return content
    if content is None:
        raise bad_field(message.at(name), "is missing", "missing_required_parameter")
    if not isinstance(content, list):
        reason = f"must be a string or an array of parts, not {kind(content)}"
        raise bad_field(message.at(name), reason, "invalid_type")
    if len(content) > PARTS_MAX:
        raise bad_field(message.at(name), f"must have at most {PARTS_MAX} parts")
    pieces = []
    for part in message.objects(name) or []:
        part_type = part.string("type")
        if part_type not in TEXT_PARTS:
            raise unsupported(part.at("type"), "only text parts are served")
        text = part.string("text")
        if text is None:
            raise bad_field(part.at("text"), "is missing", "missing_required_parameter")
        pieces.append(text)
    return "".join(pieces)


_PART_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"type": {"enum": list(TEXT_PARTS)}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
MESSAGE_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "role": {"enum": list(ROLES)},
        "tool_calls": {"type": "array", "items": {"type": "object"}},
        "tool_call_id": {"type": "string"},
        "content": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "maxItems": PARTS_MAX, "items": _PART_SCHEMA},
            ]
        },
    },
    "required": ["role"],
}


@attrs.frozen
class Messages:
    """A conversation, as chat templates read it: at least one message of role and text."""

    def read(self, value: object, path: str) -> list[dict[str, Any]]:
        """See `schema.Kind`."""
        if not isinstance(value, list):
            raise wrong_type(path, "an array", value)
        if not 1 <= len(value) <= MESSAGES_MAX:
            raise bad_field(path, f"must not be empty, and have at most {MESSAGES_MAX} messages")
        found = []
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                raise wrong_type(f"{path}[{index}]", "an object", item)
            found.append(read_message(Fields(item, f"{path}[{index}]")))
        return found

    def schema(self) -> JsonObject:
        """See `schema.Kind`."""
        bounds = {"minItems": 1, "maxItems": MESSAGES_MAX}
        return {"type": "array", **bounds, "items": MESSAGE_SCHEMA}
