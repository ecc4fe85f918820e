"""What a client may ask of the sampler and of the stop rules, validated once, at construction.

A `SamplingParams` that exists is in range, so no later floor checks it again. The engine validates
what depends on the model (token ids, lengths) when it takes the request in. Must not know torch,
HTTP field names or defaults of any protocol: `api` maps those to this class.
"""

import math
from collections.abc import Iterable

import attrs

from .errors import InvalidParameter
from .structured_outputs import StructuredOutputs

# vLLM refuses more as well; every stop string is searched for in each piece of text.
STOP_STRINGS_MAX = 16
STOP_STRING_CHARACTERS_MAX = 1024
# Numbers above this do not fit the signed 64-bit integers of the wire.
SEED_MAX = 2**63 - 1
# No model comes near; larger numbers would not fit the integers of the wire.
TOKENS_MAX = 2**31 - 1
TEMPERATURE_MAX = 100.0  # OpenAI allows 2; beyond 100 the distribution is flat to float32


# `converter=tuple` would do, but mypy then refuses every argument: the type variable is left open.
def _strings(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


def _token_ids(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)


def _finite(value: float, name: str) -> None:
    if not math.isfinite(value):
        raise InvalidParameter(name, f"must be a finite number, not {value}")


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How tokens are chosen and when a request ends.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 switch a filter off; their order
    is temperature, top_k, top_p, min_p (as vLLM's). None of these four leaves them to the model's
    `generation_config.json`; what that leaves out is temperature 1 and no filter. `seed` None lets
    admission choose one, so that a replay draws the same tokens. `max_tokens` None means up to the
    model's length.

    Raises `InvalidParameter`, naming the field and its bound.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    stop_token_ids: tuple[int, ...] = attrs.field(default=(), converter=_token_ids)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    # The form that the output must have; None: any.
    structured_outputs: StructuredOutputs | None = None

    def __attrs_post_init__(self) -> None:
        self._check_lengths()
        self._check_distribution()
        self._check_stops()

    def _check_lengths(self) -> None:
        if self.max_tokens is not None and not 1 <= self.max_tokens <= TOKENS_MAX:
            raise InvalidParameter("max_tokens", f"must be from 1 to {TOKENS_MAX}")
        if not 0 <= self.min_tokens <= TOKENS_MAX:
            raise InvalidParameter("min_tokens", f"must be from 0 to {TOKENS_MAX}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter("min_tokens", f"must not exceed max_tokens ({self.max_tokens})")

    @property
    def distribution(self) -> tuple[float, float, int, float]:
        """Temperature, top_p, top_k and min_p; what nobody has chosen is 1, or off."""
        return (
            1.0 if self.temperature is None else self.temperature,
            1.0 if self.top_p is None else self.top_p,
            0 if self.top_k is None else self.top_k,
            0.0 if self.min_p is None else self.min_p,
        )

    def with_defaults(self, defaults: "SamplingParams") -> "SamplingParams":
        """These, where what is left to the model is as `defaults` say."""
        temperature = defaults.temperature if self.temperature is None else self.temperature
        top_p = defaults.top_p if self.top_p is None else self.top_p
        top_k = defaults.top_k if self.top_k is None else self.top_k
        min_p = defaults.min_p if self.min_p is None else self.min_p
        filled = (temperature, top_p, top_k, min_p)
        if filled == (self.temperature, self.top_p, self.top_k, self.min_p):
            return self
        return attrs.evolve(self, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)

    def _check_distribution(self) -> None:
        temperature, top_p, top_k, min_p = self.distribution
        _finite(temperature, "temperature")
        _finite(top_p, "top_p")
        _finite(min_p, "min_p")
        if not 0 <= temperature <= TEMPERATURE_MAX:
            raise InvalidParameter("temperature", f"must be from 0 to {TEMPERATURE_MAX:g}")
        if not 0 < top_p <= 1:
            raise InvalidParameter("top_p", f"must be above 0 and at most 1, not {top_p}")
        if not 0 <= min_p <= 1:
            raise InvalidParameter("min_p", f"must be from 0 to 1, not {min_p}")
        if not 0 <= top_k < 2**31:
            raise InvalidParameter("top_k", f"must be 0 (off) or a positive number, not {top_k}")
        if self.seed is not None and not 0 <= self.seed <= SEED_MAX:
            raise InvalidParameter("seed", f"must be from 0 to {SEED_MAX}")

    def _check_stops(self) -> None:
        if len(self.stop) > STOP_STRINGS_MAX:
            raise InvalidParameter("stop", f"must be at most {STOP_STRINGS_MAX} strings")
        for text in self.stop:
            if not 0 < len(text) <= STOP_STRING_CHARACTERS_MAX:
                raise InvalidParameter(
                    "stop", f"each string must have 1 to {STOP_STRING_CHARACTERS_MAX} characters"
                )
        if any(not 0 <= token_id < 2**31 for token_id in self.stop_token_ids):
            raise InvalidParameter("stop_token_ids", "must be token ids of the model's vocabulary")
