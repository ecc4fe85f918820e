"""Kinds of values that only sampling fields have, beside those of `schema`.

Sans-IO: JSON values in, typed values or `ApiError` out. What the vocabulary allows is checked
later, by who knows it. Must not know which protocol has which field.
"""

import attrs

from ...engine.parameter_bounds import TOKEN_ID_MAX
from ...engine.sampling_params import (
    LOGIT_BIAS_ITEMS_MAX,
    LOGIT_BIAS_MAX,
    TOKENS_MAX,
    TRUNCATE_TO_MODEL,
)
from ..errors import bad_field
from .fields import JsonObject
from .reader import Integer, Number, out_of_range, wrong_type

_BIAS = Number(minimum=-LOGIT_BIAS_MAX, maximum=LOGIT_BIAS_MAX)
_LENGTH = Integer(minimum=TRUNCATE_TO_MODEL, maximum=TOKENS_MAX)
# Digits of the largest token id.
_DIGITS_MAX = len(str(TOKEN_ID_MAX))


@attrs.frozen
class Biases:
    """OpenAI's `logit_bias`: an object whose names are token ids, in decimal digits."""

    def read(self, value: object, path: str) -> tuple[tuple[int, float], ...]:
        """See `schema.Kind`."""
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        if len(value) > LOGIT_BIAS_ITEMS_MAX:
            raise bad_field(path, f"must have at most {LOGIT_BIAS_ITEMS_MAX} token ids")
        found: dict[int, float] = {}
        for name, bias in value.items():
            is_number = name.isascii() and name.isdecimal() and len(name) <= _DIGITS_MAX
            if not is_number or int(name) > TOKEN_ID_MAX:
                raise bad_field(path, f"must have token ids for names, not {name[:40]!r}")
            if int(name) in found:
                raise bad_field(path, f"names token {int(name)} twice")
            found[int(name)] = _BIAS.read(bias, f"{path}.{name}")
        return tuple(found.items())

    def schema(self) -> JsonObject:
        """See `schema.Kind`."""
        names: JsonObject = {"pattern": f"^[0-9]{{1,{_DIGITS_MAX}}}$"}
        bounds: JsonObject = {"maxProperties": LOGIT_BIAS_ITEMS_MAX, "propertyNames": names}
        return {"type": "object", **bounds, "additionalProperties": _BIAS.schema()}


@attrs.frozen
class PromptLength:
    """vLLM's `truncate_prompt_tokens`: so many tokens, or -1 for as many as fit."""

    def read(self, value: object, path: str) -> int:
        """See `schema.Kind`."""
        length = _LENGTH.read(value, path)
        if length == 0:
            raise out_of_range(path, f"{TRUNCATE_TO_MODEL}, or from 1 to {TOKENS_MAX}")
        return length

    def schema(self) -> JsonObject:
        """See `schema.Kind`."""
        return {**_LENGTH.schema(), "not": {"const": 0}}
