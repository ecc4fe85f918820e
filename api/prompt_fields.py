"""Reads what Responses and chat requests have in common: messages, sampling, our `runtime` object.

Sans-IO: `Fields` in, values or `ApiError` out. OpenAI's top level ignores fields that nobody knows;
fields we know but do not serve are refused only when they ask for something (`tools: []` does
not). Our own `runtime` object is strict. Must not know event or answer formats.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ..engine.errors import InvalidParameter
from ..engine.sampling_params import SamplingParams
from .errors import ApiError, bad_field, to_api_error, unsupported
from .fields import Fields, kind

TEXT_PARTS = ("text", "input_text", "output_text")
ROLES = ("system", "developer", "user", "assistant")
# Chat templates know three roles; OpenAI's `developer` is their `system`.
TEMPLATE_ROLES = {"developer": "system"}
PRIORITY_MAX = 2**31 - 1
CACHE_SALT_CHARACTERS_MAX = 256
RUNTIME_FIELDS = frozenset(
    {
        "token_ids",
        "input_token_ids",
        "events",
        "priority",
        "cache_salt",
        "seed",
        "stop",
        "stop_token_ids",
        "min_tokens",
        "top_k",
        "min_p",
        "ignore_eos",
        "skip_special_tokens",
        "include_stop_str_in_output",
    }
)


@attrs.frozen(kw_only=True)
class RuntimeOptions:
    """Our extensions, all opt-in.

    `token_ids`: deltas carry ids and the index of the first. `events`: notices of the server, such
    as a drain. `input_token_ids` replaces the text of the prompt.
    """

    token_ids: bool = False
    events: bool = False
    input_token_ids: list[int] | None = None
    priority: int = 0
    cache_salt: str = ""


def read_runtime(top: Fields) -> tuple[RuntimeOptions, dict[str, Any]]:
    """The `runtime` object: options, and arguments for `SamplingParams`. Raises `ApiError`."""
    fields = top.nested("runtime")
    if fields is None:
        return RuntimeOptions(), {}
    fields.refuse_unknown(RUNTIME_FIELDS)
    priority = fields.integer("priority") or 0
    if abs(priority) > PRIORITY_MAX:
        raise bad_field(fields.at("priority"), f"must be within ±{PRIORITY_MAX}")
    cache_salt = fields.string("cache_salt") or ""
    if len(cache_salt) > CACHE_SALT_CHARACTERS_MAX:
        raise bad_field(fields.at("cache_salt"), f"has over {CACHE_SALT_CHARACTERS_MAX} characters")
    options = RuntimeOptions(
        token_ids=bool(fields.boolean("token_ids")),
        events=bool(fields.boolean("events")),
        input_token_ids=fields.integers("input_token_ids"),
        priority=priority,
        cache_salt=cache_salt,
    )
    if options.input_token_ids == []:
        raise bad_field(fields.at("input_token_ids"), "must not be empty")
    return options, read_sampling_extensions(fields)


def read_sampling_extensions(fields: Fields) -> dict[str, Any]:
    """Sampling fields that OpenAI lacks and vLLM's clients send; absent ones are left out."""
    found = {
        "seed": fields.integer("seed"),
        "stop": fields.strings("stop"),
        "stop_token_ids": fields.integers("stop_token_ids"),
        "min_tokens": fields.integer("min_tokens"),
        "top_k": fields.integer("top_k"),
        "min_p": fields.number("min_p"),
        "ignore_eos": fields.boolean("ignore_eos"),
        "skip_special_tokens": fields.boolean("skip_special_tokens"),
        "include_stop_str_in_output": fields.boolean("include_stop_str_in_output"),
    }
    if found["top_k"] == -1:  # vLLM's and Hugging Face's spelling of "off"
        found["top_k"] = 0
    return present(found)


def present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not None: the defaults stay those of `SamplingParams`."""
    return {name: value for name, value in values.items() if value is not None}


def sampling_params(arguments: dict[str, Any], names: dict[str, str]) -> SamplingParams:
    """Build the checked parameters. Raises `ApiError` with the protocol's name of the field."""
    try:
        return SamplingParams(**arguments)
    except InvalidParameter as error:
        raise to_api_error(error, names) from None


Harmless = Callable[[object], bool]


def refuse_unserved(fields: Fields, unserved: Mapping[str, tuple[Harmless, str]]) -> None:
    """Raise `ApiError` for the first field that asks for what we do not do.

    `unserved` maps a field to (is this value harmless?, what we say otherwise).
    """
    for name, (is_harmless, reason) in unserved.items():
        value = fields.get(name)
        if value is not None and not is_harmless(value):
            raise unsupported(fields.at(name), reason)


def is_empty(value: object) -> bool:
    """Harmless: an empty array, object or string, false or zero."""
    return not value


def one_of(*harmless: object) -> Harmless:
    """Harmless: one of these values (compared with their types: true is not 1)."""
    return lambda value: any(type(value) is type(h) and value == h for h in harmless)


def never(value: object) -> bool:
    """Whatever is given asks for something."""
    return False


def read_model(fields: Fields, served: str) -> str:
    """The model asked for; absent means ours. Raises `ApiError` 404 for another."""
    model = fields.string("model")
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
    for name in ("tool_calls", "function_call", "tool_call_id", "audio"):
        if message.get(name):
            raise unsupported(message.at(name), "tools and audio are not served")
    return {"role": TEMPLATE_ROLES.get(role, role), "content": read_content(message)}


def read_content(message: Fields) -> str:
    """The text of a message: a string, or text parts joined. Raises `ApiError`."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        raise bad_field(message.at("content"), "is missing", "missing_required_parameter")
    if not isinstance(content, list):
        reason = f"must be a string or an array of parts, not {kind(content)}"
        raise bad_field(message.at("content"), reason, "invalid_type")
    pieces = []
    for part in message.objects("content") or []:
        part_type = part.string("type")
        if part_type not in TEXT_PARTS:
            raise unsupported(part.at("type"), "only text parts are served")
        text = part.string("text")
        if text is None:
            raise bad_field(part.at("text"), "is missing", "missing_required_parameter")
        pieces.append(text)
    return "".join(pieces)
