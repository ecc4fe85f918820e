"""Arguments of a request: a refusal names its argument; choices are alike but for their number."""

import math
from typing import Any

import attrs
import pytest

from triolet.engine.errors import InvalidParameter
from triolet.engine.messages import AddRequest
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.frontend.frontend import (
    CHOICE_TOKENS_MAX,
    CREDIT_MAX,
    PRIORITY_MAX,
    check_arguments,
    split_choices,
)
from triolet.transports.array import Array

GOOD: dict[str, Any] = {
    "labels": {"request_id": "a", "cache_salt": "ä"},
    "priority": 0,
    "credit": None,
    "events": False,
    "times_s": {"deadline_s": math.inf, "merge_s": 0},
}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"priority": -PRIORITY_MAX},
        {"credit": 0},
        {"credit": CREDIT_MAX},
        {"times_s": {"deadline_s": -1}},
    ],
    ids=str,
)
def test_these_are_taken(changed: dict[str, Any]) -> None:
    check_arguments(**{**GOOD, **changed})


@pytest.mark.parametrize(
    ("changed", "parameter"),
    [
        ({"labels": {"request_id": 5}}, "request_id"),
        ({"labels": {"principal": "\ud800"}}, "principal"),
        ({"priority": "1"}, "priority"),
        ({"priority": 1.0}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": PRIORITY_MAX + 1}, "priority"),
        ({"credit": -1}, "credit"),
        ({"credit": 2.0}, "credit"),
        ({"credit": CREDIT_MAX + 1}, "credit"),
        ({"events": 1}, "events"),
        ({"times_s": {"deadline_s": math.nan}}, "deadline_s"),
        ({"times_s": {"merge_s": "1"}}, "merge_s"),
        ({"times_s": {"merge_s": True}}, "merge_s"),
    ],
    ids=str,
)
def test_these_are_refused_by_name(changed: dict[str, Any], parameter: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_arguments(**{**GOOD, **changed})
    assert caught.value.parameter == parameter


ADD = AddRequest(
    request_id="r",
    attempt=0,
    prompt_token_ids=[1, 2, 3],
    sampling=SamplingParams(seed=5, prompt_logprobs=1, logprobs=2),
)


def test_one_choice_is_the_request_itself() -> None:
    assert split_choices(ADD) == [ADD]


def test_choices_differ_in_number_and_name_alone() -> None:
    whole = attrs.evolve(ADD, sampling=attrs.evolve(ADD.sampling, n=3))
    choices = split_choices(whole)
    assert [choice.request_id for choice in choices] == ["r#0", "r#1", "r#2"]
    assert [choice.choice for choice in choices] == [0, 1, 2]
    assert {choice.parent for choice in choices} == {"r"}
    assert [choice.sampling.prompt_logprobs for choice in choices] == [1, None, None]
    for choice in choices:
        assert (choice.sampling.seed, choice.sampling.logprobs) == (5, 2)
        again = attrs.evolve(choice, request_id="r", choice=0, parent="")
        assert attrs.evolve(again, sampling=whole.sampling) == whole


def test_too_many_bytes_of_embeddings_are_refused() -> None:
    array = Array("float32", (3, 2**19), bytes(3 * 2**21))
    sampling = SamplingParams(seed=1, n=8)
    fits = attrs.evolve(ADD, sampling=sampling, prompt_embeds=array)
    assert [one.prompt_embeds for one in split_choices(fits)] == [array] * 8
    with pytest.raises(InvalidParameter, match="n must be at most 8 for embeddings of 6291456"):
        split_choices(attrs.evolve(fits, sampling=attrs.evolve(sampling, n=9)))


@pytest.mark.parametrize("allowed", [None, tuple(range(10))])
def test_too_much_together_is_refused(allowed: tuple[int, ...] | None) -> None:
    sampling = SamplingParams(seed=1, n=128, allowed_token_ids=allowed)
    tokens = CHOICE_TOKENS_MAX // 128 - len(allowed or ())
    fits = attrs.evolve(ADD, sampling=sampling, prompt_token_ids=[1] * tokens)
    assert len(split_choices(fits)) == 128
    with pytest.raises(InvalidParameter, match="n must be at most 127"):
        split_choices(attrs.evolve(fits, prompt_token_ids=[1] * (tokens + 1)))
