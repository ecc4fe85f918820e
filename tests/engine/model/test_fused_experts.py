"""Fused tensors told apart: ranges of the file that are the experts' own matrices."""

import pathlib

import pytest
import torch

from triolet.engine.model.fused_experts import separate_experts
from triolet.engine.model.loader import read_tensor
from triolet.engine.model.safetensors_reader import TensorEntry, open_safetensors
from triolet.engine.model_config.experts import EXPERTS_MAX

from .tiny_models import CPU, safetensors_bytes

LAYER = "model.layers.3.mlp"


def entry(name: str, *shape: int) -> TensorEntry:
    size = torch.Size(shape).numel() * 4
    return TensorEntry(name, "F32", shape, 8, 8 + size)


def test_each_expert_is_a_range_of_the_file(tmp_path: pathlib.Path) -> None:
    gate_up, down = torch.randn(3, 10, 4), torch.randn(3, 4, 5)
    path = tmp_path / "model.safetensors"
    names = (f"{LAYER}.experts.gate_up_proj", f"{LAYER}.experts.down_proj")
    path.write_bytes(safetensors_bytes(dict(zip(names, (gate_up, down), strict=True))))
    expected = {}
    for number in range(3):
        matrices = (gate_up[number, :5], gate_up[number, 5:], down[number])
        for part, matrix in zip(("gate", "up", "down"), matrices, strict=True):
            expected[f"{LAYER}.experts.{number}.{part}_proj.weight"] = matrix
    with open_safetensors(path) as file:
        parts = [part for name in names for part in separate_experts(file.entries[name])]
        assert {part.name for part in parts} == set(expected)
        for separate in parts:
            read = read_tensor(file, separate, dtype=torch.float32, device=CPU)
            assert torch.equal(read, expected[separate.name])


@pytest.mark.parametrize(
    "whole",
    [
        entry(f"{LAYER}.down_proj.weight", 4, 5),
        entry(f"{LAYER}.experts.down_proj", 4, 5),
        entry(f"{LAYER}.experts.gate_up_proj", 2, 5, 4),
        entry(f"{LAYER}.experts.down_proj", EXPERTS_MAX + 1, 0, 4),
    ],
)
def test_what_is_no_fused_tensor_stays_as_it_is(whole: TensorEntry) -> None:
    assert separate_experts(whole) == [whole]


def test_no_experts_are_no_tensors() -> None:
    assert separate_experts(entry(f"{LAYER}.experts.down_proj", 0, 4, 5)) == []
