"""What chat completions and completions have in common: fields, and how they become parameters.

Sans-IO: tables and read values in, typed values or `ApiError` out. Sampling fields that OpenAI
lacks are taken at the top level too, where vLLM's clients and benchmarks put them. Must not know
prompts or how answers look.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from ...engine.sampling_params import (
    CHOICES_MAX,
    LOGPROBS_MAX,
    TEMPERATURE_MAX,
    TOKENS_MAX,
    SamplingParams,
)
from ..errors import bad_field, unsupported
from ..schema.reader import (
    Body,
    Field,
    Flag,
    Integer,
    Nested,
    Number,
    Text,
    Unserved,
    is_empty,
    one_of,
)
from .output_format import FORM_FIELDS, form_of
from .prompt_fields import (
    CACHE_SALT,
    PRIORITY,
    RUNTIME_FIELD,
    SAMPLING_FIELDS,
    RuntimeOptions,
    sampling_arguments,
    sampling_params,
    split_runtime,
)

MAX_TOKENS = Integer(minimum=1, maximum=TOKENS_MAX)
STREAM_OPTIONS = Body(
    {
        "include_usage": Field(Flag(), "A last chunk tells the usage."),
        "continuous_usage_stats": Field(Unserved(is_empty, "usage comes with the last chunk")),
    }
)
SHARED_FIELDS: dict[str, Field] = {
    "model": Field(Text(), "The served model; absent means it."),
    "temperature": Field(Number(minimum=0, maximum=TEMPERATURE_MAX), "0 is greedy."),
    "top_p": Field(
        Number(minimum=0, maximum=1, is_above=True), "Draw from the most probable tokens up to it."
    ),
    **SAMPLING_FIELDS,
    "stream": Field(Flag(), "Answer with server-sent events as tokens come."),
    "stream_options": Field(Nested(STREAM_OPTIONS), "Only with `stream`."),
    "priority": PRIORITY,
    "cache_salt": CACHE_SALT,
    "return_token_ids": Field(Flag(), "Choices carry token ids, and the prompt's."),
    "runtime": RUNTIME_FIELD,
    "n": Field(Integer(minimum=1, maximum=CHOICES_MAX), "So many answers to each prompt."),
    "best_of": Field(
        Integer(minimum=1, maximum=CHOICES_MAX), "No more than `n`: none is thrown away."
    ),
    "use_beam_search": Field(Unserved(is_empty, "beam search is not served")),
    "prompt_logprobs": Field(
        Integer(minimum=0, maximum=LOGPROBS_MAX),
        "Logprobs of the prompt's tokens, and of so many most likely ones; not with `stream`.",
    ),
    "return_tokens_as_token_ids": Field(Flag(), "Logprobs name tokens `token_id:…`."),
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
    form = form_of({**values, **extensions})
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
