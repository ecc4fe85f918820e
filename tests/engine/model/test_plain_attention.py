"""Plain attention is right for any mixture of lengths, prefixes and windows, and reads no more."""

from collections.abc import Sequence

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.engine.model import plain_attention
from triolet.engine.model.attention import AttentionShape, KvCache, plan_attention, write_cache
from triolet.engine.model.plain_attention import PlainReads, plan_plain_attention

CPU = torch.device("cpu")
SHAPE = AttentionShape(heads=6, kv_heads=2, size=12, windows=(0, 5, 40))
BLOCKS, BLOCK_TOKENS = 64, 8


def make_plan(
    tables: torch.Tensor, rows: Sequence[int], positions: Sequence[int]
) -> dict[int, PlainReads]:
    plan = plan_plain_attention(
        tables, rows, positions,
        block_tokens=BLOCK_TOKENS, shape=SHAPE, dtype=torch.float32, device=CPU,
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
        1, BLOCKS, SHAPE, block_tokens=BLOCK_TOKENS, dtype=torch.float32, device=CPU
    )
    for memory in (cache.keys[0], cache.values[0]):
        memory[..., : SHAPE.size] = torch.randn(2, BLOCKS * BLOCK_TOKENS, SHAPE.size)
    order = torch.randperm(BLOCKS)
    tables = torch.stack([order[16 * row : 16 * row + 18] for row in range(3)] + [order[46:64]])
    rows = [row for row, (_, count) in enumerate(spans) for _ in range(count)]
    positions = [first + i for first, count in spans for i in range(count)]
    tiles = plan_attention(
        tables, rows, positions, block_tokens=BLOCK_TOKENS, shape=SHAPE, device=CPU
    )
    tokens = len(rows)
    keys, values = torch.randn(tokens, 2, 12), torch.randn(tokens, 2, 12)
    write_cache(cache, 0, tiles, keys_TKD=keys, values_TKD=values)
    query = torch.randn(tokens, 6, 12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_attention, "CPU_GATHERED_VALUES_MAX", gathered)
        reads = make_plan(tables, rows, positions)
    for window in SHAPE.windows:
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
    shape = attrs.evolve(SHAPE, windows=(0,))
    cache = KvCache.allocate(
        1, 4, shape, block_tokens=BLOCK_TOKENS, dtype=torch.bfloat16, device=CPU
    )
    tables = torch.arange(4).view(1, 4)
    plan = plan_plain_attention(
        tables, [0], [0], block_tokens=8, shape=shape, dtype=torch.bfloat16, device=CPU
    )
    values = torch.arange(24.0).view(1, 2, 12)
    write_cache(cache, 0, plan, keys_TKD=torch.randn(1, 2, 12), values_TKD=values)
    # One key: whatever the query, its value.
    found = plan.reads[0].attend(torch.randn(1, 6, 12), cache, 0, scale=1.0)
    assert torch.equal(found[0], values[0].repeat_interleave(3, 0))
