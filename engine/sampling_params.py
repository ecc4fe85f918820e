"""What a client may ask of the sampler and of the stop rules, validated once, at construction.

A `SamplingParams` that exists is in range, so no later floor checks it again. The engine validates
what depends on the model (token ids, lengths) when it takes the request in. Must not know torch,
HTTP field names or defaults of any protocol: `api` maps those to this class.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from .errors import InvalidParameter
from .structured_outputs import StructuredOutputs

# vLLM refuses more as well; every stop string is searched for in each piece of text.
STOP_STRINGS_MAX = 16
STOP_STRING_CHARACTERS_MAX = 1024
# Pulled out of the air: families have up to ten, and each is compared with every token.
STOP_TOKEN_IDS_MAX = 1024
# Numbers above this do not fit the signed 64-bit integers of the wire.
SEED_MAX = 2**63 - 1
# No model comes near; larger numbers would not fit the integers of the wire.
TOKENS_MAX = 2**31 - 1
TOKEN_ID_MAX = 2**31 - 1
TEMPERATURE_MAX = 100.0  # OpenAI allows 2; beyond 100 the distribution is flat to float32
TOP_K_MAX = 2**31 - 1
# OpenAI's. Each choice is a request of its own to an engine, charged to admission.
CHOICES_MAX = 128
PENALTY_MAX = 2.0  # OpenAI's and vLLM's: from -2 to 2
# vLLM only wants more than 0; beyond these a logit is 0, or infinite, in float32.
REPETITION_PENALTY_MIN = 0.01
REPETITION_PENALTY_MAX = 100.0
LOGIT_BIAS_MAX = 100.0  # OpenAI's: from -100, which all but forbids, to 100
LOGIT_BIAS_ITEMS_MAX = 1024  # three times what OpenAI documents
# Of a vocabulary up to 256 k: who allows more than a quarter of it forbids the others instead.
ALLOWED_TOKEN_IDS_MAX = 65_536
BAD_WORDS_MAX = 128  # vLLM's
BAD_WORD_CHARACTERS_MAX = 256  # pulled out of the air; a sentence
# What any server may be set to give; what it gives is `EngineSettings.max_logprobs`.
LOGPROBS_MAX = 1024
MAX_LOGPROBS_DEFAULT = 20  # OpenAI's and vLLM's
# What a request's logprobs may be, of prompt and output together: up to 48 MiB, which an engine
# keeps until its end and may have to send in one message. 200 k tokens with 20 alternatives.
LOGPROB_ITEMS_MAX = 2**22
# What `generation_config.json` may say in the place of a client.
_LEFT_TO_THE_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_left_of = operator.attrgetter(*_LEFT_TO_THE_MODEL)
_FLAGS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens")
_flags_of = operator.attrgetter(*_FLAGS)
# Most requests leave all of these alone: one look at them together spares a dozen checks, on both
# sides of the wire.
_SELDOM = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "logprobs",
    "prompt_logprobs",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "truncate_prompt_tokens",
)
_seldom_of = operator.attrgetter(*_SELDOM)
# vLLM's for `truncate_prompt_tokens`: as many as the model takes.
TRUNCATE_TO_MODEL = -1


# `converter=tuple` would do, but mypy then refuses every argument: the type variable is left open.
def _strings(values: Iterable[str]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else tuple(values)  # not its characters


def _token_ids(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)


def _optional_token_ids(values: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def _biases(
    values: Mapping[int, float] | Iterable[tuple[int, float]],
) -> tuple[tuple[int, float], ...]:
    if type(values) is not tuple and isinstance(values, Mapping):
        values = values.items()
    return tuple(values)


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How tokens are chosen, what is told of them, and when a request ends.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 switch a filter off; their order
    is temperature, top_k, top_p, min_p (as that of `transformers`; vLLM has min_p first). None of
    these four and of `repetition_penalty` leaves them to the model's `generation_config.json`; what
    that leaves out is 1 for temperature and penalty, and no filter. `seed` None lets admission
    choose one, so that a replay draws the same tokens; the `n` choices of one request share it and
    draw differently all the same. `max_tokens` None means up to the model's length.

    `frequency_penalty` and `presence_penalty` look at output tokens, `repetition_penalty` at the
    prompt's, too. `logit_bias` is added to the logits of its ids. `allowed_token_ids` forbids all
    others. No output contains one of `bad_words` as the tokenizer spells it, with and without a
    space before it. `min_tokens` forbids what would end the request by a token until then.

    `logprobs` asks for the logprob of each output token and of so many most likely ones (0: of none
    but itself), before any of the above was applied; `prompt_logprobs` the same of the prompt's.
    `truncate_prompt_tokens` keeps the last so many tokens of the prompt, -1 as many as fit.

    Raises `InvalidParameter`, naming the field and its bound.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(default=(), converter=_biases)
    allowed_token_ids: tuple[int, ...] | None = attrs.field(
        default=None, converter=_optional_token_ids
    )
    bad_words: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    stop_token_ids: tuple[int, ...] = attrs.field(default=(), converter=_token_ids)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    # The form that the output must have; None: any.
    structured_outputs: StructuredOutputs | None = None
    truncate_prompt_tokens: int | None = None

    def __attrs_post_init__(self) -> None:
        self._check_lengths()
        self._check_distribution()
        self._check_flags()
        seldom = _seldom_of(self)
        # Types first: 0 and False equal 0.0, and what others make of `==` need not be a bool.
        if (*map(type, seldom),) != _SELDOM_TYPES or seldom != _SELDOM_DEFAULTS:
            self._check_penalties()
            self._check_tokens()
            self._check_stops()
            self._check_told()

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
        changes = {
            name: advised
            for name, own, advised in zip(
                _LEFT_TO_THE_MODEL, _left_of(self), _left_of(defaults), strict=True
            )
            if own is None and advised is not None
        }
        return self._changed(changes) if changes else self

    def with_seed(self, seed: int) -> "SamplingParams":
        """These with a seed, from 0 to `SEED_MAX`."""
        assert 0 <= seed <= SEED_MAX
        return self._changed({"seed": seed})

    def _changed(self, changes: Mapping[str, Any]) -> "SamplingParams":
        """A copy with these values, which are in range: checking all of them again costs most."""
        copy, put = object.__new__(SamplingParams), object.__setattr__
        for name, value in zip(_NAMES, _values_of(self), strict=True):
            put(copy, name, value)
        for name, value in changes.items():
            put(copy, name, value)
        return copy

    def check_model(
        self, *, vocab_size: int, max_logprobs: int, prompt_tokens: int, max_model_len: int
    ) -> None:
        """Check what depends on the model and its server, for a prompt of so many tokens.

        Raises `InvalidParameter`. Here, because frontend and engine check the same.
        """
        for name, token_ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("logit_bias", [token_id for token_id, _ in self.logit_bias]),
        ):
            if token_ids and max(token_ids) >= vocab_size:
                raise InvalidParameter(name, f"must have token ids from 0 to {vocab_size - 1}")
        room = max_model_len - prompt_tokens
        outputs = room if self.max_tokens is None else min(self.max_tokens, room)
        room = LOGPROB_ITEMS_MAX
        for name, alternatives, tokens in (
            ("prompt_logprobs", self.prompt_logprobs, prompt_tokens),
            ("logprobs", self.logprobs, outputs),
        ):
            if alternatives is None:
                continue
            if alternatives > max_logprobs:
                raise InvalidParameter(name, f"must be at most {max_logprobs} (max_logprobs)")
            most = room // (alternatives + 1)
            if tokens > most:
                raise InvalidParameter(name, f"leaves room for {most} tokens, not for {tokens}")
            room -= tokens * (alternatives + 1)

    def within(self, tokens: int) -> "SamplingParams":
        """The same, ending by length after so many tokens at the latest."""
        if self.max_tokens is not None and self.max_tokens <= tokens:
            return self
        return attrs.evolve(self, max_tokens=tokens, min_tokens=min(self.min_tokens, tokens))

    def _check_lengths(self) -> None:
        _check_integer("n", self.n, 1, CHOICES_MAX)
        _check_integer("min_tokens", self.min_tokens, 0, TOKENS_MAX)
        if self.max_tokens is None:
            return
        _check_integer("max_tokens", self.max_tokens, 1, TOKENS_MAX)
        if self.min_tokens > self.max_tokens:
            raise InvalidParameter("min_tokens", f"must not exceed max_tokens ({self.max_tokens})")

    def _check_distribution(self) -> None:
        if self.temperature is not None:
            _check_number("temperature", self.temperature, 0, TEMPERATURE_MAX)
        if self.top_p is not None:
            _check_number("top_p", self.top_p, 0, 1)
            if self.top_p == 0:
                raise InvalidParameter("top_p", "must be a number above 0 and at most 1")
        if self.min_p is not None:
            _check_number("min_p", self.min_p, 0, 1)
        if self.top_k is not None:
            _check_integer("top_k", self.top_k, 0, TOP_K_MAX)
        if self.seed is not None:
            _check_integer("seed", self.seed, 0, SEED_MAX)

    def _check_flags(self) -> None:
        flags = _flags_of(self)
        if (*map(type, flags),) != (bool, bool, bool):
            wrong = next(i for i, flag in enumerate(flags) if type(flag) is not bool)
            raise InvalidParameter(_FLAGS[wrong], "must be True or False")

    def _check_penalties(self) -> None:
        _check_number("presence_penalty", self.presence_penalty, -PENALTY_MAX, PENALTY_MAX)
        _check_number("frequency_penalty", self.frequency_penalty, -PENALTY_MAX, PENALTY_MAX)
        if self.repetition_penalty is not None:
            _check_number(
                "repetition_penalty",
                self.repetition_penalty,
                REPETITION_PENALTY_MIN,
                REPETITION_PENALTY_MAX,
            )

    def _check_tokens(self) -> None:
        _check_count("logit_bias", self.logit_bias, LOGIT_BIAS_ITEMS_MAX)
        _check_token_ids("logit_bias", [token_id for token_id, _ in self.logit_bias])
        for _, bias in self.logit_bias:
            _check_number("logit_bias", bias, -LOGIT_BIAS_MAX, LOGIT_BIAS_MAX)
        if len({token_id for token_id, _ in self.logit_bias}) < len(self.logit_bias):
            raise InvalidParameter("logit_bias", "must name a token id once")
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise InvalidParameter("allowed_token_ids", "must not be empty")
            _check_count("allowed_token_ids", self.allowed_token_ids, ALLOWED_TOKEN_IDS_MAX)
            _check_token_ids("allowed_token_ids", self.allowed_token_ids)
        _check_texts("bad_words", self.bad_words, BAD_WORDS_MAX, BAD_WORD_CHARACTERS_MAX)

    def _check_stops(self) -> None:
        if not isinstance(self.structured_outputs, StructuredOutputs | None):
            raise InvalidParameter("structured_outputs", "must be StructuredOutputs")
        _check_texts("stop", self.stop, STOP_STRINGS_MAX, STOP_STRING_CHARACTERS_MAX)
        _check_count("stop_token_ids", self.stop_token_ids, STOP_TOKEN_IDS_MAX)
        _check_token_ids("stop_token_ids", self.stop_token_ids)

    def _check_told(self) -> None:
        if self.logprobs is not None:
            _check_integer("logprobs", self.logprobs, 0, LOGPROBS_MAX)
        if self.prompt_logprobs is not None:
            _check_integer("prompt_logprobs", self.prompt_logprobs, 0, LOGPROBS_MAX)
        if self.truncate_prompt_tokens not in (None, TRUNCATE_TO_MODEL):
            _check_integer("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, TOKENS_MAX)


_NAMES = tuple(field.name for field in attrs.fields(SamplingParams))
_values_of = operator.attrgetter(*_NAMES)
_SELDOM_DEFAULTS = tuple(attrs.fields_dict(SamplingParams)[name].default for name in _SELDOM)
_SELDOM_TYPES = tuple(map(type, _SELDOM_DEFAULTS))


def _check_integer(name: str, value: object, least: int, most: int) -> None:
    """Python's own types say it: a NaN, a bool or a string is no whole number."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidParameter(name, f"must be a whole number from {least} to {most}")


def _check_number(name: str, value: object, least: float, most: float) -> None:
    """Compares exactly, however long an integer is; a NaN is in no range.

    Numbers of others (numpy's) are no messages.
    """
    is_number = type(value) in (int, float)
    if not (is_number and least <= value <= most):  # type: ignore[operator]
        raise InvalidParameter(name, f"must be a number from {least:g} to {most:g}")


def _check_token_ids(name: str, values: Sequence[int]) -> None:
    """Quick for many: a request may allow some ten thousand, and each way it goes checks them."""
    is_sound = not values or (
        {type(value) for value in values} == {int}
        and min(values) >= 0
        and max(values) <= TOKEN_ID_MAX
    )
    if not is_sound:
        raise InvalidParameter(name, "must be token ids of the model's vocabulary")


def _check_count(name: str, values: tuple[object, ...], most: int) -> None:
    if len(values) > most:
        raise InvalidParameter(name, f"must be at most {most}, not {len(values)}")


def _check_texts(name: str, values: tuple[str, ...], most: int, characters_max: int) -> None:
    if len(values) > most:
        raise InvalidParameter(name, f"must be at most {most} strings, not {len(values)}")
    for text in values:
        if not isinstance(text, str) or not 0 < len(text) <= characters_max:
            reason = f"each must be a string of 1 to {characters_max} characters"
            raise InvalidParameter(name, reason)
