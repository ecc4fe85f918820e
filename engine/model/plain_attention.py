"""Causal attention over paged keys and values as the library likes it, where bits may differ.

Each sequence that computes several tokens is one call, and sequences that compute one token are
taken together, the heads that share keys side by side as rows of one query. A token's bits depend
on what is computed beside it; `attention` has the other way, and the words used here. Only stock
operators are used, so that the same code runs on a CPU and on a GPU.

Letters as in `attention`; n sequences, B blocks of each, L = B × tokens of a block, keys of each.
"""

import math
from collections.abc import Sequence
from itertools import groupby

import attrs
import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from .attention import AttentionPlan, AttentionShape, KvCache, block_slots

# Keys gathered at once for sequences of one token each, in values. On a CPU they stay in its caches
# (half of `KvCache.scratch`); on a GPU launches cost more than memory, of which 256 MiB are spent.
CPU_GATHERED_VALUES_MAX = 2**19
GPU_GATHERED_VALUES_MAX = 2**26


@attrs.frozen(eq=False)
class TokenSpan:
    """Successive tokens `[begin, end)` of the step, all of one sequence, and the blocks they read.

    Without a mask they are the first tokens of their sequence, which see all before them.
    """

    begin: int
    end: int
    blocks: Tensor  # (B,)
    keys: int  # of the blocks' tokens
    mask: Tensor | None  # (T, L) 0, or -inf for keys after the token's own or out of its window


@attrs.frozen(eq=False)
class SingleTokens:
    """Tokens that are their sequences' only ones in the step, and as many blocks for each."""

    tokens: Tensor  # (n,) indices into the step's tokens
    blocks: Tensor  # (n × B,) the last one again beyond a sequence's own, all of which is masked
    mask: Tensor  # (n, 1, 1, L)


@attrs.frozen(eq=False)
class PlainReads:
    """Reads of one step's tokens, in layers with one window."""

    spans: list[TokenSpan]
    singles: list[SingleTokens]

    def attend(self, query_THD: Tensor, cache: KvCache, layer: int, *, scale: float) -> Tensor:
        """Attend in one layer; the result is as the query. Keys and values are in the cache."""
        keys, values = cache.keys[layer], cache.values[layer]
        channels = keys.shape[-1]
        _, heads, size = query_THD.shape
        query = pad(query_THD.to(keys.dtype), (0, channels - size))
        result = torch.empty_like(query)
        for span in self.spans:
            key = _gather(keys, span.blocks, 1, cache, half=0)[:, :, : span.keys]
            value = _gather(values, span.blocks, 1, cache, half=1)[:, :, : span.keys]
            result[span.begin : span.end] = scaled_dot_product_attention(
                query[span.begin : span.end].transpose(0, 1).unsqueeze(0),
                key,
                value,
                attn_mask=span.mask,
                is_causal=span.mask is None,
                scale=scale,
                enable_gqa=True,
            )[0].transpose(0, 1)
        for single in self.singles:
            count = len(single.tokens)
            attended = scaled_dot_product_attention(
                query[single.tokens].view(count, len(keys), -1, channels),
                _gather(keys, single.blocks, count, cache, half=0),
                _gather(values, single.blocks, count, cache, half=1),
                attn_mask=single.mask,
                scale=scale,
            )
            result[single.tokens] = attended.reshape(count, heads, channels)
        return result[..., :size].to(query_THD.dtype)


def plan_plain_attention(
    block_tables: Tensor, rows: Sequence[int], positions: Sequence[int], *,
    block_tokens: int, shape: AttentionShape, dtype: torch.dtype, device: torch.device,
) -> AttentionPlan:  # fmt: skip
    """Plan one step as `attention.plan_attention` does; `dtype` is the cache's.

    The tokens of a row follow one another, in the order of their positions.
    """
    spans: list[_Place] = []
    singles: list[_Place] = []
    end = 0
    for row, tokens in groupby(rows):
        begin, end = end, end + len(list(tokens))
        (spans if end - begin > 1 else singles).append((row, begin, end))
    planner = _Planner(block_tables, list(positions), block_tokens, dtype, device)
    values = shape.kv_heads * shape.size * block_tokens
    most = GPU_GATHERED_VALUES_MAX if device.type != "cpu" else CPU_GATHERED_VALUES_MAX
    reads = {}
    for window in shape.windows:
        planned = [planner.span(row, begin, end, window) for row, begin, end in spans]
        together = planner.together(singles, window, blocks_max=max(1, most // values))
        reads[window] = PlainReads(
            planned, [planner.single_tokens(part, window) for part in together]
        )
    slots = block_slots(block_tables, torch.tensor(rows), torch.tensor(positions), block_tokens)
    return AttentionPlan(slots.to(device), reads)


# A row of the block tables, and the range of its tokens in the step.
_Place = tuple[int, int, int]


@attrs.frozen(eq=False)
class _Planner:
    block_tables: Tensor
    positions: list[int]
    block_tokens: int
    dtype: torch.dtype
    device: torch.device

    def span(self, row: int, begin: int, end: int, window: int) -> TokenSpan:
        first, keys = self._first_block(begin, window), self.positions[end - 1] + 1
        blocks = self.block_tables[row, first : -(-keys // self.block_tokens)]
        whole = self.positions[begin] == 0 and not 0 < window < keys
        own_T = torch.arange(self.positions[begin], keys)
        key_L = torch.arange(first * self.block_tokens, keys)
        mask_TL = None if whole else self._mask(key_L, own_T.unsqueeze(1), window)
        return TokenSpan(begin, end, blocks.to(self.device), len(key_L), mask_TL)

    def together(
        self, singles: list[_Place], window: int, *, blocks_max: int
    ) -> list[list[_Place]]:
        """Groups of sequences of like length, none of which gathers more than `blocks_max`.

        A single sequence may be longer than that.
        """
        groups: list[list[_Place]] = []
        longest = 0
        for place in sorted(singles, key=lambda place: -self._block_count(place, window)):
            if groups and (len(groups[-1]) + 1) * longest <= blocks_max:
                groups[-1].append(place)
            else:
                groups.append([place])
                longest = self._block_count(place, window)
        return groups

    def single_tokens(self, places: list[_Place], window: int) -> SingleTokens:
        """`places` begin with one that reads as many blocks as any of them."""
        count = self._block_count(places[0], window)
        first_n = torch.tensor([self._first_block(begin, window) for _, begin, _ in places])
        row_n = torch.tensor([row for row, _, _ in places])
        own_n = torch.tensor([self.positions[begin] for _, begin, _ in places])
        block_nB = first_n.unsqueeze(1) + torch.arange(count)
        # Beyond a sequence's last block comes that one again: others' may hold no numbers.
        inside_nB = block_nB.minimum((own_n // self.block_tokens).unsqueeze(1))
        blocks_nB = self.block_tables[row_n.unsqueeze(1), inside_nB]
        key_nL = first_n.unsqueeze(1) * self.block_tokens + torch.arange(count * self.block_tokens)
        mask_nL = self._mask(key_nL, own_n.unsqueeze(1), window)
        return SingleTokens(
            tokens=torch.tensor([begin for _, begin, _ in places], device=self.device),
            blocks=blocks_nB.reshape(-1).to(self.device),
            mask=mask_nL.unsqueeze(1).unsqueeze(1),
        )

    def _first_block(self, token: int, window: int) -> int:
        seen = max(0, self.positions[token] - (window - 1)) if window else 0
        return seen // self.block_tokens

    def _block_count(self, place: _Place, window: int) -> int:
        last = self.positions[place[1]] // self.block_tokens
        return last + 1 - self._first_block(place[1], window)

    def _mask(self, keys: Tensor, own: Tensor, window: int) -> Tensor:
        hidden = keys > own
        if window:
            hidden |= keys <= own - window
        mask = torch.zeros(hidden.shape, dtype=self.dtype).masked_fill_(hidden, -math.inf)
        return mask.to(self.device)


def _gather(memory_KSD: Tensor, blocks: Tensor, count: int, cache: KvCache, *, half: int) -> Tensor:
    """The keys or values in `blocks` of `count` sequences, (n, K, L, D).

    On a CPU small ones lie in one `half` of the cache's scratch, until the next of that half.
    """
    heads, slots, channels = memory_KSD.shape
    memory = memory_KSD.view(heads, slots // cache.block_tokens, -1)
    size = heads * len(blocks) * memory.shape[-1]
    room = len(cache.scratch) // 2
    if memory.device.type != "cpu" or size > room:
        gathered = memory.index_select(1, blocks)
    else:
        gathered = cache.scratch[half * room : half * room + size].view(heads, len(blocks), -1)
        torch.index_select(memory, 1, blocks, out=gathered)
    return gathered.view(heads, count, -1, channels).transpose(0, 1)
