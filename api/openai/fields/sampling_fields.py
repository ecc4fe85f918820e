"""Sampling fields of request bodies, as the declarations of `SamplingParams` have them.

Sans-IO: declarations in, a table of fields out. A parameter that is declared there is a field of
every protocol, with the same bound and sentence; only what protocols name or place differently is
in their own tables.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from ....engine import parameter_bounds as bounds
from ....engine.errors import InvalidParameter
from ....engine.parameter_bounds import TOKEN_ID_MAX
from ....engine.sampling_params import (
    LOGIT_BIAS_ITEMS_MAX,
    LOGIT_BIAS_MAX,
    LOGPROBS_MAX,
    PARAMETERS,
    SEED_MAX,
    TOKENS_MAX,
    TOP_K_MAX,
    TRUNCATE_TO_MODEL,
    SamplingParams,
)
from ...errors import bad_field, to_api_error
from ...schema.fields import (
    FLAG,
    FLOAT_INTEGER_MAX,
    FunctionKind,
    IntegerKind,
    JsonObject,
    Kind,
    NumberKind,
    TextKind,
    TextsKind,
    out_of_range,
    read_array,
    read_object,
    wrong_type,
)
from ...schema.tables import IS_EMPTY, Field, Unserved
from .form_fields import STRUCTURED_OUTPUTS

_BIAS = NumberKind(minimum=-LOGIT_BIAS_MAX, maximum=LOGIT_BIAS_MAX)
_ALTERNATIVES = IntegerKind(minimum=0, maximum=LOGPROBS_MAX)
# Alternatives to a token with their logprobs in the answer; a server may allow fewer.
ALTERNATIVES = FunctionKind(_ALTERNATIVES.read, {**_ALTERNATIVES.schema(), "x-maximum": "logprobs"})
_LENGTH = IntegerKind(minimum=TRUNCATE_TO_MODEL, maximum=TOKENS_MAX)
# Digits of a token id as a name: a pattern can bound no number but by these.
_DIGITS_MAX = len(str(TOKEN_ID_MAX)) - 1
# vLLM's and Hugging Face's spelling of "off", beside 0.
TOP_K_OFF = -1
# The clients' of llama.cpp and Ollama, for one that is left out.
SEED_RANDOM = -1


@attrs.frozen(kw_only=True)
class TokenIdsKind:
    """An array of token ids; what the vocabulary has is checked with the model."""

    items_max: int
    items_min: int = 0
    maximum: int = TOKEN_ID_MAX

    def read(self, value: object, path: str) -> list[int]:
        value = read_array(value, path)
        if not value and self.items_min:
            raise bad_field(path, "must not be empty")
        if len(value) > self.items_max:
            raise bad_field(path, f"must have at most {self.items_max} items")
        if all(type(item) is int for item in value):
            if value and not (min(value) >= 0 and max(value) <= self.maximum):
                raise bad_field(path, f"must have token ids from 0 to {self.maximum}")
            return value
        if all(type(item) is int or _is_whole(item) for item in value):
            return self.read([int(item) for item in value], path)
        wrong = next(index for index, item in enumerate(value) if type(item) is not int)
        raise wrong_type(f"{path}[{wrong}]", "an integer", value[wrong])

    def schema(self) -> JsonObject:
        items = {"type": "integer", "minimum": 0, "maximum": self.maximum}
        items["x-maximum"] = "vocabulary"
        bounds = {"minItems": self.items_min, "maxItems": self.items_max}
        return {"type": "array", **bounds, "items": items}


def _is_whole(value: object) -> bool:
    """Whether it is an integer in JSON Schema's sense, such as 3.0."""
    return isinstance(value, float) and value.is_integer() and abs(value) < FLOAT_INTEGER_MAX


def _read_biases(value: object, path: str) -> tuple[tuple[int, float], ...]:
    given = read_object(value, path).values
    if len(given) > LOGIT_BIAS_ITEMS_MAX:
        raise bad_field(path, f"must have at most {LOGIT_BIAS_ITEMS_MAX} token ids")
    found: dict[int, float] = {}
    for name, bias in given.items():
        is_number = name.isascii() and name.isdecimal() and len(name) <= _DIGITS_MAX
        if not is_number:
            raise bad_field(path, f"keys must be token ids, not {name[:40]!r}")
        if int(name) in found:
            raise bad_field(path, f"names token {int(name)} twice")
        found[int(name)] = _BIAS.read(bias, f"{path}.{name}")
    return tuple(found.items())


def _read_prompt_length(value: object, path: str) -> int:
    length = _LENGTH.read(value, path)
    if length == 0:
        raise out_of_range(path, f"{TRUNCATE_TO_MODEL}, or from 1 to {TOKENS_MAX}")
    return length


def kind_of(bound: bounds.Bound) -> Kind[Any]:
    """Kind of field that takes the values within a bound."""
    match bound:
        case bounds.Whole(least, most, None):
            return IntegerKind(minimum=least, maximum=most)
        case bounds.Number(least, most, None):
            return NumberKind(minimum=least, maximum=most)
        case bounds.Flag():
            return FLAG
        case bounds.Text(characters_max):
            return TextKind(characters_max=characters_max)
        case bounds.Texts(items_max, characters_max):
            return TextsKind(items_max=items_max, characters_max=characters_max)
        case bounds.TokenIds(items_max, items_min):
            return TokenIdsKind(items_max=items_max, items_min=items_min)
    raise AssertionError(f"no kind of field for {bound}")


# Kinds that do not follow from a bound alone.
_OWN_KINDS: Mapping[str, Kind[Any]] = MappingProxyType(
    {
        "prompt_logprobs": ALTERNATIVES,
        "top_k": IntegerKind(minimum=TOP_K_OFF, maximum=TOP_K_MAX),
        "seed": IntegerKind(minimum=SEED_RANDOM, maximum=SEED_MAX),
        # OpenAI's: an object whose names are token ids, in decimal digits.
        "logit_bias": FunctionKind(
            _read_biases,
            {
                "type": "object",
                "maxProperties": LOGIT_BIAS_ITEMS_MAX,
                "propertyNames": {"pattern": f"^[0-9]{{1,{_DIGITS_MAX}}}$"},
                "additionalProperties": _BIAS.schema(),
            },
        ),
        "structured_outputs": STRUCTURED_OUTPUTS,
        # vLLM's: so many tokens, or -1 for as many as fit.
        "truncate_prompt_tokens": FunctionKind(
            _read_prompt_length, {**_LENGTH.schema(), "not": {"const": 0}}
        ),
    }
)


def sampling_field(name: str) -> Field:
    """The field of one parameter."""
    parameter = PARAMETERS[name]
    return Field(_OWN_KINDS.get(name) or kind_of(parameter.bound), parameter.about)


# Protocols have these by other names or at other places.
_ELSEWHERE = {"n", "max_tokens", "temperature", "top_p", "logprobs", "prompt_logprobs"}
SAMPLING_FIELDS: dict[str, Field] = {
    name: sampling_field(name) for name in PARAMETERS if name not in _ELSEWHERE
}

# Fields of vLLM's that ask for what is not here, in all protocols.
UNSERVED_FIELDS: dict[str, Field] = {
    "kv_transfer_params": Field(Unserved(IS_EMPTY, "no KV blocks come from another server")),
    "lora_request": Field(Unserved(IS_EMPTY, "LoRA adapters are not served")),
    "mm_processor_kwargs": Field(Unserved(IS_EMPTY, "only text is served")),
}


def sampling_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for `SamplingParams` among the read values of `SAMPLING_FIELDS`."""
    found = {name: value for name, value in values.items() if name in SAMPLING_FIELDS}
    if found.get("top_k") == TOP_K_OFF:
        found["top_k"] = 0
    if found.get("seed") == SEED_RANDOM:
        del found["seed"]
    return found


def sampling_params(arguments: dict[str, Any], names: dict[str, str]) -> SamplingParams:
    """Build the checked parameters. Raises `ApiError` with the protocol's name of the field."""
    try:
        return SamplingParams(**arguments)
    except InvalidParameter as error:
        raise to_api_error(error, names) from None
