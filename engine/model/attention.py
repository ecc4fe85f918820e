"""Causal attention of many sequences at once over paged keys and values.

A token attends to its sequence in *key tiles* of 64 positions, at fixed absolute positions. Each
pair of (token, key tile) is one small product of fixed shape, and the pairs of all tokens of all
sequences go through the library in one batch: decode and prefill, long and short, are the same
work. Where a layer has a window, tiles that it does not reach into are left out. What the tiles
contribute to a token is added in the order of positions. So a token's result is a function of its
own query and of keys and values up to its position (see `layers` for why).

The price is that the keys of a tile are gathered once for each token that reads them: a prefill
does 2 to 3 times the work of one that shares them. An oracle may.

Letters: T tokens, P pairs, K key/value heads, G query heads of each of them, D size of a head,
S slots (places of one token in the cache).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..model_config.config import NO_WINDOW
from .layers import exp2_

KEY_TILE_TOKENS = 64
# Keys gathered at once, in values: 4 MiB of float32 fit a core's share of the last cache.
GATHERED_VALUES_MAX = 2**20
# 16 values of float32 are 64 bytes, the widest vector there is.
ALIGNED_CHANNELS = 16
# Scores are in units of log2, so that exp2 serves; it is folded into the scale of the queries.
LOG2_E = math.log2(math.e)


@attrs.frozen(eq=False)
class KvCache:
    """Keys and values of all layers, (K, S, D) each: a head's tokens are adjacent in a block.

    D is the head's size rounded up to a multiple of 16 with zeros, which change no sum: a library
    may also choose its order of summation by the alignment of a product's operands.
    `scratch` is where keys, then values, are gathered: fresh memory of that size would cost more in
    page faults than the gathering itself.
    """

    keys: list[Tensor]
    values: list[Tensor]
    block_tokens: int
    scratch: Tensor

    @classmethod
    def allocate(
        cls, layers: int, blocks: int, shape: "AttentionShape", *, block_tokens: int,
        dtype: torch.dtype, device: torch.device,
    ) -> "KvCache":  # fmt: skip
        """Zeroed memory, see `clear`."""

        def memory() -> Tensor:
            size = (shape.kv_heads, blocks * block_tokens, _aligned_channels(shape))
            return torch.zeros(size, dtype=dtype, device=device)

        return cls(
            keys=[memory() for _ in range(layers)],
            values=[memory() for _ in range(layers)],
            block_tokens=block_tokens,
            scratch=torch.empty(GATHERED_VALUES_MAX, dtype=dtype, device=device),
        )

    def clear(self, block_ids: Sequence[int]) -> None:
        """Zero these blocks, which have a new owner: the one before may have left NaN.

        Plain attention multiplies what is behind a sequence's last token by zero.
        """
        if not block_ids:
            return
        blocks = torch.tensor(block_ids, device=self.scratch.device)
        for memory_KSD in (*self.keys, *self.values):
            heads, slots, _ = memory_KSD.shape
            by_block = memory_KSD.view(heads, slots // self.block_tokens, -1)
            by_block.index_fill_(1, blocks, 0.0)


@attrs.frozen
class AttentionShape:
    """How many heads of which size; `heads` is a multiple of `kv_heads`.

    `windows` are those that layers have, each once: how many tokens a token attends to, itself
    included; 0 is all of them. Queries are multiplied by `scale` before they meet keys.
    """

    heads: int
    kv_heads: int
    size: int
    windows: tuple[int, ...] = (NO_WINDOW,)
    scale: float = attrs.field()

    @scale.default
    def _usual_scale(self) -> float:
        return 1.0 / math.sqrt(self.size)


def kv_token_bytes(layers: int, shape: AttentionShape, dtype: torch.dtype) -> int:
    """Bytes of one token in a `KvCache`. Every layer keeps all tokens, whatever its window."""
    return 2 * layers * shape.kv_heads * _aligned_channels(shape) * dtype.itemsize


def _aligned_channels(shape: AttentionShape) -> int:
    return -(-shape.size // ALIGNED_CHANNELS) * ALIGNED_CHANNELS


@attrs.frozen(eq=False)
class PairGroup:
    """Tokens of a step with all their key tiles, few enough to be gathered at once.

    Tokens are sorted by their number of key tiles, most first. A token's key tiles are numbered
    from the first that its window reaches into. Pairs are ordered by key tile, then token: those
    of key tile k are of the first `counts[k]` tokens.
    """

    tokens: Tensor  # (n,) indices into the step's tokens
    pair_tokens: Tensor  # (P,) indices into `tokens`
    pair_queries: Tensor  # (P,) the same as indices into the step's tokens
    pair_places: Tensor  # (P,) key tile × n + index into `tokens`
    slots: Tensor  # (P × 64,) where the keys of each pair are
    mask: Tensor  # (P, 1, 64) 0, or -inf for positions after the token's own or out of its window
    counts: list[int]


@attrs.frozen(eq=False)
class ReadPlan:
    """Slots that the tokens of one step read, in layers with one window."""

    groups: list[PairGroup]
    places: Tensor  # (T,) where each token's result is among those of all groups, in their order

    def attend(self, query_THD: Tensor, cache: KvCache, layer: int, *, scale: float) -> Tensor:
        """Attend with float32 queries in one layer; the result is (T, H, D), float32.

        The step's own keys and values have been written to the cache before. `scale` is the
        shape's.
        """
        tokens, heads, size = query_THD.shape
        kv_heads, _, channels = cache.keys[layer].shape
        scaled = _aligned(query_THD * (LOG2_E * scale), channels)
        query_KTGD = scaled.view(tokens, kv_heads, heads // kv_heads, channels).transpose(0, 1)
        results = [_attend(query_KTGD, cache, layer, group) for group in self.groups]
        result_KnGD = results[0] if len(results) == 1 else torch.cat(results, dim=1)
        result_KTGD = result_KnGD.index_select(1, self.places)
        return result_KTGD.transpose(0, 1).reshape(tokens, heads, channels)[..., :size]


class Reads(Protocol):
    """Reads of a step's tokens, in layers with one window."""

    def attend(self, query_THD: Tensor, cache: KvCache, layer: int, *, scale: float) -> Tensor:
        """Attend in one layer whose keys and values of this step have been written."""


@attrs.frozen(eq=False)
class AttentionPlan:
    """Plan of one step for all layers: where tokens are written and what they read."""

    slots: Tensor  # (T,) where each token's key and value go
    reads: Mapping[int, Reads]  # by window


def plan_attention(
    block_tables: Tensor, rows: Sequence[int], positions: Sequence[int], *,
    block_tokens: int, shape: AttentionShape, device: torch.device,
) -> AttentionPlan:  # fmt: skip
    """Plan one step: token i belongs to row `rows[i]` of `block_tables` and has `positions[i]`.

    `block_tables` is (rows, blocks) on the CPU, of int64; entries beyond a row's own positions are
    never looked at.
    """
    row_T = torch.tensor(rows, dtype=torch.int64)
    position_T = torch.tensor(positions, dtype=torch.int64)
    pairs_max = max(1, GATHERED_VALUES_MAX // (shape.kv_heads * shape.size * KEY_TILE_TOKENS))
    reads = {}
    for window in shape.windows:
        tokens = _TokenTiles.of(row_T, position_T, window)
        order = torch.sort(tokens.counts, descending=True, stable=True).indices
        group_of = (torch.cumsum(tokens.counts[order], 0) - 1) // pairs_max
        sizes = torch.unique_consecutive(group_of, return_counts=True)[1].tolist()
        groups = [
            _plan_group(
                block_tables, part, tokens.at(part), block_tokens=block_tokens, device=device
            )
            for part in torch.split(order, sizes)
        ]
        reads[window] = ReadPlan(groups, torch.argsort(order).to(device))
    slots = block_slots(block_tables, row_T, position_T, block_tokens)
    return AttentionPlan(slots.to(device), reads)


@attrs.frozen(eq=False)
class _TokenTiles:
    """Which key tiles some tokens read: `counts` of them, from the first that is in the window."""

    rows: Tensor
    positions: Tensor
    window: int
    first: Tensor
    counts: Tensor

    @classmethod
    def of(cls, rows: Tensor, positions: Tensor, window: int) -> "_TokenTiles":
        begins = (positions - (window - 1)).clamp(min=0) if window else torch.zeros_like(positions)
        first = begins // KEY_TILE_TOKENS
        return cls(rows, positions, window, first, positions // KEY_TILE_TOKENS + 1 - first)

    def at(self, tokens: Tensor) -> "_TokenTiles":
        taken = (x[tokens] for x in (self.first, self.counts))
        return _TokenTiles(self.rows[tokens], self.positions[tokens], self.window, *taken)


def _plan_group(
    block_tables: Tensor, tokens: Tensor, tiles: _TokenTiles, *, block_tokens: int,
    device: torch.device,
) -> PairGroup:  # fmt: skip
    grid = torch.arange(int(tiles.counts[0]))[:, None] < tiles.counts[None, :]
    pairs = torch.nonzero(grid)
    # A product alone in its batch may be split over threads and summed otherwise: repeat it.
    if len(pairs) == 1:
        pairs = pairs.repeat(2, 1)
    tile_P, token_P = pairs.unbind(1)
    key_begins = (tiles.first[token_P] + tile_P) * KEY_TILE_TOKENS
    key_positions = key_begins[:, None] + torch.arange(KEY_TILE_TOKENS)
    own_positions = tiles.positions[token_P][:, None]
    hidden = key_positions > own_positions
    if tiles.window:
        hidden |= key_positions <= own_positions - tiles.window
    # Masked positions read the token's own slot: always there, never another sequence's.
    readable = torch.where(hidden, own_positions, key_positions)
    mask = torch.zeros(key_positions.shape).masked_fill_(hidden, -math.inf)
    slots = block_slots(block_tables, tiles.rows[token_P][:, None], readable, block_tokens)
    return PairGroup(
        tokens=tokens.to(device),
        pair_tokens=token_P.to(device),
        pair_queries=tokens[token_P].to(device),
        pair_places=(tile_P * len(tokens) + token_P).to(device),
        slots=slots.reshape(-1).to(device),
        mask=mask.unsqueeze(1).to(device),
        counts=grid.sum(1).tolist(),
    )


def block_slots(block_tables: Tensor, row: Tensor, position: Tensor, block_tokens: int) -> Tensor:
    """The slots of positions of rows of `block_tables`."""
    blocks = block_tables[row, position // block_tokens]
    return blocks * block_tokens + position % block_tokens


def write_slots(memory_KSD: Tensor, slots_T: Tensor, rows_TKD: Tensor) -> None:
    """Put a step's keys, or values, into their slots, rounded to the memory's dtype."""
    rows_KTD = _aligned(rows_TKD, memory_KSD.shape[-1]).transpose(0, 1)
    memory_KSD.index_copy_(1, slots_T, rows_KTD.to(memory_KSD.dtype))


def _aligned(x: Tensor, channels: int) -> Tensor:
    return x if x.shape[-1] == channels else pad(x, (0, channels - x.shape[-1]))


def _attend(query_KTGD: Tensor, cache: KvCache, layer: int, group: PairGroup) -> Tensor:
    kv_heads, _, queries, size = query_KTGD.shape
    pairs = len(group.pair_tokens)
    query = query_KTGD.index_select(1, group.pair_queries).to(cache.scratch.dtype)
    keys = _gather(cache.keys[layer], group.slots, cache.scratch)
    scores = torch.bmm(query.reshape(-1, queries, size), keys.transpose(1, 2)).float()
    scores_KPG64 = scores.view(kv_heads, pairs, queries, KEY_TILE_TOKENS)
    scores_KPG64 += group.mask
    scores_KPG64 -= _largest(scores_KPG64, group).unsqueeze(-1)
    weights = exp2_(scores_KPG64)
    values = _gather(cache.values[layer], group.slots, cache.scratch)
    attended = torch.bmm(weights.view(-1, queries, KEY_TILE_TOKENS).to(values.dtype), values)
    attended_KPGD = attended.float().view(kv_heads, pairs, queries, size)
    # The sum of weights rides along as one more channel.
    parts = torch.cat((attended_KPGD, weights.sum(-1, keepdim=True)), dim=-1)
    total = _add_tiles(parts, group.counts)
    return total[..., :size] / total[..., size:]


def _gather(memory_KSD: Tensor, slots: Tensor, scratch: Tensor) -> Tensor:
    """The values at `slots`, (K × P, 64, D); overwrites what was gathered before."""
    shape = (len(memory_KSD), len(slots), memory_KSD.shape[-1])
    if math.prod(shape) > len(scratch):  # one token with more key tiles than fit
        gathered = memory_KSD.index_select(1, slots)
    else:
        gathered = scratch[: math.prod(shape)].view(shape)
        torch.index_select(memory_KSD, 1, slots, out=gathered)
    return gathered.view(-1, KEY_TILE_TOKENS, shape[-1])


def _largest(scores_KPG64: Tensor, group: PairGroup) -> Tensor:
    """The largest score of each pair's token, over all its key tiles: (K, P, G)."""
    largest_KPG = scores_KPG64.amax(-1)
    tiles, tokens = len(group.counts), len(group.tokens)
    if tiles == 1:
        return largest_KPG  # a token has one pair, which may be repeated
    kv_heads, _, queries = largest_KPG.shape
    places = largest_KPG.new_full((kv_heads, tiles * tokens, queries), -math.inf)
    places.index_copy_(1, group.pair_places, largest_KPG)
    of_token = places.view(kv_heads, tiles, tokens, queries).amax(1)
    return of_token.index_select(1, group.pair_tokens)


def _add_tiles(parts_KPGC: Tensor, counts: list[int]) -> Tensor:
    """Sum of each token's pairs, key tile after key tile: (K, tokens, G, C)."""
    total = parts_KPGC[:, : counts[0]].clone()
    begin = counts[0]
    for count in counts[1:]:
        total[:, :count] += parts_KPGC[:, begin : begin + count]
        begin += count
    return total
