"""Messages are drawn by their declared types alone, and pass their own checks."""

from random import Random

import attrs
import pytest

from triolet.engine.messages import AddRequest, FinishReason, RequestOutput
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.drawing import draw_message, draw_value


def test_every_field_is_drawn_sooner_or_later() -> None:
    drawn = [draw_message(Random(seed), AddRequest) for seed in range(100)]
    for field in attrs.fields(AddRequest):
        assert len({repr(getattr(message, field.name)) for message in drawn}) > 1, field.name


def test_classes_that_check_themselves_get_what_they_take() -> None:
    drawn = [draw_message(Random(seed), SamplingParams) for seed in range(100)]
    assert len({params.temperature for params in drawn}) > 1


def test_a_value_is_of_its_type() -> None:
    assert isinstance(draw_message(Random(1), RequestOutput).token_ids, list)
    assert draw_value(Random(1), FinishReason) in FinishReason
    assert {draw_value(Random(seed), int | None) is None for seed in range(20)} == {True, False}
    number, text = draw_value(Random(1), tuple[int, str])
    assert isinstance(number, int)
    assert isinstance(text, str)


def test_a_type_that_no_message_has() -> None:
    with pytest.raises(TypeError, match="drawn"):
        draw_value(Random(1), object)


def test_a_class_that_takes_nothing() -> None:
    @attrs.frozen
    class Shy:
        number: int

        def __attrs_post_init__(self) -> None:
            raise ValueError

    with pytest.raises(TypeError, match="Shy"):
        draw_message(Random(1), Shy)
