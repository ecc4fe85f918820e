"""Layers, rotation and experts alone: right by torch's own, and each row for itself."""

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from triolet.engine.model.decoder import GatedMlp
from triolet.engine.model.experts import ExpertsMlp
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
from triolet.engine.model.loader import read_tensor
from triolet.engine.model.rotary import RotaryTable
from triolet.engine.model.safetensors_reader import TensorEntry, open_safetensors
from triolet.engine.model.weight_folder import separate_experts
from triolet.engine.model_config.experts import EXPERTS_MAX
from triolet.engine.model_config.folder import ConfigFields
from triolet.engine.model_config.rope import (
    LinearScaling,
    Llama3Scaling,
    Rope,
    YarnScaling,
    read_rope,
    rotary_frequencies,
)

from .tiny_models import CPU, safetensors_bytes


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_rows_are_padded_to_whole_tiles() -> None:
    assert [padded_rows(rows, CPU) for rows in (0, 1, 16, 17, 64)] == [0, 16, 16, 32, 64]


Gate = Callable[[torch.Tensor], torch.Tensor]
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
@pytest.mark.parametrize("gate", [silu_and_multiply, gelu_and_multiply])
def test_a_gate_is_multiplied_row_by_row(gate: Gate, rows: int) -> None:
    x = random(rows, 154)
    activated = functional.silu(x[:, :77])
    if gate is gelu_and_multiply:
        activated = functional.gelu(x[:, :77], approximate="tanh")
    whole = gate(x.clone())
    assert torch.allclose(whole, activated * x[:, 77:], atol=1e-6)
    assert torch.equal(whole, torch.cat([gate(row[None].clone()) for row in x]))


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


def table(positions: int, scaling: LinearScaling | Llama3Scaling | None = None) -> RotaryTable:
    return RotaryTable.of(16, positions, Rope(10_000.0, scaling), device=CPU)


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
    rope = read_rope(ConfigFields("config.json", {"rope_parameters": values}), 2048)
    ours = torch.tensor(rotary_frequencies(head_size, rope))
    assert torch.allclose(ours, expected, rtol=1e-5)
    attention = rope.scaling.attention_factor if isinstance(rope.scaling, YarnScaling) else 1.0
    assert attention == pytest.approx(scale)


HIDDEN, WIDTH, EXPERTS, CHOSEN = 24, 20, 7, 3


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
    return functional.pad(x, (0, 0, 0, padded_rows(len(x), CPU) - len(x)))


@pytest.mark.parametrize("bitwise", [True, False])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_the_weighted_sum_of_chosen_experts(tokens: int, normalized: bool, bitwise: bool) -> None:
    x = random(tokens, HIDDEN, seed=tokens)
    mixed = make_mixture(normalized=normalized, bitwise=bitwise)(padded(x), tokens)
    assert mixed.shape == (padded_rows(tokens, CPU), HIDDEN)
    expected = textbook(x, normalized=normalized)
    assert torch.allclose(mixed[:tokens].double(), expected, atol=1e-4)
    assert not mixed[tokens:].any()


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
