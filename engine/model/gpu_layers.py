"""Layers of decoder models on a GPU, in Triton: what lies between two products, in one call each.

Between products a GPU waits for launches and for memory, and stock operators read and write a
hidden state five times where once will do. A program computes one row, or one head of one token, in
float32 and rounds once; so its bits depend on that row alone.

Letters as in `layers`; S slots of a cache, C channels of a slot.
"""

import attrs
import torch
import triton
import triton.language as tl
from torch import Tensor

from .decoder import Destination
from .layers import RmsNorm


def padded(count: int) -> int:
    """The power of two from it on: Triton has no other sizes."""
    return 1 << (count - 1).bit_length()


@attrs.define(eq=False)
class GpuRmsNorm(RmsNorm):
    """`RmsNorm` of rows (T, N)."""

    def __call__(self, x: Tensor) -> Tensor:
        """The normed values, rounded once; contiguous."""
        rows, width = x.shape
        result = torch.empty((rows, width), dtype=self._dtype, device=x.device)
        _norm[(rows,)](
            x, self._weight, result, x.stride(0), self._epsilon, SIZE=width, WIDTH=padded(width)
        )
        return result


def silu_and_multiply(gate_up_T2N: Tensor) -> Tensor:
    """`silu(gate) * up`, where the two are side by side."""
    return _gated(gate_up_T2N, is_gelu=False)


def gelu_and_multiply(gate_up_T2N: Tensor) -> Tensor:
    """`gelu(gate) * up` by GELU's formula with tanh, where the two are side by side."""
    return _gated(gate_up_T2N, is_gelu=True)


# Columns of one program.
GATED_COLUMNS = 1024


def _gated(gate_up_T2N: Tensor, *, is_gelu: bool) -> Tensor:
    rows, both = gate_up_T2N.shape
    width = both // 2
    result = torch.empty((rows, width), dtype=gate_up_T2N.dtype, device=gate_up_T2N.device)
    grid = (rows, triton.cdiv(width, GATED_COLUMNS))
    _gate[grid](gate_up_T2N, result, SIZE=width, COLUMNS=GATED_COLUMNS, IS_GELU=is_gelu)
    return result


def place_heads(
    heads_THD: Tensor, norm: RmsNorm | None, rotation: tuple[Tensor, Tensor], into: Destination
) -> Tensor:
    """`decoder.PlaceHeads`; queries are in the cache's dtype."""
    tokens, (kv_heads, slots, channels) = len(into.slots_T), into.keys_KSD.shape
    _, all_heads, size = heads_THD.shape
    heads = all_heads - 2 * kv_heads
    device = heads_THD.device
    query_THD = torch.empty((tokens, heads, size), dtype=into.keys_KSD.dtype, device=device)
    cosines, sines = rotation
    _place[(tokens, all_heads)](
        heads_THD,
        cosines if norm is None else norm._weight,
        cosines,
        sines,
        into.slots_T,
        query_THD,
        into.keys_KSD,
        into.values_KSD,
        slots,
        0.0 if norm is None else norm._epsilon,
        HEADS=heads,
        KV_HEADS=kv_heads,
        SIZE=size,
        CHANNELS=channels,
        WIDTH=padded(channels),
        HAS_NORM=norm is not None,
        num_warps=1,
    )
    return query_THD


@triton.jit
def _norm(xs, weights, results, stride, epsilon, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < SIZE
    x = tl.load(xs + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x * x) / SIZE
    weight = tl.load(weights + column, mask=inside, other=0.0)
    normed = x / tl.sqrt(mean + epsilon) * weight
    tl.store(results + row * SIZE + column, normed.to(results.dtype.element_ty), mask=inside)


@triton.jit
def _gate(
    gates, results, SIZE: tl.constexpr, COLUMNS: tl.constexpr, IS_GELU: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < SIZE
    gate = tl.load(gates + row * 2 * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gates + (row * 2 + 1) * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    if IS_GELU:
        # tanh(x) = 2 · sigmoid(2x) - 1, so half of 1 + tanh is a sigmoid.
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        active = gate * tl.sigmoid(2.0 * inner)
    else:
        active = gate * tl.sigmoid(gate)
    tl.store(results + row * SIZE + column, (active * up).to(results.dtype.element_ty), mask=inside)


@triton.jit
def _place(
    all_heads, weights, cosines, sines, token_slots, queries, keys, values, slots, epsilon,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, WIDTH)
    inside = channel < SIZE
    partner = (channel + SIZE // 2) % SIZE
    own = all_heads + (token * (HEADS + 2 * KV_HEADS) + head) * SIZE
    x = tl.load(own + channel, mask=inside, other=0.0).to(tl.float32)
    if head < HEADS + KV_HEADS:
        swapped = tl.load(own + partner, mask=inside, other=0.0).to(tl.float32)
        if HAS_NORM:
            scale = 1.0 / tl.sqrt(tl.sum(x * x) / SIZE + epsilon)
            x = x * scale * tl.load(weights + head * SIZE + channel, mask=inside, other=0.0)
            swapped_weight = tl.load(weights + head * SIZE + partner, mask=inside, other=0.0)
            swapped = swapped * scale * swapped_weight
        cosine = tl.load(cosines + token * SIZE + channel, mask=inside, other=0.0)
        sine = tl.load(sines + token * SIZE + channel, mask=inside, other=0.0)
        x = x * cosine + swapped * sine
    slot = tl.load(token_slots + token)
    if head < HEADS:
        place = queries + (token * HEADS + head) * SIZE + channel
        tl.store(place, x.to(queries.dtype.element_ty), mask=inside)
    elif head < HEADS + KV_HEADS:
        place = keys + ((head - HEADS) * slots.to(tl.int64) + slot) * CHANNELS + channel
        tl.store(place, x.to(keys.dtype.element_ty), mask=channel < CHANNELS)
    else:
        kv_head = head - HEADS - KV_HEADS
        place = values + (kv_head * slots.to(tl.int64) + slot) * CHANNELS + channel
        tl.store(place, x.to(values.dtype.element_ty), mask=channel < CHANNELS)
