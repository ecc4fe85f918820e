"""Fields that chat completions and completions have in common, and how they become parameters.

Sans-IO: tables and read values in, typed values or `ApiError` out. Sampling fields that OpenAI
lacks are taken at the top level too, where vLLM's clients and benchmarks put them."""

from collections.abc import Mapping
from typing import Any

import attrs

from ...engine.sampling_params import CHOICES_MAX, SamplingParams
from ..errors import bad_field, unsupported
from ..schema.fields import FLAG, Integer
from ..schema.tables import Body, Field, Nested, Unserved, is_empty, one_of
from .message_fields import FORMS, AnswerFormat, form_of
from .responses_fields import (
    CACHE_SALT,
    MODEL,
    PRIORITY,
    RUNTIME_FIELD,
    STREAM,
    RuntimeOptions,
    split_runtime,
)
from .sampling_fields import SAMPLING_FIELDS, sampling_arguments, sampling_field, sampling_params

# The older names of forms, and OpenAI's; of these and `structured_outputs` only one may be given.
FORM_FIELDS: dict[str, Field] = {
    "response_format": Field(
        AnswerFormat(), "The answer must be JSON, of a schema if one is given."
    ),
    "guided_json": Field(FORMS["json"], "The older name of `structured_outputs.json`."),
    "guided_regex": Field(FORMS["regex"], "The older name of `structured_outputs.regex`."),
    "guided_choice": Field(FORMS["choice"], "The older name of `structured_outputs.choice`."),
    "guided_grammar": Field(FORMS["grammar"], "The older name of `structured_outputs.grammar`."),
}
_FORM_NAMES = ("structured_outputs", *FORM_FIELDS)
STREAM_OPTIONS = Body(
    {
        "include_usage": Field(FLAG, "A last chunk tells the usage."),
        "continuous_usage_stats": Field(Unserved(is_empty, "usage comes with the last chunk")),
    }
)
SHARED_FIELDS: dict[str, Field] = {
    "model": MODEL,
    "temperature": sampling_field("temperature"),
    "top_p": sampling_field("top_p"),
    **SAMPLING_FIELDS,
    "stream": STREAM,
    "stream_options": Field(Nested(STREAM_OPTIONS), "Only with `stream`."),
    "priority": PRIORITY,
    "cache_salt": CACHE_SALT,
    "return_token_ids": Field(FLAG, "Choices carry token ids, and the prompt's."),
    "runtime": RUNTIME_FIELD,
    "n": sampling_field("n"),
    "best_of": Field(
        Integer(minimum=1, maximum=CHOICES_MAX), "No more than `n`: none is thrown away."
    ),
    "use_beam_search": Field(Unserved(is_empty, "beam search is not served")),
    "prompt_logprobs": sampling_field("prompt_logprobs"),
    "return_tokens_as_token_ids": Field(FLAG, "Logprobs name tokens `token_id:…`."),
    "prompt_embeds": Field(Unserved(is_empty, "embeddings are taken by the Python API alone")),
    "length_penalty": Field(Unserved(one_of(1, 1.0), "beam search is not served")),
    "early_stopping": Field(Unserved(is_empty, "beam search is not served")),
    "detokenize": Field(Unserved(one_of(True), "answers are text")),
    "spaces_between_special_tokens": Field(
        Unserved(one_of(True), "special tokens are spelled as the tokenizer does")
    ),
    **FORM_FIELDS,
}


@attrs.frozen(kw_only=True)
class CompletionOptions:
    """What both requests say beside prompt and sampling. `include_usage` adds a last chunk."""

    stream: bool = False
    include_usage: bool = False
    # The field that asked for a form of the answer; the runtime's refusal is told of it.
    form_field: str = "structured_outputs"
    return_token_ids: bool = False
    # Logprobs name tokens by their ids.
    names_token_ids: bool = False
    runtime: RuntimeOptions = attrs.field(factory=RuntimeOptions)

    @property
    def names(self) -> dict[str, str]:
        """How this request calls what `SamplingParams` calls otherwise; see `to_api_error`."""
        return {"structured_outputs": self.form_field}

    @property
    def with_token_ids(self) -> bool:
        """Whether answers carry token ids, by whichever name it was asked for."""
        return self.return_token_ids or self.runtime.token_ids


def read_shared(
    values: Mapping[str, Any], *, max_tokens: int | None, logprobs: int | None = None
) -> tuple[CompletionOptions, SamplingParams]:
    """Options and parameters out of values that a table has read. Raises `ApiError`."""
    stream = values.get("stream", False)
    stream_options = values.get("stream_options")
    if stream_options is not None and not stream:
        raise bad_field("stream_options", "is only allowed with `stream`")
    runtime = RuntimeOptions()
    extensions: dict[str, Any] = {}
    if "runtime" in values:
        runtime, extensions = split_runtime(values["runtime"])
    for name in ("priority", "cache_salt"):
        if name in values and name not in values.get("runtime", {}):
            runtime = attrs.evolve(runtime, **{name: values[name]})
    arguments = sampling_arguments(values)
    for name in ("temperature", "top_p"):
        if name in values:
            arguments[name] = values[name]
    if max_tokens is not None:
        arguments["max_tokens"] = max_tokens
    arguments["n"] = values.get("n", 1)
    if values.get("best_of", 1) > arguments["n"]:
        raise unsupported("best_of", "must not exceed `n`: all answers are given")
    if "prompt_logprobs" in values:
        if stream:
            raise bad_field("prompt_logprobs", "are told of whole answers, not with `stream`")
        arguments["prompt_logprobs"] = values["prompt_logprobs"]
    if logprobs is not None:
        arguments["logprobs"] = logprobs
    form = form_of({**values, **extensions}, _FORM_NAMES)
    if form is not None:
        extensions["structured_outputs"] = form[1]
    options = CompletionOptions(
        form_field="structured_outputs" if form is None else form[0],
        stream=stream,
        include_usage=bool(stream_options and stream_options.get("include_usage")),
        return_token_ids=values.get("return_token_ids", False),
        names_token_ids=values.get("return_tokens_as_token_ids", False),
        runtime=runtime,
    )
    return options, sampling_params({**arguments, **extensions}, {})
