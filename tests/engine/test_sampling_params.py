"""Every bound of SamplingParams, from both sides."""

import math

import numpy as np
import pytest

from triolet.engine.errors import InvalidParameter
from triolet.engine.sampling_params import (
    ALLOWED_TOKEN_IDS_MAX,
    BAD_WORD_CHARACTERS_MAX,
    BAD_WORDS_MAX,
    CHOICES_MAX,
    LOGIT_BIAS_ITEMS_MAX,
    LOGPROB_ITEMS_MAX,
    LOGPROBS_MAX,
    REPETITION_PENALTY_MAX,
    REPETITION_PENALTY_MIN,
    SEED_MAX,
    STOP_STRINGS_MAX,
    STOP_TOKEN_IDS_MAX,
    SamplingParams,
)

NO_PENALTY: tuple[object, ...] = (math.nan, math.inf, -math.inf, -2.1, 101, 10**400, "1", True)
REFUSED: list[tuple[str, dict[str, object]]] = [
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 2**31}),
    ("max_tokens", {"max_tokens": 10**20}),
    ("min_tokens", {"min_tokens": 2**64}),
    ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"min_tokens": 3, "max_tokens": 2}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": math.nan}),
    ("temperature", {"temperature": math.inf}),
    ("top_p", {"top_p": 0.0}),
    ("top_p", {"top_p": 1.01}),
    ("top_p", {"top_p": math.nan}),
    ("min_p", {"min_p": -0.1}),
    ("min_p", {"min_p": 1.1}),
    ("top_k", {"top_k": -1}),
    ("top_k", {"top_k": 2**31}),
    ("seed", {"seed": -1}),
    ("seed", {"seed": SEED_MAX + 1}),
    ("stop", {"stop": ["a"] * (STOP_STRINGS_MAX + 1)}),
    ("stop", {"stop": [""]}),
    ("stop", {"stop": ["x" * 2000]}),
    ("stop", {"stop": [3]}),
    ("stop_token_ids", {"stop_token_ids": [-1]}),
    ("stop_token_ids", {"stop_token_ids": [0] * (STOP_TOKEN_IDS_MAX + 1)}),
    ("stop_token_ids", {"stop_token_ids": [1.5]}),
    ("n", {"n": 0}),
    ("n", {"n": CHOICES_MAX + 1}),
    ("n", {"n": 10**400}),
    ("n", {"n": math.nan}),
    ("n", {"n": True}),
    ("temperature", {"temperature": np.float64(1.0)}),
    ("ignore_eos", {"ignore_eos": 1}),
    ("skip_special_tokens", {"skip_special_tokens": None}),
    ("include_stop_str_in_output", {"include_stop_str_in_output": "yes"}),
    ("structured_outputs", {"structured_outputs": {"json": {}}}),
    ("logprobs", {"logprobs": -1}),
    ("logprobs", {"logprobs": LOGPROBS_MAX + 1}),
    ("logprobs", {"logprobs": 2.0}),
    ("prompt_logprobs", {"prompt_logprobs": -1}),
    ("prompt_logprobs", {"prompt_logprobs": 154_880}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": -2}),
    # They equal what it is when nobody says anything.
    ("presence_penalty", {"presence_penalty": False}),
    ("frequency_penalty", {"frequency_penalty": np.float64(0.0)}),
    ("presence_penalty", {"presence_penalty": np.zeros(2)}),
    *[("presence_penalty", {"presence_penalty": value}) for value in NO_PENALTY],
    *[("frequency_penalty", {"frequency_penalty": value}) for value in NO_PENALTY],
    *[("repetition_penalty", {"repetition_penalty": value}) for value in NO_PENALTY],
    *[("temperature", {"temperature": value}) for value in NO_PENALTY],
    ("presence_penalty", {"presence_penalty": 2.1}),
    ("frequency_penalty", {"frequency_penalty": -2.1}),
    ("repetition_penalty", {"repetition_penalty": 0.0}),
    ("logit_bias", {"logit_bias": {1: math.nan}}),
    ("logit_bias", {"logit_bias": {1: 100.5}}),
    ("logit_bias", {"logit_bias": {-1: 1.0}}),
    ("logit_bias", {"logit_bias": {2**31: 1.0}}),
    ("logit_bias", {"logit_bias": [(1, 1.0), (1, 2.0)]}),
    ("logit_bias", {"logit_bias": dict.fromkeys(range(LOGIT_BIAS_ITEMS_MAX + 1), 1.0)}),
    ("allowed_token_ids", {"allowed_token_ids": []}),
    ("allowed_token_ids", {"allowed_token_ids": [-1]}),
    ("allowed_token_ids", {"allowed_token_ids": range(ALLOWED_TOKEN_IDS_MAX + 1)}),
    ("bad_words", {"bad_words": [""]}),
    ("bad_words", {"bad_words": ["x"] * (BAD_WORDS_MAX + 1)}),
    ("bad_words", {"bad_words": ["x" * (BAD_WORD_CHARACTERS_MAX + 1)]}),
]
# (field, values, what of the model is changed): in range, but not for every model.
NOT_FOR_THE_MODEL: list[tuple[str, dict[str, object], dict[str, int]]] = [
    ("stop_token_ids", {"stop_token_ids": [10]}, {}),
    ("allowed_token_ids", {"allowed_token_ids": [1, 10]}, {}),
    ("logit_bias", {"logit_bias": {10: 1.0}}, {}),
    ("logprobs", {"logprobs": 3}, {}),
    ("prompt_logprobs", {"prompt_logprobs": 3}, {}),
    ("logprobs", {"logprobs": 2}, {"max_model_len": LOGPROB_ITEMS_MAX // 3 + 5}),
    ("prompt_logprobs", {"prompt_logprobs": 2}, {"prompt_tokens": LOGPROB_ITEMS_MAX // 3 + 1}),
    (
        "logprobs",
        {"logprobs": 2, "prompt_logprobs": 2, "max_tokens": 10},
        {"prompt_tokens": LOGPROB_ITEMS_MAX // 3 - 9, "max_model_len": LOGPROB_ITEMS_MAX},
    ),
]
ACCEPTED: list[dict[str, object]] = [
    {},
    {"max_tokens": 1, "min_tokens": 1},
    {"temperature": 0.0},
    {"top_p": 1.0, "top_k": 0, "min_p": 0.0},
    {"seed": SEED_MAX},
    {"stop": ["a"] * STOP_STRINGS_MAX},
    {"n": CHOICES_MAX, "logprobs": 0, "prompt_logprobs": LOGPROBS_MAX},
    {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": REPETITION_PENALTY_MIN},
    {"repetition_penalty": REPETITION_PENALTY_MAX, "truncate_prompt_tokens": -1},
    {"logit_bias": {0: -100, 2**31 - 1: 100}, "allowed_token_ids": [0]},
    {"bad_words": ["x" * BAD_WORD_CHARACTERS_MAX] * BAD_WORDS_MAX},
]


@pytest.mark.parametrize(("field", "values"), REFUSED)
def test_out_of_range_is_refused_by_name(field: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**values)  # type: ignore[arg-type]
    assert caught.value.parameter == field
    assert field in str(caught.value)


def test_a_string_is_one_stop_string_and_one_bad_word() -> None:
    params = SamplingParams(stop="the end", bad_words="cat")
    assert (params.stop, params.bad_words) == (("the end",), ("cat",))
    assert params == SamplingParams(stop=["the end"], bad_words=["cat"])


@pytest.mark.parametrize("values", ACCEPTED)
def test_the_bounds_themselves_are_accepted(values: dict[str, object]) -> None:
    SamplingParams(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "values", "model"), NOT_FOR_THE_MODEL)
def test_what_the_model_or_the_server_does_not_have_is_refused_by_name(
    field: str, values: dict[str, object], model: dict[str, int]
) -> None:
    params = SamplingParams(**values)  # type: ignore[arg-type]
    sizes = {"vocab_size": 10, "max_logprobs": 2, "prompt_tokens": 4, "max_model_len": 100, **model}
    with pytest.raises(InvalidParameter) as caught:
        params.check_model(**sizes)
    assert caught.value.parameter == field


def test_what_a_request_may_ever_need_of_logprobs_counts() -> None:
    sizes = {"vocab_size": 10, "max_logprobs": 2, "prompt_tokens": 10}
    length = LOGPROB_ITEMS_MAX // 3 + 10
    SamplingParams(logprobs=2).check_model(**sizes, max_model_len=length)
    SamplingParams(logprobs=2, max_tokens=5).check_model(**sizes, max_model_len=2 * length)


def test_biases_are_pairs_however_they_are_given() -> None:
    assert SamplingParams(logit_bias={3: 1.5}).logit_bias == ((3, 1.5),)
    assert SamplingParams(logit_bias=[(3, 1.5)]).logit_bias == ((3, 1.5),)


def distribution(params: SamplingParams) -> tuple[object, ...]:
    numbers = params.for_rows()
    return tuple(numbers[name] for name in ("temperature", "top_p", "top_k", "min_p"))


def test_what_is_left_to_the_model_is_as_it_says() -> None:
    advice = SamplingParams(temperature=0.6, top_k=20, top_p=0.9, min_p=0.1, max_tokens=5)
    assert distribution(SamplingParams().with_defaults(advice)) == (0.6, 0.9, 20, 0.1)
    own = SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, max_tokens=9)
    assert own.with_defaults(advice) == own
    assert SamplingParams().with_defaults(SamplingParams(repetition_penalty=1.1)) == (
        SamplingParams(repetition_penalty=1.1)
    )
    chosen = SamplingParams(top_k=3).with_defaults(SamplingParams())
    assert distribution(chosen) == (1.0, 1.0, 3, 0.0)
    assert chosen.for_rows()["repetition_penalty"] == 1.0


def test_without_anything_to_fill_in_nothing_is_made_anew() -> None:
    params = SamplingParams(temperature=0.5)
    assert params.with_defaults(SamplingParams()) is params
    assert params.with_defaults(SamplingParams(temperature=0.9)) is params
    assert params.with_defaults(SamplingParams(top_k=3)).top_k == 3


def test_a_seed_changes_nothing_else() -> None:
    params = SamplingParams(max_tokens=3, stop=["a"], logit_bias={3: 1.5})
    seeded = params.with_seed(7)
    assert seeded == SamplingParams(max_tokens=3, stop=["a"], logit_bias={3: 1.5}, seed=7)
    assert hash(seeded) == hash(
        SamplingParams(max_tokens=3, stop=["a"], logit_bias={3: 1.5}, seed=7)
    )
    assert params.seed is None
    with pytest.raises(AssertionError):
        params.with_seed(-1)
