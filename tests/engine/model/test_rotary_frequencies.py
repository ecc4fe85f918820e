"""Frequencies alone; `test_rotary` compares every stretch with the reference's."""

import math

import pytest

from triolet.engine.model.rotary_frequencies import rotary_frequencies, rotary_scale
from triolet.engine.model_config.rope import LinearScaling, Rope, YarnScaling


def test_each_pair_turns_slower_than_the_one_before() -> None:
    plain = rotary_frequencies(8, Rope(10_000.0, None))
    assert plain == pytest.approx([1.0, 0.1, 0.01, 0.001])
    halved = rotary_frequencies(8, Rope(10_000.0, LinearScaling(2.0)))
    assert halved == [frequency / 2 for frequency in plain]


def test_yarn_alone_scales_what_is_looked_up() -> None:
    yarn = YarnScaling(
        factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=64,
        attention_factor=1 + 0.1 * math.log(4), truncate=True,
    )  # fmt: skip
    assert rotary_scale(Rope(10_000.0, None)) == 1.0
    assert rotary_scale(Rope(10_000.0, yarn)) == yarn.attention_factor
