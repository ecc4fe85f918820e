"""Rotary embedding as old and new folders say it; what is not served is named."""

from typing import Any

import pytest

from triolet.engine.errors import ModelFolderError
from triolet.engine.model_config.folder import Fields
from triolet.engine.model_config.rope import (
    POSITIONS_MAX,
    LinearScaling,
    Llama3Scaling,
    Rope,
    YarnScaling,
    read_rope,
    read_window_ropes,
    stretched_length,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def fields(**values: Any) -> Fields:
    return Fields("config.json", values)


@pytest.mark.parametrize(
    "values",
    [
        {"rope_scaling": LLAMA3, "rope_theta": 5e5},
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}, "rope_theta": 1e4},
        {"rope_scaling": {**LLAMA3, "type": "llama3"}, "rope_theta": 5e5},
    ],
)
def test_old_and_new_folders(values: dict[str, Any]) -> None:
    assert read_rope(fields(**values), 256) == Rope(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192))


@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [
        (None, None),
        ({}, None),
        ({"rope_type": "default"}, None),
        ({"rope_type": "dynamic", "factor": 2}, None),
        ({"type": "linear", "factor": 2}, LinearScaling(2.0)),
        ({**LLAMA3, "original_max_position_embeddings": None}, Llama3Scaling(8.0, 1.0, 4.0, 256)),
        (
            {"rope_type": "yarn", "original_max_position_embeddings": 64, "attention_factor": 1.5},
            YarnScaling(4.0, 32.0, 1.0, 64, 1.5, truncate=True),
        ),
    ],
)
def test_variants(parameters: Any, scaling: Any) -> None:
    assert read_rope(fields(rope_scaling=parameters), 256) == Rope(10_000.0, scaling)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope' is not served: default, linear"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "is not served"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor must be a number, not None"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -2}}, "factor must be from"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor must be below"),
        ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 1e4}}, "whole number"),
        ({"rope_scaling": []}, "rope_scaling must be an object"),
        ({"rope_parameters": {"full_attention": {}}}, "differ between layers"),
        ({"rope_theta": 1}, "rope_theta must be from 1.001"),
        ({"rope_theta": 10**400}, "rope_theta must be from"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not served"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is not served"),
    ],
)
def test_what_is_not_served_is_named(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelFolderError, match=reason):
        read_rope(fields(**values), 256)


FULL, SLIDING = "full_attention", "sliding_attention"
LINEAR = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    ("values", "ropes"),
    [
        ({}, (Rope(1e6, None), Rope(1e4, None))),
        ({"rope_theta": 5e5, "rope_local_base_freq": 2e4}, (Rope(5e5, None), Rope(2e4, None))),
        ({"rope_scaling": LINEAR}, (Rope(1e6, LinearScaling(8.0)), Rope(1e4, None))),
        (
            {"rope_parameters": {FULL: {**LINEAR, "rope_theta": 3e6}, SLIDING: None}},
            (Rope(3e6, LinearScaling(8.0)), Rope(1e4, None)),
        ),
        (
            {"rope_parameters": {SLIDING: {**LINEAR, "rope_theta": 3e3}}},
            (Rope(1e6, None), Rope(3e3, LinearScaling(8.0))),
        ),
    ],
)
def test_layers_with_a_window_have_a_base_of_their_own(
    values: dict[str, Any], ropes: tuple[Rope, Rope]
) -> None:
    assert read_window_ropes(fields(**values), 256) == ropes


def test_what_is_not_served_of_either_is_named() -> None:
    for kind in (FULL, SLIDING):
        with pytest.raises(ModelFolderError, match="'longrope' is not served"):
            read_window_ropes(fields(rope_parameters={kind: {"rope_type": "longrope"}}), 256)
        with pytest.raises(ModelFolderError, match=f"{kind} must be an object"):
            read_window_ropes(fields(rope_parameters={kind: [1]}), 256)


@pytest.mark.parametrize(
    ("parameters", "length"),
    [
        ({}, 256),
        ({"rope_type": "longrope", "factor": 9}, 256),
        ({"rope_type": "dynamic", "factor": 9}, 256),  # longer ones would change what was computed
        ({"rope_type": "linear", "factor": 2.5}, 640),
        ({"rope_type": "linear", "factor": 1e12}, POSITIONS_MAX),
        ({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "yarn", "original_max_position_embeddings": 64}, 256),
        ({"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 64}, 256),
    ],
)
def test_lengths(parameters: dict[str, Any], length: int) -> None:
    assert stretched_length(fields(rope_scaling=parameters), 256) == length
