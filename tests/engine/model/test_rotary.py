"""Rotary embedding: rotations that keep lengths, and every stretch of long waves."""

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from triolet.engine.model.rotary import RotaryTable, rotate
from triolet.engine.model_config.folder import Fields
from triolet.engine.model_config.rope import (
    LinearScaling,
    Llama3Scaling,
    Rope,
    YarnScaling,
    read_rope,
    rotary_frequencies,
)

CPU = torch.device("cpu")


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def table(positions: int, scaling: LinearScaling | Llama3Scaling | None = None) -> RotaryTable:
    return RotaryTable.of(16, positions, Rope(10_000.0, scaling), device=CPU)


def test_rotation_turns_pairs_by_position_and_keeps_lengths() -> None:
    x = random(3, 2, 16)
    positions = torch.tensor([0, 1, 200])
    turned = rotate(x, table(256).at(positions))
    assert torch.equal(turned[0], x[0])
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-5)
    angle = 200 * 10_000 ** (-2 * 3 / 16)
    first, second = float(x[2, 1, 3]), float(x[2, 1, 11])
    expected = first * math.cos(angle) - second * math.sin(angle)
    assert float(turned[2, 1, 3]) == pytest.approx(expected, abs=1e-5)
    assert float(turned[2, 1, 11]) == pytest.approx(
        second * math.cos(angle) + first * math.sin(angle), abs=1e-5
    )


def test_the_table_does_not_depend_on_its_length() -> None:
    at = torch.arange(0, 1500, 7)
    for mine, other in zip(table(1500).at(at), table(4000).at(at), strict=True):
        assert torch.equal(mine, other)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "dynamic", "factor": 3.0},
        LLAMA3,
        YARN,
        {**YARN, "truncate": False, "beta_fast": 8, "beta_slow": 2},
        {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8},
        {**YARN, "attention_factor": 1.25},
        {"rope_type": "yarn", "factor": 2.0},
        {**YARN, "original_max_position_embeddings": 4},  # the blend is squeezed to one end
    ],
    ids=lambda value: "-".join(map(str, value.values())),
)
@pytest.mark.parametrize("head_size", [16, 64])
def test_frequencies_are_those_of_transformers(parameters: dict[str, Any], head_size: int) -> None:
    values = {**parameters, "rope_theta": 50_000.0}
    config: Any = LlamaConfig(
        head_dim=head_size, max_position_embeddings=2048, rope_parameters=dict(values)
    )
    expected, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, CPU)
    rope = read_rope(Fields("config.json", {"rope_parameters": values}), 2048)
    ours = torch.tensor(rotary_frequencies(head_size, rope))
    assert torch.allclose(ours, expected, rtol=1e-5)
    attention = rope.scaling.attention_factor if isinstance(rope.scaling, YarnScaling) else 1.0
    assert attention == pytest.approx(scale)


def test_yarn_scales_the_rotation_itself() -> None:
    rope = Rope(10_000.0, YarnScaling(4.0, 32.0, 1.0, 512, 1.5, truncate=True))
    turned = rotate(random(1, 1, 16), RotaryTable.of(16, 8, rope, device=CPU).at(torch.tensor([5])))
    assert float(turned.norm()) == pytest.approx(1.5 * float(random(1, 1, 16).norm()), rel=1e-5)
