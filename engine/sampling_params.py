"""Sampling parameters of a request: one declaration each, validated at construction.

A `SamplingParams` that exists is in range, so no later floor checks it again. The engine validates
what depends on the model (token ids, lengths) when it takes the request in.

A parameter is declared here once: its type, default, bound, and the sentence about it. Its check,
the fields of the protocols and their documents, the wire to the engine and, if it is one of
`DistributionParams`, that to the samplers follow from the declaration.
"""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from .errors import InvalidParameter
from .parameter_bounds import (
    Biases,
    Declarations,
    Flag,
    InstanceOf,
    Number,
    Texts,
    TokenIds,
    Whole,
    declared,
    parameter,
)
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
# A quarter of a vocabulary of 256 k: a client that allows more forbids the others instead.
ALLOWED_TOKEN_IDS_MAX = 65_536
BAD_WORDS_MAX = 128  # vLLM's
BAD_WORD_CHARACTERS_MAX = 256  # pulled out of the air; a sentence
# The most that any server may be set to give; it gives `EngineSettings.max_logprobs`.
LOGPROBS_MAX = 1024
MAX_LOGPROBS_DEFAULT = 20  # OpenAI's and vLLM's
# Limit of a request's logprobs, of prompt and output together: up to 48 MiB, which an engine keeps
# until its end and may have to send in one message. 200 k tokens with 20 alternatives.
LOGPROB_ITEMS_MAX = 2**22
# vLLM's for `truncate_prompt_tokens`: as many as the model takes.
TRUNCATE_TO_MODEL = -1


# `converter=tuple` would do, but mypy then refuses every argument: the type variable is left open.
def _strings(values: Iterable[str]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else _all(values)  # not its characters


def _token_ids(values: Iterable[int]) -> tuple[int, ...]:
    return _all(values)


def _optional_token_ids(values: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if values is None else _all(values)


def _all(values: Iterable[Any]) -> tuple[Any, ...]:
    """Values of a list; a lone value is a list of itself, which its bound then refuses."""
    return tuple(values) if isinstance(values, Iterable) else (values,)


def _biases(
    values: Mapping[int, float] | Iterable[tuple[int, float]],
) -> tuple[tuple[int, float], ...]:
    if type(values) is not tuple and isinstance(values, Mapping):
        values = values.items()
    return _all(values)


# Not frozen as it is a part of `RowSampling`, too, which takes three times as long to make if so.
@attrs.define(kw_only=True)
class DistributionParams:
    """The numbers by which samplers change a distribution, of requests and of workers' rows alike.

    A number that is added here goes with every row to both samplers.
    """

    temperature: float | None = parameter(
        None, Number(0, TEMPERATURE_MAX), "0 is greedy.", neutral=1.0
    )
    top_p: float | None = parameter(
        None,
        Number(0, 1),
        "Draw from the most probable tokens up to it; 0 is the best one.",
        neutral=1.0,
    )
    top_k: int | None = parameter(
        None, Whole(0, TOP_K_MAX), "Draw from so many tokens; 0 or -1 is all.", neutral=0
    )
    min_p: float | None = parameter(
        None, Number(0, 1), "Draw from tokens at least so probable as this × the best.", neutral=0.0
    )
    presence_penalty: float = parameter(
        0.0,
        Number(-PENALTY_MAX, PENALTY_MAX),
        "Taken off the logit of each token that the answer has already.",
    )
    frequency_penalty: float = parameter(
        0.0,
        Number(-PENALTY_MAX, PENALTY_MAX),
        "Taken off it as many times as the answer has the token.",
    )
    repetition_penalty: float | None = parameter(
        None,
        Number(REPETITION_PENALTY_MIN, REPETITION_PENALTY_MAX),
        "Divides positive logits, multiplies negative ones, of tokens that prompt or answer have.",
        neutral=1.0,
    )


@attrs.frozen(kw_only=True)
class SamplingParams(DistributionParams):
    """How tokens are chosen, what is reported of them, and when a request ends.

    `top_k` 0, `top_p` 1 and `min_p` 0 switch a filter off; their order is temperature, top_k,
    top_p, min_p (as that of `transformers`; vLLM has min_p first). None leaves these four and
    `repetition_penalty` to the model's `generation_config.json`; what that leaves out changes
    nothing. `seed` None lets admission choose one, so that a replay draws the same tokens; the `n`
    choices of one request share it and draw differently all the same. `max_tokens` None means up to
    the model's length.

    `logprobs` asks for the logprob of each output token and of this number of most likely ones (0:
    of the token alone), before any of the other parameters was applied.

    Raises `InvalidParameter`, naming the field and its bound.
    """

    n: int = parameter(1, Whole(1, CHOICES_MAX), "So many answers to each prompt.")
    max_tokens: int | None = parameter(
        None, Whole(1, TOKENS_MAX), "So many tokens at most, and as many as fit."
    )
    min_tokens: int = parameter(
        0, Whole(0, TOKENS_MAX), "So many tokens before anything may end it."
    )
    seed: int | None = parameter(None, Whole(0, SEED_MAX), "Same seed, same tokens.")
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(
        default=(),
        converter=_biases,
        metadata=declared(
            Biases(LOGIT_BIAS_ITEMS_MAX, LOGIT_BIAS_MAX),
            "Token ids and what is added to their logits.",
        ),
    )
    allowed_token_ids: tuple[int, ...] | None = attrs.field(
        default=None,
        converter=_optional_token_ids,
        metadata=declared(TokenIds(ALLOWED_TOKEN_IDS_MAX, items_min=1), "Draw from these alone."),
    )
    bad_words: tuple[str, ...] = attrs.field(
        default=(),
        converter=_strings,
        metadata=declared(
            Texts(BAD_WORDS_MAX, BAD_WORD_CHARACTERS_MAX),
            "The answer has none of these, as the tokenizer spells them with or without a space.",
        ),
    )
    logprobs: int | None = parameter(None, Whole(0, LOGPROBS_MAX))
    prompt_logprobs: int | None = parameter(
        None,
        Whole(0, LOGPROBS_MAX),
        "Logprobs of the prompt's tokens, and of the N most likely ones; not with `stream`.",
    )
    stop: tuple[str, ...] = attrs.field(
        default=(),
        converter=_strings,
        metadata=declared(
            Texts(STOP_STRINGS_MAX, STOP_STRING_CHARACTERS_MAX),
            "Strings that end the answer; they are not part of it.",
        ),
    )
    stop_token_ids: tuple[int, ...] = attrs.field(
        default=(),
        converter=_token_ids,
        metadata=declared(TokenIds(STOP_TOKEN_IDS_MAX), "Token ids that end the answer."),
    )
    include_stop_str_in_output: bool = parameter(False, Flag(), "Keep the stop string in the text.")
    ignore_eos: bool = parameter(False, Flag(), "Go on after an end of sequence.")
    skip_special_tokens: bool = parameter(True, Flag(), "Leave special tokens out of the text.")
    structured_outputs: StructuredOutputs | None = attrs.field(
        default=None,
        metadata=declared(
            InstanceOf(StructuredOutputs),
            "The answer must match a schema, regex, choice or grammar.",
        ),
    )
    truncate_prompt_tokens: int | None = parameter(
        None,
        Whole(1, TOKENS_MAX, also=TRUNCATE_TO_MODEL),
        "Keep the last so many tokens of the prompt; -1: as many as fit.",
    )

    def __attrs_post_init__(self) -> None:
        _DECLARED.check(self)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter("min_tokens", f"must not exceed max_tokens ({self.max_tokens})")

    def for_rows(self) -> dict[str, Any]:
        """`DistributionParams` as samplers take them: what is left open changes nothing."""
        return {
            name: neutral if value is None else value
            for name, neutral, value in zip(
                _ROW_NAMES, _ROW_NEUTRALS, _row_values_of(self), strict=True
            )
        }

    def with_defaults(self, defaults: "SamplingParams") -> "SamplingParams":
        """Parameters that take from `defaults` what is left to the model."""
        changes = {
            name: advised
            for name, own, advised in zip(
                LEFT_TO_THE_MODEL, _left_of(self), _left_of(defaults), strict=True
            )
            if own is None and advised is not None
        }
        return _DECLARED.changed(self, changes) if changes else self

    def with_seed(self, seed: int) -> "SamplingParams":
        """Parameters with a seed, from 0 to `SEED_MAX`."""
        assert 0 <= seed <= SEED_MAX
        return _DECLARED.changed(self, {"seed": seed})

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


_DECLARED = Declarations(SamplingParams)
PARAMETERS = _DECLARED.parameters
# Parameters that `generation_config.json` may set in the place of a client.
LEFT_TO_THE_MODEL = tuple(name for name, p in PARAMETERS.items() if p.neutral is not None)
_left_of = operator.attrgetter(*LEFT_TO_THE_MODEL)
_ROW_NAMES = tuple(field.name for field in attrs.fields(DistributionParams))
_ROW_NEUTRALS = tuple(PARAMETERS[name].neutral for name in _ROW_NAMES)
_row_values_of = operator.attrgetter(*_ROW_NAMES)
