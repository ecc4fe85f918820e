"""Paged attention against the textbook's, for any mixture of rows and any block table."""

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from triolet.engine.model import attention
from triolet.engine.model.attention import (
    AttentionPlan,
    AttentionShape,
    KvCache,
    PairGroup,
    ReadPlan,
    kv_token_bytes,
    plan_attention,
    write_cache,
)

CPU = torch.device("cpu")
SHAPE = AttentionShape(heads=4, kv_heads=2, size=12)


def make_cache(blocks: int, block_tokens: int) -> KvCache:
    return KvCache.allocate(
        1, blocks, SHAPE, block_tokens=block_tokens, dtype=torch.float32, device=CPU
    )


def textbook(
    query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, first: int, window: int = 0
) -> Tensor:
    """Causal attention in float64 of the last tokens of one sequence, from position `first`."""
    groups = SHAPE.heads // SHAPE.kv_heads
    key = key_TKD.double().repeat_interleave(groups, dim=1)
    value = value_TKD.double().repeat_interleave(groups, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query_THD.double(), key) / SHAPE.size**0.5
    keys, own = torch.arange(len(key)), torch.arange(first, first + len(query_THD))[:, None]
    hidden = keys > own
    if window:
        hidden |= keys < own - window + 1
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


@pytest.mark.slow
@given(
    rows=st.lists(st.tuples(st.integers(0, 140), st.integers(1, 20)), min_size=1, max_size=5),
    block_tokens=st.sampled_from([1, 8, 16, 48]),
    window=st.sampled_from([1, 2, 17, 64, 65, 150]),
    seed=st.integers(0, 10**6),
)
def test_any_mixture_is_textbook_attention(
    rows: list[tuple[int, int]], block_tokens: int, window: int, seed: int
) -> None:
    shape = attrs.evolve(SHAPE, windows=(0, window))
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    width = -(-160 // block_tokens)
    tables = torch.randperm(len(rows) * width, generator=generator).view(len(rows), width)
    cache = make_cache(len(rows) * width, block_tokens)
    expected: dict[int, list[Tensor]] = {0: [], window: []}
    queries: list[Tensor] = []
    numbers: list[int] = []
    positions: list[int] = []
    for number, (cached, new) in enumerate(rows):
        key, value = random(cached + new, 2, 12), random(cached + new, 2, 12)
        everything = plan_attention(
            tables, [number] * (cached + new), range(cached + new),
            block_tokens=block_tokens, shape=SHAPE, device=CPU,
        )  # fmt: skip
        write_cache(cache, 0, everything, keys_TKD=key, values_TKD=value)
        query = random(new, 4, 12)
        for reach, results in expected.items():
            results.append(textbook(query, key, value, cached, reach))
        queries.append(query)
        numbers += [number] * new
        positions += range(cached, cached + new)
    plan = plan_attention(
        tables, numbers, positions, block_tokens=block_tokens, shape=shape, device=CPU
    )
    for reach, results in expected.items():
        attended = plan.reads[reach].attend(torch.cat(queries), cache, 0, scale=SHAPE.scale)
        assert torch.allclose(attended.double(), torch.cat(results), atol=1e-5)


@pytest.mark.parametrize("size", [12, 16, 64])
def test_a_tokens_bytes_are_those_of_the_memory_that_is_taken(size: int) -> None:
    shape = AttentionShape(heads=4, kv_heads=2, size=size)
    cache = KvCache.allocate(3, 5, shape, block_tokens=16, dtype=torch.bfloat16, device=CPU)
    taken = sum(memory.nbytes for memory in (*cache.keys, *cache.values))
    assert kv_token_bytes(3, shape, torch.bfloat16) * 5 * 16 == taken


def groups_of(plan: AttentionPlan, window: int) -> list[PairGroup]:
    reads = plan.reads[window]
    assert isinstance(reads, ReadPlan)
    return reads.groups


def test_tiles_that_no_window_reaches_into_are_not_read() -> None:
    shape = attrs.evolve(SHAPE, windows=(0, 65, 66))
    tables = torch.arange(20).view(1, 20)
    plan = plan_attention(tables, [0], [255], block_tokens=16, shape=shape, device=CPU)
    tiles = {window: len(groups_of(plan, window)[0].counts) for window in plan.reads}
    assert tiles == {0: 4, 65: 2, 66: 2}
    (group,) = groups_of(plan, 65)
    assert torch.isfinite(group.mask).sum() == 65
    assert group.slots.min() == 255 - 64  # what is masked is not even read


def test_groups_keep_to_what_may_be_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "GATHERED_VALUES_MAX", 2 * 64 * 12 * 4)  # four pairs
    tables = torch.arange(40).view(4, 10)
    positions = [10, 150, 70, 63, 64, 5]
    plan = plan_attention(
        tables, [0, 1, 2, 3, 3, 2], positions, block_tokens=16, shape=SHAPE, device=CPU
    )
    groups = groups_of(plan, 0)
    assert sorted(torch.cat([group.tokens for group in groups]).tolist()) == list(range(6))
    for group in groups:
        tiles = [positions[token] // 64 + 1 for token in group.tokens.tolist()]
        assert tiles == sorted(tiles, reverse=True)
        assert sum(group.counts) == sum(tiles)
        assert sum(tiles[1:]) < 4
    whole = plan.slots.tolist()
    assert whole == [10, 160 + 150, 320 + 70, 480 + 63, 480 + 64, 320 + 5]


def test_one_token_with_more_keys_than_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "GATHERED_VALUES_MAX", 64)
    tables = torch.arange(10).view(1, 10)
    cache = make_cache(10, 16)
    assert len(cache.scratch) == 64
    key, value, query = torch.randn(150, 2, 12), torch.randn(150, 2, 12), torch.randn(150, 4, 12)
    plan = plan_attention(tables, [0] * 150, range(150), block_tokens=16, shape=SHAPE, device=CPU)
    write_cache(cache, 0, plan, keys_TKD=key, values_TKD=value)
    attended = plan.reads[0].attend(query, cache, 0, scale=SHAPE.scale)
    assert torch.allclose(attended.double(), textbook(query, key, value, 0), atol=1e-5)
