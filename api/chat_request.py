"""Reads the body of a chat completions request.

Sans-IO: a JSON object in, `ChatRequest` or a typed `ApiError` that names the field out. Sampling
fields that OpenAI lacks are taken at the top level too, where vLLM's clients and benchmarks put
them. Must not know how answers look.
"""

import attrs

from ..engine.sampling_params import SamplingParams
from ..runtime.generation import ChatPrompt, Prompt
from .errors import bad_field
from .fields import Fields, JsonObject
from .prompt_fields import (
    Harmless,
    RuntimeOptions,
    is_empty,
    never,
    one_of,
    present,
    read_message,
    read_model,
    read_runtime,
    read_sampling_extensions,
    refuse_unserved,
    sampling_params,
)

# How `SamplingParams` calls what this protocol calls otherwise.
FIELD_NAMES = {"max_tokens": "max_completion_tokens"}


def _asks_plain_text(value: object) -> bool:
    return isinstance(value, dict) and value.get("type") in (None, "text")


_TOOLS = "tools are not served"
_LOGPROBS = "logprobs are not served"
_PENALTIES = "penalties are not served"
_GRAMMAR = "only the format `text` is served"
_UNSERVED: dict[str, tuple[Harmless, str]] = {
    "n": (one_of(1), "only one choice is served; send the request again"),
    "best_of": (one_of(1), "only one choice is served"),
    "use_beam_search": (is_empty, "beam search is not served"),
    "tools": (is_empty, _TOOLS),
    "functions": (is_empty, _TOOLS),
    "tool_choice": (one_of("auto", "none"), _TOOLS),
    "function_call": (one_of("auto", "none"), _TOOLS),
    "logprobs": (is_empty, _LOGPROBS),
    "top_logprobs": (is_empty, _LOGPROBS),
    "prompt_logprobs": (never, _LOGPROBS),
    "response_format": (_asks_plain_text, _GRAMMAR),
    "structured_outputs": (is_empty, _GRAMMAR),
    "guided_json": (is_empty, _GRAMMAR),
    "guided_regex": (is_empty, _GRAMMAR),
    "guided_choice": (is_empty, _GRAMMAR),
    "guided_grammar": (is_empty, _GRAMMAR),
    "logit_bias": (is_empty, "logit_bias is not served"),
    "frequency_penalty": (is_empty, _PENALTIES),
    "presence_penalty": (is_empty, _PENALTIES),
    "repetition_penalty": (one_of(1, 1.0), _PENALTIES),
    "modalities": (one_of(["text"]), "only text is served"),
    "audio": (never, "audio is not served"),
    "prediction": (never, "predictions are not served"),
    "web_search_options": (never, "web search is not served"),
    "chat_template": (never, "templates come from the model folder alone"),
    "chat_template_kwargs": (is_empty, "templates take no arguments from requests"),
    "echo": (is_empty, "echo is not served"),
    "moderation": (never, "nothing is moderated here"),
}


@attrs.frozen(kw_only=True)
class ChatRequest:
    """One validated request. `include_usage` adds a last chunk with usage to a stream."""

    prompt: Prompt
    sampling: SamplingParams
    stream: bool = False
    include_usage: bool = False
    options: RuntimeOptions = attrs.field(factory=RuntimeOptions)


def read_chat_request(values: JsonObject, *, model: str) -> ChatRequest:
    """Validate one body; `model` is the served one. Raises `ApiError`."""
    fields = Fields(values)
    read_model(fields, model)
    refuse_unserved(fields, _UNSERVED)
    options, extensions = read_runtime(fields)
    stream = bool(fields.boolean("stream"))
    sampling = sampling_params(
        {
            **present(
                {
                    "max_tokens": _read_max_tokens(fields),
                    "temperature": fields.number("temperature"),
                    "top_p": fields.number("top_p"),
                }
            ),
            **read_sampling_extensions(fields),
            **extensions,
        },
        FIELD_NAMES,
    )
    return ChatRequest(
        prompt=_read_prompt(fields, options),
        sampling=sampling,
        stream=stream,
        include_usage=_read_include_usage(fields, stream=stream),
        options=options,
    )


def _read_max_tokens(fields: Fields) -> int | None:
    """The new name wins over the deprecated one, which most clients still send."""
    newer, older = fields.integer("max_completion_tokens"), fields.integer("max_tokens")
    return older if newer is None else newer


def _read_include_usage(fields: Fields, *, stream: bool) -> bool:
    options = fields.nested("stream_options")
    if options is None:
        return False
    if not stream:
        raise bad_field("stream_options", "is only allowed with `stream`")
    return bool(options.boolean("include_usage"))


def _read_prompt(fields: Fields, options: RuntimeOptions) -> Prompt:
    if options.input_token_ids is not None:
        if fields.get("messages"):
            raise bad_field("runtime.input_token_ids", "replaces `messages`")
        return options.input_token_ids
    messages = fields.objects("messages")
    if messages is None:
        raise bad_field("messages", "is missing", "missing_required_parameter")
    if not messages:
        raise bad_field("messages", "must not be empty")
    return ChatPrompt([read_message(message) for message in messages])
