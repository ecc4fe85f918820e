"""Causal attention over paged keys and values on a GPU, in Triton: the same bits in any batch.

The tokens of a tile are taken in *groups*: successive tokens of one sequence, as many as have 64
query rows together with the heads that share a key. A program computes one group, one key head and
one *split*, so many keys at fixed absolute positions, in key tiles of 64; a second kernel adds what
a token's splits say, in their order. A query row passes through the same products of the same
shapes, whatever rows are beside it: keys that only the others see add zeros and change no maximum.

All sizes that differ from step to step are read from device memory, and the grid is that of a
full tile of the longest sequences; programs without work leave at once. So a captured graph serves
every step. The online softmax is that of Dao, "FlashAttention-2" (2023), the splits are those of
"Flash-Decoding" (Dao et al., 2023), but of fixed size, since a chosen one would hang on the batch.

Letters as in `attention`; C channels of a slot, B blocks of a row.
"""

import attrs
import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention import KEY_TILE_TOKENS, LOG2_E, AttentionShape, KvCache
from .gpu_layers import padded
from .layers import GPU_TILE_ROWS

# Query rows of a program: the least that a Hopper GPU's widest products take.
QUERY_ROWS = 64
# Bytes of one head of one token beyond which two key tiles are more than a multiprocessor holds.
WIDE_BYTES = 512
# A split is as long as gives the longest sequence at most so many, and at least so long.
SPLITS_MAX = 64
SPLIT_TOKENS_LEAST = 256


def group_tokens_of(shape: AttentionShape) -> int:
    """How many tokens a group has at most."""
    return max(1, QUERY_ROWS // padded(shape.heads // shape.kv_heads))


def split_tokens_of(length: int) -> int:
    """Keys of a split where sequences have at most `length` tokens. Decides about bits."""
    return max(SPLIT_TOKENS_LEAST, padded(-(-length // SPLITS_MAX)))


def workspace_bytes(shape: AttentionShape, length: int) -> int:
    """Bytes of `SplitResults`."""
    return 4 * GPU_TILE_ROWS * shape.heads * _splits_of(length) * (padded(shape.size) + 2)


def _splits_of(length: int) -> int:
    return -(-length // split_tokens_of(length))


@attrs.frozen(eq=False)
class SplitResults:
    """Results of splits for each token and head, float32; layers take turns in it."""

    attended: Tensor  # (T, H, splits, channels padded to a power of two), not yet divided
    largest: Tensor  # (T, H, splits)
    weights: Tensor  # (T, H, splits), the sum of them
    split_tokens: int

    @classmethod
    def allocate(cls, shape: AttentionShape, length: int, device: torch.device) -> "SplitResults":
        """Allocate for sequences of at most `length` tokens."""
        size = GPU_TILE_ROWS, shape.heads, _splits_of(length)
        attended = torch.zeros((*size, padded(shape.size)), device=device)
        largest, weights = (torch.zeros(size, device=device) for _ in range(2))
        return cls(attended, largest, weights, split_tokens_of(length))


@attrs.frozen(eq=False)
class TileTokens:
    """Which tokens a tile has; int64 on the device, each (128,). Beyond the last there is padding.

    `first` and `count` are of groups: the first token of each, and 0 where there is no group.
    """

    token_ids: Tensor
    positions: Tensor
    rows: Tensor
    first: Tensor
    count: Tensor


@attrs.frozen(eq=False)
class PagedReads:
    """Reads of one tile's tokens, in layers with one window."""

    tokens: TileTokens
    block_tables: Tensor  # (rows, B) int64, on the device
    results: SplitResults
    window: int

    def attend(self, query_THD: Tensor, cache: KvCache, layer: int, *, scale: float) -> Tensor:
        """Attend in one layer; the result has the cache's dtype. `query_THD` is contiguous."""
        keys, values = cache.keys[layer], cache.values[layer]
        tokens, heads, size = query_THD.shape
        kv_heads, slots, channels = keys.shape
        tile, results = self.tokens, self.results
        splits = results.largest.shape[-1]
        group_heads = heads // kv_heads
        sizes = {
            "HEADS": heads,
            "SIZE": size,
            "SPLITS": splits,
            "SPLIT_TOKENS": results.split_tokens,
            "WINDOW": self.window,
            "WIDTH": padded(size),
        }
        found = results.attended, results.largest, results.weights
        _attend_split[(tokens, kv_heads, splits)](
            *(query_THD, keys, values, self.block_tables),
            *(tile.rows, tile.positions, tile.first, tile.count),
            *found,
            *(LOG2_E * scale, slots, self.block_tables.shape[1]),
            CHANNELS=channels,
            GROUP_HEADS=group_heads,
            GROUP_WIDTH=padded(group_heads),
            QUERY_ROWS=max(QUERY_ROWS, padded(group_heads)),
            BLOCK_TOKENS=cache.block_tokens,
            KEY_TILE=KEY_TILE_TOKENS,
            **sizes,
            num_warps=4,
            # Two tiles of keys and values on their way, where they fit the shared memory.
            num_stages=2 if padded(size) * keys.element_size() <= WIDE_BYTES else 1,
        )
        result_THD = torch.empty(query_THD.shape, dtype=keys.dtype, device=keys.device)
        _add_splits[(tokens, heads)](*found, tile.positions, result_THD, **sizes, num_warps=4)
        return result_THD


@triton.jit
def _attend_split(
    queries, keys, values, block_tables, rows, positions, firsts, counts,
    attended, largest, weights, scale, slots, table_width,
    HEADS: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr, SPLITS: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr, WINDOW: tl.constexpr, WIDTH: tl.constexpr,
    GROUP_HEADS: tl.constexpr, GROUP_WIDTH: tl.constexpr, QUERY_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, KEY_TILE: tl.constexpr,
):  # fmt: skip
    group, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.load(counts + group)
    first = tl.load(firsts + group)
    begin_position = tl.load(positions + first)
    end_position = begin_position + count
    begin = split * SPLIT_TOKENS
    end = tl.minimum(begin + SPLIT_TOKENS, end_position)
    if WINDOW > 0:
        seen = tl.maximum(begin_position - (WINDOW - 1), 0)
        begin = tl.maximum(begin, seen // KEY_TILE * KEY_TILE)
    if (count > 0) & (begin < end):
        lanes = tl.arange(0, QUERY_ROWS)
        token, lane_head = lanes // GROUP_WIDTH, lanes % GROUP_WIDTH
        live = (token < count) & (lane_head < GROUP_HEADS)
        place = (first + token) * HEADS + kv_head * GROUP_HEADS + lane_head
        channel = tl.arange(0, WIDTH)
        query = tl.load(
            queries + place[:, None] * SIZE + channel[None, :],
            mask=live[:, None] & (channel < SIZE)[None, :],
            other=0.0,
        ).to(keys.dtype.element_ty)
        table = block_tables + tl.load(rows + first) * table_width
        memory = kv_head.to(tl.int64) * slots * CHANNELS
        top = tl.full((QUERY_ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((QUERY_ROWS,), tl.float32)
        result = tl.zeros((QUERY_ROWS, WIDTH), tl.float32)
        for tile in range(begin, end, KEY_TILE):
            key = tile + tl.arange(0, KEY_TILE)
            there = key < end_position
            block = tl.load(table + key // BLOCK_TOKENS, mask=there, other=0)
            slot = block * BLOCK_TOKENS + key % BLOCK_TOKENS
            source = memory + slot[:, None] * CHANNELS + channel[None, :]
            wanted = there[:, None] & (channel < SIZE)[None, :]
            visible = key[None, :] <= (begin_position + token)[:, None]
            if WINDOW > 0:
                visible = visible & (key[None, :] > (begin_position + token)[:, None] - WINDOW)
            top, total, result = _attend_tile(
                query, keys + source, values + source, wanted, visible, scale, top, total, result
            )
        part = place * SPLITS + split
        tl.store(attended + part[:, None] * WIDTH + channel[None, :], result, mask=live[:, None])
        tl.store(largest + part, top, mask=live)
        tl.store(weights + part, total, mask=live)


@triton.jit
def _attend_tile(query, keys, values, wanted, visible, scale, top, total, result):
    key = tl.load(keys, mask=wanted, other=0.0)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen nothing yet has no maximum; what it adds has to be 0 and not NaN.
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    shrink = tl.exp2(top - base)
    parts = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(parts, 1)
    value = tl.load(values, mask=wanted, other=0.0)
    result = tl.dot(parts.to(value.dtype), value, result * shrink[:, None], input_precision="ieee")
    return new_top, total, result


@triton.jit
def _add_splits(
    attended, largest, weights, positions, results,
    HEADS: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr, SPLIT_TOKENS: tl.constexpr,
    WINDOW: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0), tl.program_id(1)
    own = tl.load(positions + token)
    first = 0
    if WINDOW > 0:
        first = (tl.maximum(own - (WINDOW - 1), 0) // SPLIT_TOKENS).to(tl.int32)
    place = token * HEADS + head
    channel = tl.arange(0, WIDTH)
    top = float("-inf")
    total = 0.0
    result = tl.zeros((WIDTH,), tl.float32)
    for split in range(first, own // SPLIT_TOKENS + 1):
        part = place * SPLITS + split
        part_top = tl.load(largest + part)
        new_top = tl.maximum(top, part_top)
        shrink, part_shrink = tl.exp2(top - new_top), tl.exp2(part_top - new_top)
        result = result * shrink + tl.load(attended + part * WIDTH + channel) * part_shrink
        total = total * shrink + tl.load(weights + part) * part_shrink
        top = new_top
    rounded = (result / total).to(results.dtype.element_ty)
    tl.store(results + place * SIZE + channel, rounded, mask=channel < SIZE)
