"""A mixture alone: each token's own experts, weighted, and nothing of its neighbours'."""

import pathlib

import pytest
import torch
from torch.nn import functional

from triolet.engine.model.decoder import GatedMlp
from triolet.engine.model.experts import ExpertsMlp
from triolet.engine.model.layers import make_linear, padded_rows
from triolet.engine.model.loader import read_tensor
from triolet.engine.model.safetensors_reader import TensorEntry, open_safetensors
from triolet.engine.model.weight_folder import separate_experts
from triolet.engine.model_config.experts import EXPERTS_MAX

from .tiny_models import CPU, safetensors_bytes

HIDDEN, WIDTH, EXPERTS, CHOSEN = 24, 20, 7, 3


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


ROUTER = random(EXPERTS, HIDDEN, seed=1)
GATE_UP = random(EXPERTS, 2 * WIDTH, HIDDEN, seed=2)
DOWN = random(EXPERTS, HIDDEN, WIDTH, seed=3)


def make_mixture(*, normalized: bool, bitwise: bool = True) -> ExpertsMlp:
    experts = [
        GatedMlp(make_linear(gate_up, bitwise=bitwise), make_linear(down, bitwise=bitwise))
        for gate_up, down in zip(GATE_UP, DOWN, strict=True)
    ]
    router = make_linear(ROUTER, bitwise=bitwise)
    return ExpertsMlp(
        router, experts, chosen=CHOSEN, normalized=normalized, bitwise=bitwise, dtype=torch.float32
    )


def textbook(x: torch.Tensor, *, normalized: bool) -> torch.Tensor:
    """One token, one expert at a time, in float64."""
    probabilities = functional.softmax(x.double() @ ROUTER.double().T, dim=-1)
    total = torch.zeros(x.shape, dtype=torch.float64)
    for token, row in enumerate(probabilities):
        chosen = sorted(range(EXPERTS), key=lambda expert: -float(row[expert]))[:CHOSEN]
        scale = float(row[chosen].sum()) if normalized else 1.0
        for expert in chosen:
            gate, up = (GATE_UP[expert].double() @ x[token].double()).chunk(2)
            result = DOWN[expert].double() @ (functional.silu(gate) * up)
            total[token] += result * float(row[expert]) / scale
    return total


def padded(x: torch.Tensor) -> torch.Tensor:
    return functional.pad(x, (0, 0, 0, padded_rows(len(x)) - len(x)))


@pytest.mark.parametrize("bitwise", [True, False])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_the_weighted_sum_of_chosen_experts(tokens: int, normalized: bool, bitwise: bool) -> None:
    x = random(tokens, HIDDEN, seed=tokens)
    mixed = make_mixture(normalized=normalized, bitwise=bitwise)(padded(x), tokens)
    assert mixed.shape == (padded_rows(tokens), HIDDEN)
    expected = textbook(x, normalized=normalized)
    assert torch.allclose(mixed[:tokens].double(), expected, atol=1e-4)
    assert not mixed[tokens:].any()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_neighbours_at_the_same_experts_do_not_change_bits(threads: int) -> None:
    mixture, x = make_mixture(normalized=True), random(70, HIDDEN, seed=9)
    alone = torch.cat([mixture(padded(row[None]), 1)[:1] for row in x])
    torch.set_num_threads(threads)
    for begin, end in ((0, 70), (3, 20), (69, 70), (16, 48)):
        assert torch.equal(mixture(padded(x[begin:end]), end - begin)[: end - begin],
                           alone[begin:end])  # fmt: skip


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
