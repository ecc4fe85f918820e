"""The kinds of values that only a Responses body has; their wrong ones are in test_bad_bodies."""

import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.message_fields import MESSAGES_MAX
from triolet.api.openai.responses_fields import RESPONSES, check_model

MESSAGE = {"role": "user", "content": "x"}


def test_a_text_is_a_message_of_the_user() -> None:
    assert RESPONSES.read({"input": "x"}) == RESPONSES.read({"input": [MESSAGE]})


def test_the_number_of_messages_is_bounded() -> None:
    RESPONSES.read({"input": [MESSAGE] * MESSAGES_MAX})
    with pytest.raises(ApiError, match="at most"):
        RESPONSES.read({"input": [MESSAGE] * (MESSAGES_MAX + 1)})


def test_what_asks_for_nothing_is_not_there() -> None:
    assert RESPONSES.read({"text": {"format": {"type": "text"}}, "other": 1}) == {}


def test_metadata_comes_back_as_it_came() -> None:
    assert RESPONSES.read({"metadata": {"a": "b", "c": None}}) == {"metadata": {"a": "b", "c": ""}}


def test_a_long_model_name_is_cut_in_the_answer() -> None:
    with pytest.raises(ApiError) as caught:
        check_model("x" * 10_000, "toy")
    assert len(caught.value.message) < 300
