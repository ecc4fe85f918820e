"""Paged attention, bitwise and plain, for any mixture of rows and any block table."""

from collections.abc import Sequence

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from triolet.engine.model import attention, plain_attention
from triolet.engine.model.attention import (
    AttentionPlan,
    AttentionShape,
    KvCache,
    PairGroup,
    ReadPlan,
    kv_token_bytes,
    plan_attention,
    write_slots,
)
from triolet.engine.model.plain_attention import PlainReads, plan_plain_attention

CPU = torch.device("cpu")
SHAPE = AttentionShape(heads=4, kv_heads=2, size=12)


def write_cache(cache: KvCache, plan: AttentionPlan, keys_TKD: Tensor, values_TKD: Tensor) -> None:
    write_slots(cache.keys[0], plan.slots, keys_TKD)
    write_slots(cache.values[0], plan.slots, values_TKD)


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
        write_cache(cache, everything, keys_TKD=key, values_TKD=value)
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
    write_cache(cache, plan, keys_TKD=key, values_TKD=value)
    attended = plan.reads[0].attend(query, cache, 0, scale=SHAPE.scale)
    assert torch.allclose(attended.double(), textbook(query, key, value, 0), atol=1e-5)


PLAIN_SHAPE = AttentionShape(heads=6, kv_heads=2, size=12, windows=(0, 5, 40))
BLOCKS, BLOCK_TOKENS = 64, 8


def make_plan(
    tables: torch.Tensor, rows: Sequence[int], positions: Sequence[int]
) -> dict[int, PlainReads]:
    plan = plan_plain_attention(
        tables, rows, positions,
        block_tokens=BLOCK_TOKENS, shape=PLAIN_SHAPE, dtype=torch.float32, device=CPU,
    )  # fmt: skip
    reads = {}
    for window, read in plan.reads.items():
        assert isinstance(read, PlainReads)
        reads[window] = read
    return reads


@settings(max_examples=60, deadline=None)
@given(
    spans=st.lists(
        st.tuples(st.integers(0, 90), st.one_of(st.just(1), st.integers(1, 50))),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 99),
    gathered=st.sampled_from([1, 2 * 12 * 8 * 20, 2**20]),
)
def test_it_agrees_with_attention_in_tiles(
    spans: list[tuple[int, int]], seed: int, gathered: int
) -> None:
    """The other way is compared with the textbook in its own tests."""
    torch.manual_seed(seed)
    cache = KvCache.allocate(
        1,
        BLOCKS,
        PLAIN_SHAPE,
        block_tokens=BLOCK_TOKENS,
        dtype=torch.float32,
        device=CPU,
    )
    for memory in (cache.keys[0], cache.values[0]):
        memory[..., : PLAIN_SHAPE.size] = torch.randn(2, BLOCKS * BLOCK_TOKENS, PLAIN_SHAPE.size)
    order = torch.randperm(BLOCKS)
    tables = torch.stack([order[16 * row : 16 * row + 18] for row in range(3)] + [order[46:64]])
    rows = [row for row, (_, count) in enumerate(spans) for _ in range(count)]
    positions = [first + i for first, count in spans for i in range(count)]
    tiles = plan_attention(
        tables,
        rows,
        positions,
        block_tokens=BLOCK_TOKENS,
        shape=PLAIN_SHAPE,
        device=CPU,
    )
    tokens = len(rows)
    keys, values = torch.randn(tokens, 2, 12), torch.randn(tokens, 2, 12)
    write_cache(cache, tiles, keys_TKD=keys, values_TKD=values)
    query = torch.randn(tokens, 6, 12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_attention, "CPU_GATHERED_VALUES_MAX", gathered)
        reads = make_plan(tables, rows, positions)
    for window in PLAIN_SHAPE.windows:
        expected = tiles.reads[window].attend(query, cache, 0, scale=0.3)
        found = reads[window].attend(query, cache, 0, scale=0.3)
        assert found.dtype == torch.float32
        assert torch.allclose(found, expected, atol=1e-5)


def test_blocks_before_the_window_are_not_read() -> None:
    tables = torch.arange(64).view(2, 32)
    reads = make_plan(tables, [0, 1, 1, 1], [200, 100, 101, 102])
    (span,), (single,) = reads[5].spans, reads[5].singles
    assert span.blocks.tolist() == [32 + 12]  # positions 96 to 103
    assert single.blocks.tolist() == [24, 25]
    assert single.mask.shape == (1, 1, 1, 16)
    assert torch.isfinite(single.mask).sum() == 5
    assert len(reads[0].spans[0].blocks) == 13


def test_the_beginning_of_a_sequence_needs_no_mask() -> None:
    tables = torch.arange(32).view(1, 32)
    reads = make_plan(tables, [0] * 20, range(20))
    assert [reads[window].spans[0].mask is None for window in (0, 40, 5)] == [True, True, False]
    assert make_plan(tables, [0] * 20, range(1, 21))[0].spans[0].mask is not None


def test_sequences_of_like_length_are_gathered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_attention, "CPU_GATHERED_VALUES_MAX", 2 * 12 * 8 * 8)  # 8 blocks
    tables = torch.arange(40 * 4).view(4, 40) % BLOCKS
    singles = make_plan(tables, [0, 1, 2, 3], [10, 100, 20, 31])[0].singles
    assert [group.tokens.tolist() for group in singles] == [[1], [3, 2], [0]]


def test_heads_and_values_keep_their_places_in_half_precision() -> None:
    shape = attrs.evolve(PLAIN_SHAPE, windows=(0,))
    cache = KvCache.allocate(
        1, 4, shape, block_tokens=BLOCK_TOKENS, dtype=torch.bfloat16, device=CPU
    )
    tables = torch.arange(4).view(1, 4)
    plan = plan_plain_attention(
        tables, [0], [0], block_tokens=8, shape=shape, dtype=torch.bfloat16, device=CPU
    )
    values = torch.arange(24.0).view(1, 2, 12)
    write_cache(cache, plan, keys_TKD=torch.randn(1, 2, 12), values_TKD=values)
    # One key: whatever the query, its value.
    found = plan.reads[0].attend(torch.randn(1, 6, 12), cache, 0, scale=1.0)
    assert torch.equal(found[0], values[0].repeat_interleave(3, 0))
