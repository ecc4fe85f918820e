"""Body of a completions request: one prompt or a batch, as text or as token ids.

Sans-IO: a JSON object in, `CompletionsRequest` or a typed `ApiError` that names the field out.
"""

import attrs

from ...engine.sampling_params import LOGPROBS_MAX, TOKENS_MAX, SamplingParams
from ..errors import bad_field
from ..schema.fields import FLAG, Integer, JsonObject, wrong_type
from ..schema.tables import Body, Field, Unserved, is_empty
from .completion_fields import SHARED_FIELDS, CompletionOptions, read_shared
from .responses_fields import PROMPT_TOKENS_MAX, check_model
from .sampling_fields import TokenIds

# As many as one frontend has in flight by default, each choice of each counted; a larger batch
# would be told to come again, for ever.
PROMPTS_MAX = 256
# OpenAI's and vLLM's, for this route alone.
MAX_TOKENS_DEFAULT = 16
_TOKEN_IDS = TokenIds(items_min=1, items_max=PROMPT_TOKENS_MAX)
TextOrIds = str | list[int]


@attrs.frozen
class Prompts:
    """Text, token ids, or an array of either; read as a list of prompts."""

    def read(self, value: object, path: str) -> list[TextOrIds]:
        """See `fields.Kind`."""
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            raise wrong_type(path, "a string, token ids, or an array of either", value)
        if not value:
            raise bad_field(path, "must not be empty")
        if isinstance(value[0], int):
            return [_TOKEN_IDS.read(value, path)]
        if len(value) > PROMPTS_MAX:
            raise bad_field(path, f"must have at most {PROMPTS_MAX} prompts")
        return [_read_one(item, f"{path}[{index}]") for index, item in enumerate(value)]

    def schema(self) -> JsonObject:
        """See `fields.Kind`."""
        one = [{"type": "string"}, _TOKEN_IDS.schema()]
        batch = {"type": "array", "minItems": 1, "maxItems": PROMPTS_MAX, "items": {"anyOf": one}}
        return {"anyOf": [*one, batch]}


def _read_one(value: object, path: str) -> TextOrIds:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of token ids", value)
    return _TOKEN_IDS.read(value, path)


COMPLETIONS = Body(
    {
        "prompt": Field(Prompts(), "A text, token ids, or a batch of either.", required=True),
        "max_tokens": Field(
            Integer(minimum=0, maximum=TOKENS_MAX),
            f"So many tokens at most, {MAX_TOKENS_DEFAULT} by default; 0 only with `echo`.",
        ),
        "echo": Field(FLAG, "The answer begins with the prompt."),
        "add_special_tokens": Field(
            FLAG, "Put what the model expects around a text; on by default."
        ),
        **SHARED_FIELDS,
        "suffix": Field(Unserved(is_empty, "nothing is filled in before a suffix")),
        "logprobs": Field(
            Integer(minimum=0, maximum=LOGPROBS_MAX),
            "Tell the logprob of each token, with `echo` of the prompt's, too, and of so many most"
            " likely ones.",
        ),
    }
)


@attrs.frozen(kw_only=True)
class CompletionsRequest:
    """One validated request.

    Without `keeps_output` the prompts are echoed alone: if no logprobs are wanted of them, nothing
    is computed. `tells_prompt_logprobs`: in vLLM's field, beside the choices' own.
    """

    prompts: list[TextOrIds]
    sampling: SamplingParams
    options: CompletionOptions
    echo: bool = False
    add_special_tokens: bool = True
    keeps_output: bool = True
    tells_prompt_logprobs: bool = False

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
    options, sampling = read_shared(values, max_tokens=max_tokens or 1, logprobs=logprobs)
    if echo and logprobs is not None:
        asked = max(logprobs, sampling.prompt_logprobs or 0)
        sampling = attrs.evolve(sampling, prompt_logprobs=asked)
    prompts: list[TextOrIds] = values["prompt"]
    if len(prompts) * sampling.n > PROMPTS_MAX:
        raise bad_field("n", f"must bring at most {PROMPTS_MAX} answers to all prompts together")
    if options.runtime.input_token_ids is not None:
        raise bad_field("runtime.input_token_ids", "is for chat; send token ids as `prompt`")
    return CompletionsRequest(
        prompts=prompts,
        sampling=sampling,
        options=options,
        echo=echo,
        add_special_tokens=values.get("add_special_tokens", True),
        keeps_output=max_tokens > 0,
        tells_prompt_logprobs="prompt_logprobs" in values,
    )
