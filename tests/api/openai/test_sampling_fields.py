"""Sampling fields follow the declarations of SamplingParams; biases and lengths have own kinds."""

import attrs
import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.completion_requests import COMPLETIONS
from triolet.api.openai.responses_fields import RESPONSES, RUNTIME
from triolet.api.openai.sampling_fields import (
    Biases,
    PromptLength,
    sampling_arguments,
    sampling_params,
)
from triolet.engine.sampling_params import LOGIT_BIAS_ITEMS_MAX, SamplingParams

# What protocols call otherwise, or have at another place than `runtime`.
OWN_NAMES = {"n", "max_tokens", "temperature", "top_p", "logprobs", "prompt_logprobs"}


def test_every_parameter_is_a_field_of_each_protocol() -> None:
    names = {field.name for field in attrs.fields(SamplingParams)}
    assert names <= COMPLETIONS.fields.keys()
    assert names - OWN_NAMES <= RUNTIME.fields.keys()
    assert {"temperature", "top_p", "max_output_tokens", "top_logprobs"} <= RESPONSES.fields.keys()


def test_top_k_has_two_ways_to_be_off() -> None:
    assert sampling_arguments({"top_k": -1, "stream": True}) == {"top_k": 0}


def test_sampling_errors_carry_the_protocols_name() -> None:
    with pytest.raises(ApiError) as caught:
        sampling_params({"max_tokens": 0}, {"max_tokens": "limit"})
    assert caught.value.param == "limit"


def test_biases_are_read() -> None:
    assert Biases().read({"5": 1, "007": -2.5}, "b") == ((5, 1.0), (7, -2.5))
    assert Biases().read({}, "b") == ()


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"": 1}, "b"),
        ({"1.0": 1}, "b"),
        ({"\u0661": 1}, "b"),
        ({str(2**31): 1}, "b"),
        ({"9" * 5000: 1}, "b"),
        ({"1": 1, "01": 2}, "b"),
        ({"1": None}, "b.1"),
        ({"1": 100.5}, "b.1"),
        (dict.fromkeys(map(str, range(LOGIT_BIAS_ITEMS_MAX + 1)), 1), "b"),
    ],
)
def test_other_biases_are_refused_by_name(value: object, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        Biases().read(value, "b")
    assert caught.value.param == param


def test_lengths_of_a_prompt() -> None:
    assert [PromptLength().read(value, "p") for value in (-1, 1, 4096)] == [-1, 1, 4096]
    with pytest.raises(ApiError, match="p: must be -1, or from 1"):
        PromptLength().read(0, "p")
