"""Sampling parameters and structured outputs: every bound, from both sides."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from triolet.engine.errors import InvalidParameter
from triolet.engine.parameter_bounds import (
    Biases,
    Bound,
    Flag,
    InstanceOf,
    Number,
    Texts,
    TokenIds,
    Whole,
)
from triolet.engine.sampling_params import LOGPROB_ITEMS_MAX, PARAMETERS, SamplingParams
from triolet.engine.structured_outputs import (
    CHOICES_MAX,
    GRAMMAR_CHARACTERS_MAX,
    GrammarKind,
    StructuredOutputs,
)

# They may equal a default, or not be comparable at all.
NO_NUMBERS = (math.nan, math.inf, -math.inf, 10**400, "1", True, False, np.zeros(2))


def wrong_values(bound: Bound) -> Iterator[Any]:
    match bound:
        case Whole(least, most):
            yield from (*NO_NUMBERS, least - 1, most + 1, 1.0)
        case Number(least, most):
            yield from (*NO_NUMBERS, least - 0.1, most + 0.1, np.float64(least + 0.1))
        case Flag():
            yield from (1, None, "yes")
        case TokenIds(items_max, items_min):
            yield from ([-1], [1.5], [2**31], [True], [0] * (items_max + 1))
            yield from ([],) * items_min
        case Texts(items_max, characters_max):
            yield from (["a"] * (items_max + 1), [""], [3], ["x" * (characters_max + 1)])
        case Biases(items_max, most):
            yield from ({1: math.nan}, {1: most + 1}, {-1: 1.0}, {2**31: 1.0})
            yield from ([(1, 1.0), (1, 2.0)], dict.fromkeys(range(items_max + 1), 1.0))
        case InstanceOf():
            yield {"json": {}}
        case _:
            raise AssertionError(bound)


def utmost_values(bound: Bound) -> Iterator[Any]:
    match bound:
        case Whole(least, most, also):
            yield from (least, most, also if also is not None else least)
        case Number(least, most):
            yield from (least, most)
        case TokenIds(items_max):
            yield from ([0], [2**31 - 1] * items_max)
        case Texts(items_max, characters_max):
            yield ["x" * characters_max] * items_max
        case Biases(items_max, most):
            yield from ({0: -most, 2**31 - 1: most}, dict.fromkeys(range(items_max), most))


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


@pytest.mark.parametrize("name", PARAMETERS)
def test_out_of_range_is_refused_by_name(name: str) -> None:
    for value in wrong_values(PARAMETERS[name].bound):
        with pytest.raises(InvalidParameter) as caught:
            SamplingParams(**{name: value})
        assert caught.value.parameter == name
        assert name in str(caught.value)


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_bounds_themselves_are_accepted(name: str) -> None:
    for value in utmost_values(PARAMETERS[name].bound):
        SamplingParams(**{name: value})


def test_fewer_tokens_at_least_than_at_most() -> None:
    SamplingParams(max_tokens=1, min_tokens=1)
    with pytest.raises(InvalidParameter, match="min_tokens must not exceed"):
        SamplingParams(min_tokens=3, max_tokens=2)


def test_a_string_is_one_stop_string_and_one_bad_word() -> None:
    params = SamplingParams(stop="the end", bad_words="cat")
    assert (params.stop, params.bad_words) == (("the end",), ("cat",))
    assert params == SamplingParams(stop=["the end"], bad_words=["cat"])


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


def test_each_kind_keeps_its_text() -> None:
    schema = {"type": "integer"}
    assert StructuredOutputs.json(schema).text == json.dumps(schema)
    assert StructuredOutputs.json('{"type":"integer"}').text == '{"type":"integer"}'
    assert StructuredOutputs.json(True).text == "true"
    assert StructuredOutputs.json_object() == StructuredOutputs(GrammarKind.JSON_OBJECT)
    assert StructuredOutputs.regex("a+").text == "a+"
    assert StructuredOutputs.choice(["a", "b"]).text == '["a", "b"]'
    assert StructuredOutputs.grammar("start: /a/").kind is GrammarKind.GRAMMAR
    assert SamplingParams().structured_outputs is None


def test_bounds() -> None:
    StructuredOutputs.regex("a" * GRAMMAR_CHARACTERS_MAX)
    with pytest.raises(InvalidParameter, match="structured_outputs must have at most"):
        StructuredOutputs.regex("a" * (GRAMMAR_CHARACTERS_MAX + 1))
    StructuredOutputs.choice(str(i) for i in range(CHOICES_MAX))
    for choices in ([], [str(i) for i in range(CHOICES_MAX + 1)]):
        with pytest.raises(InvalidParameter, match="choices"):
            StructuredOutputs.choice(choices)


@pytest.mark.parametrize("kind", list(GrammarKind))
def test_what_no_message_can_carry_is_no_text(kind: GrammarKind) -> None:
    with pytest.raises(InvalidParameter, match="structured_outputs must be text: its character 1"):
        StructuredOutputs(kind, "a\ud800")


@pytest.mark.parametrize(
    ("values", "name"),
    [({"stop": 5}, "stop"), ({"stop": [5]}, "stop"), ({"logit_bias": [1]}, "logit_bias")],
    ids=str,
)
def test_what_is_no_list_is_refused_by_name(values: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**values)
    assert caught.value.parameter == name
