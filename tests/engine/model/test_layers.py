"""Layers alone: right by torch's own, and each row for itself in bitwise mode."""

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from triolet.engine.model.layers import (
    PACKED_INPUTS_MAX,
    PIECE_ITEMS,
    PackedLinear,
    PlainLinear,
    RmsNorm,
    StripLinear,
    exp2_,
    gelu_and_multiply,
    has_packed_linear,
    make_linear,
    padded_rows,
    silu_and_multiply,
    softcap_,
)

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
    packs = has_packed_linear()
    for weight in (narrow, wide):
        made = make_linear(weight, bitwise=False)
        assert isinstance(made, PackedLinear if packs else PlainLinear)
    assert isinstance(make_linear(wide, bitwise=True), StripLinear)
    assert isinstance(make_linear(narrow, bitwise=True), PackedLinear if packs else StripLinear)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_a_plain_linear_takes_any_number_of_rows(rows: int, dtype: torch.dtype) -> None:
    weight, x = random(130, 60).to(dtype), random(rows, 60, seed=1).to(dtype)
    y = make_linear(weight, bitwise=False)(x)
    expected = x.double() @ weight.double().T
    assert (y.dtype, y.shape) == (dtype, (rows, 130))
    assert (y - expected).abs().max() < {torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype]


def test_the_widest_packed_linear_does_not_depend_on_threads() -> None:
    if not has_packed_linear():
        pytest.skip("this build of torch has no oneDNN")
    linear = PackedLinear.of(random(16, PACKED_INPUTS_MAX))
    x = random(16, PACKED_INPUTS_MAX, seed=1)
    one = linear(x)
    for threads in (2, 16):
        torch.set_num_threads(threads)
        assert torch.equal(linear(x), one)


def test_the_root_mean_square_norm() -> None:
    x, weight = random(16, 60), random(60, seed=1)
    expected = functional.rms_norm(x, (60,), weight, 1e-5)
    assert torch.allclose(RmsNorm(weight, 1e-5, torch.float32)(x), expected, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 16, 400])
def test_silu_and_multiply(rows: int) -> None:
    x = random(rows, 154)
    expected = functional.silu(x[:, :77]) * x[:, 77:]
    whole = silu_and_multiply(x.clone())
    assert torch.allclose(whole, expected, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 16, 400])
def test_gelu_and_multiply(rows: int) -> None:
    x = random(rows, 154)
    expected = functional.gelu(x[:, :77], approximate="tanh") * x[:, 77:]
    whole = gelu_and_multiply(x.clone())
    assert torch.allclose(whole, expected, atol=1e-6)
    alone = torch.cat([gelu_and_multiply(row[None].clone()) for row in x])
    assert torch.equal(whole, alone)


def test_what_a_softcap_bends_back() -> None:
    x = random(20, 131) * 30
    whole = softcap_(x.clone(), 5.0)
    assert torch.allclose(whole, torch.tanh(x / 5.0) * 5.0, atol=1e-5)
    assert torch.equal(whole, torch.cat([softcap_(row[None].clone(), 5.0) for row in x]))


def test_a_norm_rounds_once() -> None:
    x, weight = random(16, 60), random(60, seed=1)
    normed = RmsNorm(weight, 1e-5, torch.bfloat16)(x)
    assert normed.dtype == torch.bfloat16
    assert torch.equal(normed, functional.rms_norm(x, (60,), weight, 1e-5).bfloat16())


@pytest.mark.parametrize("items", [32, 64, PIECE_ITEMS, 3 * PIECE_ITEMS + 96])
def test_exp2_of_an_item_does_not_depend_on_its_place(items: int) -> None:
    x = -random(items).abs() * 8
    alone = torch.stack([exp2_(torch.full((32,), float(value)))[7] for value in x[-40:]])
    assert torch.equal(exp2_(x.clone())[-40:], alone)
    assert torch.allclose(alone, 2 ** x[-40:])


def test_a_norm_of_heads_has_a_weight_for_each() -> None:
    x, weight = random(16, 3, 8), random(3, 8, seed=1)
    whole = RmsNorm(weight, 1e-5, torch.float32)(x)
    for head in range(3):
        assert torch.allclose(
            whole[:, head], functional.rms_norm(x[:, head], (8,), weight[head], 1e-5)
        )


@pytest.mark.parametrize("bitwise", [True, False])
def test_a_bias_is_added_to_the_product(bitwise: bool) -> None:
    weight, bias, x = random(40, 24), random(40, seed=1), random(16, 24, seed=2)
    y = make_linear(weight, bias, bitwise=bitwise)(x)
    assert torch.equal(y, make_linear(weight, bitwise=bitwise)(x) + bias)
    assert torch.allclose(y, functional.linear(x, weight, bias), atol=1e-5)


@pytest.fixture
def other_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    has_packed_linear.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    has_packed_linear.cache_clear()


class OtherOperators:
    """A release of torch in which an operator is gone, or takes something else."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def _reorder_linear_weight(self, *args: object) -> torch.Tensor:
        raise self.error


@pytest.mark.parametrize("error", [AttributeError("gone"), RuntimeError("schema"), TypeError("?")])
def test_without_the_private_operators_strips_do_it(
    other_torch: pytest.MonkeyPatch, error: Exception
) -> None:
    other_torch.setattr(torch.ops, "mkldnn", OtherOperators(error))
    assert not has_packed_linear()
    assert isinstance(make_linear(torch.ones(3, 4), bitwise=True), StripLinear)
    assert isinstance(make_linear(torch.ones(3, 4), bitwise=False), PlainLinear)
