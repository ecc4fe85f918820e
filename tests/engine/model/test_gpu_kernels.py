"""Kernels for a GPU, beside the stock operators: on one, or interpreted where there is none."""

import math

import pytest
import torch
from torch import Tensor

from triolet.engine.model import decoder, gpu_layers, layers
from triolet.engine.model.attention import AttentionShape, KvCache, plan_attention
from triolet.engine.model.decoder import Destination
from triolet.engine.model.gpu_attention import (
    PagedReads,
    SplitResults,
    TileTokens,
    group_tokens_of,
)
from triolet.engine.model.layers import RmsNorm

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPSILON = 1e-5
LENGTH = 400
BLOCKS = 80
SHAPES = [
    AttentionShape(heads=4, kv_heads=2, size=64),
    AttentionShape(heads=6, kv_heads=2, size=24, windows=(40,)),
    AttentionShape(heads=5, kv_heads=1, size=16, windows=(300,)),
]
# (Row, position): a piece of a prompt across key tiles, a token in the second split, a first token.
TOKENS = [*((0, position) for position in range(60, 68)), (1, 300), (2, 0)]
ALONE = [(first, 1) for first in range(len(TOKENS))]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def assert_near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [16, 70])
def test_a_norm_is_the_stock_one(width: int) -> None:
    x, weight = random(5, width), random(width, seed=1)
    norms = [kind(weight, EPSILON, torch.float32) for kind in (gpu_layers.GpuRmsNorm, RmsNorm)]
    assert_near(norms[0](x), norms[1](x))


@pytest.mark.parametrize("name", ["silu_and_multiply", "gelu_and_multiply"])
def test_a_gate_is_the_stock_one(name: str) -> None:
    x = random(3, 2 * (gpu_layers.GATED_COLUMNS + 76))
    assert_near(getattr(gpu_layers, name)(x), getattr(layers, name)(x.clone()))


@pytest.mark.parametrize("has_norm", [True, False])
def test_heads_are_placed_as_the_stock_operators_do(has_norm: bool) -> None:
    """Two tokens more than slots, and a head whose channels are filled up in the cache."""
    heads, kv_heads, size, tokens = 4, 2, 24, 5
    all_heads = random(tokens + 2, heads + 2 * kv_heads, size)
    norm = RmsNorm(random(heads + kv_heads, size, seed=1), EPSILON, torch.float32)
    rotation = random(tokens + 2, 1, size, seed=2), random(tokens + 2, 1, size, seed=3)
    slots = torch.tensor([5, 3, 7, 0, 1], device=DEVICE)
    found = []
    for place in (gpu_layers.place_heads, decoder.place_heads):
        keys, values = (torch.full((kv_heads, 10, 32), 7.0, device=DEVICE) for _ in range(2))
        given = norm if has_norm else None
        found.append(
            (place(all_heads, given, rotation, Destination(keys, values, slots)), keys, values)
        )
    for ours, stock in zip(*found, strict=True):
        assert_near(ours, stock)


def attend(shape: AttentionShape, cache: KvCache, tables: Tensor, groups: list[tuple[int, int]]
           ) -> Tensor:  # fmt: skip
    """As the kernels do, with the step's tokens in these groups."""

    def filled(values: list[int]) -> Tensor:
        return torch.tensor(values + [0] * (len(TOKENS) - len(values)), device=DEVICE)

    rows, positions = zip(*TOKENS, strict=True)
    tile = TileTokens(
        filled([]), filled([*positions]), filled([*rows]),
        filled([first for first, _ in groups]), filled([count for _, count in groups]),
    )  # fmt: skip
    window, results = shape.windows[0], SplitResults.allocate(shape, LENGTH, DEVICE)
    reads = PagedReads(tile, tables, results, window)
    query = random(len(TOKENS), shape.heads, shape.size, seed=4)
    return reads.attend(query, cache, 0, scale=shape.scale)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_the_stock_one(shape: AttentionShape) -> None:
    cache = KvCache.allocate(1, BLOCKS, shape, block_tokens=16, dtype=torch.float32, device=DEVICE)
    for seed, memory in enumerate((cache.keys[0], cache.values[0])):
        memory[..., : shape.size] = random(*memory.shape[:2], shape.size, seed=seed)
    generator = torch.Generator().manual_seed(5)
    tables = torch.randperm(BLOCKS - 5, generator=generator).view(3, -1)
    rows, positions = zip(*TOKENS, strict=True)
    plan = plan_attention(tables, rows, positions, block_tokens=16, shape=shape, device=DEVICE)
    query = random(len(TOKENS), shape.heads, shape.size, seed=4)
    expected = plan.reads[shape.windows[0]].attend(query, cache, 0, scale=shape.scale)
    # What is behind a sequence's last token is never read, whatever it is.
    behind = tables[0, 68 // 16] * 16 + 68 % 16
    for memory in (cache.keys[0], cache.values[0]):
        memory[:, behind] = math.nan
        memory[:, (BLOCKS - 5) * 16 :] = math.nan
    pairs = [(0, 2), (2, 2), (4, 2), (6, 2), (8, 1), (9, 1)]
    assert group_tokens_of(shape) >= 8
    for groups in (ALONE, pairs, [(0, 8), (8, 1), (9, 1)]):
        assert_near(attend(shape, cache, tables.to(DEVICE), groups), expected)
