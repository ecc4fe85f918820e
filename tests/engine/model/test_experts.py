"""A mixture alone: each token's own experts, weighted, and nothing of its neighbours'."""

import pytest
import torch
from torch.nn import functional

from triolet.engine.model.decoder import GatedMlp
from triolet.engine.model.experts import ExpertsMlp
from triolet.engine.model.layers import make_linear, padded_rows

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
