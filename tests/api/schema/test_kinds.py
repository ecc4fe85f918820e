"""Token ids with what is added to their logits; how much of a prompt is kept."""

import pytest

from triolet.api.errors import ApiError
from triolet.api.schema.kinds import Biases, PromptLength
from triolet.engine.sampling_params import LOGIT_BIAS_ITEMS_MAX


def test_biases_are_read() -> None:
    assert Biases().read({"5": 1, "007": -2.5}, "b") == ((5, 1.0), (7, -2.5))
    assert Biases().read({}, "b") == ()


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([], "b"),
        ({"x": 1}, "b"),
        ({"": 1}, "b"),
        ({"-1": 1}, "b"),
        ({"1.0": 1}, "b"),
        ({"\u0661": 1}, "b"),
        ({str(2**31): 1}, "b"),
        ({"9" * 5000: 1}, "b"),
        ({"1": 1, "01": 2}, "b"),
        ({"1": None}, "b.1"),
        ({"1": "x"}, "b.1"),
        ({"1": 100.5}, "b.1"),
        (dict.fromkeys(map(str, range(LOGIT_BIAS_ITEMS_MAX + 1)), 1), "b"),
    ],
)
def test_other_biases_are_refused_by_name(value: object, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        Biases().read(value, "b")
    assert caught.value.param == param


@pytest.mark.parametrize("value", [-1, 1, 4096])
def test_lengths_of_a_prompt(value: int) -> None:
    assert PromptLength().read(value, "p") == value


@pytest.mark.parametrize("value", [0, -2, 2**31, "1", 1.5])
def test_lengths_of_no_prompt(value: object) -> None:
    with pytest.raises(ApiError, match="p: must be"):
        PromptLength().read(value, "p")
