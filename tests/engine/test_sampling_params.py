"""Every bound of SamplingParams, from both sides."""

import math

import pytest

from triolet.engine.errors import InvalidParameter
from triolet.engine.sampling_params import SEED_MAX, STOP_STRINGS_MAX, SamplingParams

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
    ("stop_token_ids", {"stop_token_ids": [-1]}),
]
ACCEPTED: list[dict[str, object]] = [
    {},
    {"max_tokens": 1, "min_tokens": 1},
    {"temperature": 0.0},
    {"top_p": 1.0, "top_k": 0, "min_p": 0.0},
    {"seed": SEED_MAX},
    {"stop": ["a"] * STOP_STRINGS_MAX},
]


@pytest.mark.parametrize(("field", "values"), REFUSED)
def test_out_of_range_is_refused_by_name(field: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**values)  # type: ignore[arg-type]
    assert caught.value.parameter == field
    assert field in str(caught.value)


@pytest.mark.parametrize("values", ACCEPTED)
def test_the_bounds_themselves_are_accepted(values: dict[str, object]) -> None:
    SamplingParams(**values)  # type: ignore[arg-type]


def test_what_is_left_to_the_model_is_as_it_says() -> None:
    advice = SamplingParams(temperature=0.6, top_k=20, top_p=0.9, min_p=0.1, max_tokens=5)
    assert SamplingParams().with_defaults(advice).distribution == (0.6, 0.9, 20, 0.1)
    own = SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, max_tokens=9)
    assert own.with_defaults(advice) == own
    assert SamplingParams(top_k=3).with_defaults(SamplingParams()).distribution == (
        1.0,
        1.0,
        3,
        0.0,
    )


def test_without_anything_to_fill_in_nothing_is_made_anew() -> None:
    params = SamplingParams(temperature=0.5)
    assert params.with_defaults(SamplingParams()) is params
    assert params.with_defaults(SamplingParams(temperature=0.9)) is params
    assert params.with_defaults(SamplingParams(top_k=3)).top_k == 3
