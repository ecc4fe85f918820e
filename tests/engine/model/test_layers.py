"""Layers alone: right by torch's own, and each row for itself in bitwise mode."""

import math

import pytest
import torch
from torch.nn import functional

from triolet.engine.model.layers import (
    PACKED_INPUTS_MAX,
    PIECE_ITEMS,
    PackedLinear,
    PlainLinear,
    RotaryTable,
    StripLinear,
    exp2_,
    has_packed_linear,
    make_linear,
    padded_rows,
    rms_norm,
    rotate,
    silu_and_multiply,
)
from triolet.engine.model_config import Llama3Scaling

CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_rows_are_padded_to_whole_tiles() -> None:
    assert [padded_rows(rows) for rows in (0, 1, 16, 17, 64)] == [0, 16, 16, 32, 64]


BITWISE = pytest.mark.parametrize("kind", [PackedLinear, StripLinear])


@BITWISE
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 8), (64, 64), (130, 60), (256, 96)])
def test_linear_in_tiles_is_the_product(
    kind: type[PackedLinear | StripLinear], outputs: int, inputs: int
) -> None:
    weight, x = random(outputs, inputs), random(48, inputs, seed=1)
    expected = x.double() @ weight.double().T
    for linear in (kind.of(weight), PlainLinear(weight)):
        y = linear(x)
        assert y.shape == (48, outputs)
        assert y.is_contiguous()
        assert torch.allclose(y.double(), expected, atol=1e-4)


@BITWISE
@pytest.mark.parametrize(("outputs", "inputs"), [(40, 77), (64, 64), (192, 60), (64, 2048)])
def test_a_row_of_a_tiled_linear_is_its_own(
    kind: type[PackedLinear | StripLinear], outputs: int, inputs: int
) -> None:
    linear = kind.of(random(outputs, inputs))
    row = random(inputs, seed=1)
    alone = linear(functional.pad(row[None], (0, 0, 0, 15)))[0]
    for rows, place, threads in ((16, 15, 1), (32, 3, 2), (48, 16, 3), (80, 79, 8)):
        torch.set_num_threads(threads)
        x = random(rows, inputs, seed=2)
        x[place] = row
        assert torch.equal(linear(x)[place], alone), (rows, place, threads)


def test_the_kind_of_linear_is_chosen_by_mode_and_width() -> None:
    narrow, wide = torch.empty(2, PACKED_INPUTS_MAX), torch.empty(2, PACKED_INPUTS_MAX + 1)
    assert isinstance(make_linear(narrow, bitwise=False), PlainLinear)
    assert isinstance(make_linear(wide, bitwise=True), StripLinear)
    expected = PackedLinear if has_packed_linear() else StripLinear
    assert isinstance(make_linear(narrow, bitwise=True), expected)


def test_the_widest_packed_linear_does_not_depend_on_threads() -> None:
    if not has_packed_linear():
        pytest.skip("this build of torch has no oneDNN")
    linear = PackedLinear.of(random(16, PACKED_INPUTS_MAX))
    x = random(16, PACKED_INPUTS_MAX, seed=1)
    one = linear(x)
    for threads in (2, 16):
        torch.set_num_threads(threads)
        assert torch.equal(linear(x), one)


def test_rms_norm() -> None:
    x, weight = random(16, 60), random(60, seed=1)
    expected = functional.rms_norm(x, (60,), weight, 1e-5)
    assert torch.allclose(rms_norm(x, weight, 1e-5), expected, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 16, 400])
def test_silu_and_multiply(rows: int) -> None:
    x = random(rows, 154)
    expected = functional.silu(x[:, :77]) * x[:, 77:]
    whole = silu_and_multiply(x.clone())
    assert torch.allclose(whole, expected, atol=1e-6)


@pytest.mark.parametrize("items", [32, 64, PIECE_ITEMS, 3 * PIECE_ITEMS + 96])
def test_exp2_of_an_item_does_not_depend_on_its_place(items: int) -> None:
    x = -random(items).abs() * 8
    alone = torch.stack([exp2_(torch.full((32,), float(value)))[7] for value in x[-40:]])
    assert torch.equal(exp2_(x.clone())[-40:], alone)
    assert torch.allclose(alone, 2 ** x[-40:])


def table(positions: int, scaling: Llama3Scaling | None = None) -> RotaryTable:
    return RotaryTable.of(16, positions, theta=10_000.0, scaling=scaling, device=CPU)


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


def test_llama3_scaling_stretches_long_waves_alone() -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 64)
    at = torch.tensor([40])
    plain, scaled = table(64).at(at)[0][0, 0], table(64, scaling).at(at)[0][0, 0]
    assert float(plain[0]) == float(scaled[0])
    lowest = 40 * 10_000 ** (-2 * 7 / 16)
    assert float(scaled[7]) == pytest.approx(math.cos(lowest / 8), abs=1e-6)
    assert float(plain[7]) == pytest.approx(math.cos(lowest), abs=1e-6)
