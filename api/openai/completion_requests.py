"""Request bodies of completions, and what chat completions share: their fields, and typed requests.

Sans-IO: a JSON object in, `CompletionsRequest` or a typed `ApiError` that names the field out.
Sampling fields that OpenAI lacks are taken at the top level too, where vLLM's clients
and benchmarks put them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from ...engine.request_options import NO_OPTIONS, RequestOptions
from ...engine.sampling_params import CHOICES_MAX, TOKENS_MAX, SamplingParams
from ..errors import bad_field, unsupported
from ..schema.fields import FLAG, FunctionKind, IntegerKind, JsonObject, wrong_type
from ..schema.tables import IS_EMPTY, Body, Field, Nested, Unserved, one_of
from .fields.field_rules import COMPLETIONS_RULES
from .fields.form_fields import ANSWER_FORMAT, FORMS, form_of
from .fields.option_fields import OPTION_FIELDS, RANK, request_options, top_level_options
from .fields.responses_fields import MODEL, PROMPT_TOKENS_MAX, RUNTIME_FIELD, STREAM, check_model
from .fields.sampling_fields import (
    ALTERNATIVES,
    SAMPLING_FIELDS,
    UNSERVED_FIELDS,
    TokenIdsKind,
    sampling_arguments,
    sampling_field,
    sampling_params,
)

_PLAIN = ("temperature", "top_p", "prompt_logprobs")
# The older names of forms, and OpenAI's; of these and `structured_outputs` only one may be given.
FORM_FIELDS: dict[str, Field] = {
    "response_format": Field(
        ANSWER_FORMAT, "The answer must be JSON, of a schema if one is given."
    ),
    "guided_json": Field(FORMS["json"], "The older name of `structured_outputs.json`."),
    "guided_regex": Field(FORMS["regex"], "The older name of `structured_outputs.regex`."),
    "guided_choice": Field(FORMS["choice"], "The older name of `structured_outputs.choice`."),
    "guided_grammar": Field(FORMS["grammar"], "The older name of `structured_outputs.grammar`."),
}
_FORM_NAMES = ("structured_outputs", *FORM_FIELDS)
# Kinds of requests; ids of their answers begin with these.
CHAT_KIND, COMPLETIONS_KIND = "chatcmpl", "cmpl"
STREAM_OPTIONS = Body(
    {
        "include_usage": Field(FLAG, "A last chunk has the usage; in others it is null."),
        "continuous_usage_stats": Field(FLAG, "Every chunk has the usage so far."),
    }
)
SHARED_FIELDS: dict[str, Field] = {
    "model": MODEL,
    "temperature": sampling_field("temperature"),
    "top_p": sampling_field("top_p"),
    **SAMPLING_FIELDS,
    "stream": STREAM,
    "stream_options": Field(Nested(STREAM_OPTIONS), "Only with `stream`."),
    **top_level_options(OPTION_FIELDS),
    "return_token_ids": Field(FLAG, "Choices carry token ids, and the prompt's."),
    "runtime": RUNTIME_FIELD,
    "n": sampling_field("n"),
    "best_of": Field(IntegerKind(minimum=1, maximum=CHOICES_MAX), "At most `n`: none is dropped."),
    "use_beam_search": Field(Unserved(IS_EMPTY, "beam search is not served")),
    "prompt_logprobs": sampling_field("prompt_logprobs"),
    "return_tokens_as_token_ids": Field(FLAG, "Logprobs name tokens `token_id:…`."),
    "prompt_embeds": Field(Unserved(IS_EMPTY, "embeddings are taken by the Python API alone")),
    "length_penalty": Field(Unserved(one_of(1, 1.0), "beam search is not served")),
    "early_stopping": Field(Unserved(IS_EMPTY, "beam search is not served")),
    **UNSERVED_FIELDS,
    "detokenize": Field(Unserved(one_of(True), "answers are text")),
    "spaces_between_special_tokens": Field(
        Unserved(one_of(True), "special tokens are spelled as the tokenizer does")
    ),
    **FORM_FIELDS,
}


@attrs.frozen(kw_only=True)
class CompletionOptions:
    """Options of both requests beside prompt and sampling. `include_usage` adds a last chunk."""

    stream: bool = False
    include_usage: bool = False
    # Every chunk has the usage so far.
    continuous_usage: bool = False
    # The field that asked for a form of the answer; a refusal of the runtime names it.
    form_field: str = "structured_outputs"
    # Logprobs name tokens by their ids.
    names_token_ids: bool = False
    # How long a stream goes on without a reader, in seconds.
    keep_s: float = 0.0
    # Answers carry token ids.
    token_ids: bool = False
    # Replaces the text of the prompt.
    input_token_ids: list[int] | None = None
    runtime: RequestOptions = NO_OPTIONS

    @property
    def names(self) -> dict[str, str]:
        """How this request calls what `SamplingParams` calls otherwise; see `to_api_error`."""
        return {"structured_outputs": self.form_field, "engine": RANK}


def read_shared(
    values: Mapping[str, Any],
    names: dict[str, str],
    *,
    max_tokens: int | None,
    logprobs: int | None = None,
) -> tuple[CompletionOptions, SamplingParams]:
    """Options and parameters, of values a table has read. Raises `ApiError`, with these `names`."""
    stream = values.get("stream", False)
    stream_options = values.get("stream_options", {})
    if stream_options and not stream:
        raise bad_field("stream_options", "is only allowed with `stream`")
    runtime: dict[str, Any] = values.get("runtime", {})
    asked = {**top_level_options(values), **runtime}
    asked.pop("events", None)  # chunks have no place for them
    extensions = sampling_arguments(runtime)
    if runtime.get("keep_s") and not stream:
        raise bad_field("runtime.keep_s", "needs `stream`: only streams are resumed")
    arguments = sampling_arguments(values)
    arguments |= {name: values[name] for name in _PLAIN if name in values}
    if max_tokens is not None:
        arguments["max_tokens"] = max_tokens
    arguments["n"] = values.get("n", 1)
    if values.get("best_of", 1) > arguments["n"]:
        raise unsupported("best_of", "must not exceed `n`: all answers are given")
    if stream and "prompt_logprobs" in values:
        raise bad_field("prompt_logprobs", "cannot be combined with `stream`")
    if logprobs is not None:
        arguments["logprobs"] = logprobs
    form = form_of({**values, **extensions}, _FORM_NAMES)
    if form is not None:
        extensions["structured_outputs"] = form[1]
    options = CompletionOptions(
        form_field="structured_outputs" if form is None else form[0],
        stream=stream,
        include_usage=stream_options.get("include_usage", False),
        continuous_usage=stream_options.get("continuous_usage_stats", False),
        token_ids=values.get("return_token_ids", False) or runtime.get("token_ids", False),
        input_token_ids=runtime.get("input_token_ids"),
        names_token_ids=values.get("return_tokens_as_token_ids", False),
        keep_s=runtime.get("keep_s", 0.0),
        runtime=request_options(asked),
    )
    return options, sampling_params({**arguments, **extensions}, names)


# The number of choices that one frontend has in flight by default; a larger batch would be refused
# as overload, for ever.
PROMPTS_MAX = 256
# OpenAI's and vLLM's, for this route alone.
MAX_TOKENS_DEFAULT = 16
_TOKEN_IDS = TokenIdsKind(items_min=1, items_max=PROMPT_TOKENS_MAX)
TextOrIds = str | list[int]


def _read_prompts(value: object, path: str) -> list[TextOrIds]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise wrong_type(path, "a string, token ids, or an array of either", value)
    if not value:
        raise bad_field(path, "must not be empty")
    if isinstance(value[0], int | float):  # 1.0 is a token id as well
        return [_TOKEN_IDS.read(value, path)]
    if len(value) > PROMPTS_MAX:
        raise bad_field(path, f"must have at most {PROMPTS_MAX} prompts")
    return [_read_one(item, f"{path}[{index}]") for index, item in enumerate(value)]


def _read_one(value: object, path: str) -> TextOrIds:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of token ids", value)
    return _TOKEN_IDS.read(value, path)


# Text, token ids, or an array of either; read as a list of prompts.
_ONE: list[JsonObject] = [{"type": "string"}, _TOKEN_IDS.schema()]
_BATCH: JsonObject = {
    "type": "array",
    "minItems": 1,
    "maxItems": PROMPTS_MAX,
    "items": {"anyOf": _ONE},
}
_PROMPTS = FunctionKind(_read_prompts, {"anyOf": [*_ONE, _BATCH]})
COMPLETIONS = Body(
    {
        "prompt": Field(_PROMPTS, "A text, token ids, or a batch of either.", required=True),
        "max_tokens": Field(
            IntegerKind(minimum=0, maximum=TOKENS_MAX),
            f"So many tokens at most, {MAX_TOKENS_DEFAULT} by default; 0 only with `echo`.",
        ),
        "echo": Field(FLAG, "The answer begins with the prompt."),
        "add_special_tokens": Field(
            FLAG, "Put what the model expects around a text; on by default."
        ),
        **SHARED_FIELDS,
        "suffix": Field(Unserved(IS_EMPTY, "fill-in-the-middle is not supported")),
        "logprobs": Field(
            ALTERNATIVES,
            "Tell the logprob of each token, with `echo` of the prompt's, too, and of so many most"
            " likely ones.",
        ),
    },
    rules=COMPLETIONS_RULES,
)


@attrs.frozen(kw_only=True)
class CompletionsRequest:
    """Completions request, validated.

    Without `keeps_output` the prompts are echoed alone: if no logprobs are wanted of them, nothing
    is computed. `with_prompt_logprobs`: in vLLM's field, beside the choices' own.
    """

    kind: ClassVar[str] = COMPLETIONS_KIND
    prompts: list[TextOrIds]
    sampling: SamplingParams
    options: CompletionOptions
    echo: bool = False
    add_special_tokens: bool = True
    keeps_output: bool = True
    with_prompt_logprobs: bool = False

    @property
    def names(self) -> dict[str, str]:
        """How this request calls what `SamplingParams` calls otherwise; see `to_api_error`."""
        names = self.options.names
        return names if self.with_prompt_logprobs else {**names, "prompt_logprobs": "logprobs"}

    @property
    def generates(self) -> bool:
        """Whether an engine is needed."""
        return self.keeps_output or self.sampling.prompt_logprobs is not None

    @property
    def echoes_logprobs(self) -> bool:
        """Whether the logprobs of an answer begin with the prompt's."""
        return self.echo and self.sampling.logprobs is not None


def read_completions_request(body: JsonObject, *, model: str) -> CompletionsRequest:
    """Validate one body; `model` is the served one. Raises `ApiError`."""
    values = COMPLETIONS.read(body)
    check_model(values.get("model"), model)
    echo, max_tokens = values.get("echo", False), values.get("max_tokens", MAX_TOKENS_DEFAULT)
    if max_tokens == 0 and not echo:
        raise bad_field("max_tokens", "must be at least 1 without `echo`")
    logprobs = values.get("logprobs")
    # A prompt is scored by computing it, which brings one token; it is thrown away.
    options, sampling = read_shared(values, {}, max_tokens=max_tokens or 1, logprobs=logprobs)
    if echo and logprobs is not None:
        asked = max(logprobs, sampling.prompt_logprobs or 0)
        sampling = attrs.evolve(sampling, prompt_logprobs=asked)
    prompts: list[TextOrIds] = values["prompt"]
    if len(prompts) * sampling.n > PROMPTS_MAX:
        raise bad_field("n", f"must be at most {PROMPTS_MAX}, multiplied by the number of prompts")
    if options.input_token_ids is not None:
        raise bad_field("runtime.input_token_ids", "is for chat; send token ids as `prompt`")
    return CompletionsRequest(
        prompts=prompts,
        sampling=sampling,
        options=options,
        echo=echo,
        add_special_tokens=values.get("add_special_tokens", True),
        keeps_output=max_tokens > 0,
        with_prompt_logprobs="prompt_logprobs" in values,
    )
