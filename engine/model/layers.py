"""Layers of decoder models, in two ways: bit for bit the same in any batch, or plain.

*Bitwise* means that a row of the result is a function of that row alone: not of its neighbours,
of how many there are, of its place, or of the number of threads. Three rules give that on a CPU:

- A matrix product always has one shape, 16 rows (the last ones zero) by the weight's, because
  libraries choose their order of summation by shape. Where they also choose it by the number of
  threads (see `make_linear`), the weight is cut into strips of 64 columns, and the strips are
  issued as one batch: products are split over threads, several products are dealt out to them.
- Operands of products begin at multiples of 64 bytes: kernels are chosen by alignment, too.
- An element-wise function whose scalar and vector forms round differently (exp2, silu) is given
  pieces that vectors cover exactly and that are too short to be split over threads. Sums, products,
  quotients and square roots are rounded exactly by IEEE 754 and need no such care.

Letters in names: T tokens (of all sequences, one after another), N and K output and input width,
H heads, D size of a head.
"""

from collections.abc import Callable
from functools import cache

import attrs
import torch
from torch import Tensor
from torch.nn import functional

# Rows and columns of a product in bitwise mode. 16 rows are half as fast per row as many; 64
# columns are wide enough for one thread's kernel and give narrow layers several strips.
TILE_ROWS = 16
# On a GPU as many cost no more than one: a product reads its weight once and waits for nothing else
# (measured on an H200: 128 rows within 15 % of 16 where the weight is large).
GPU_TILE_ROWS = 128
STRIP_COLUMNS = 64
# oneDNN splits the sum over the inputs between threads beyond this width, if the outputs are few
# (measured: never up to here with 32 threads, always at 20 000).
PACKED_INPUTS_MAX = 16384
# torch splits element-wise work from 32768 items on; half of that is safe, and a multiple of any
# vector's length (torch unrolls to two vectors, 32 items at most).
PIECE_ITEMS = 16384

Linear = Callable[[Tensor], Tensor]


def padded_rows(rows: int, device: torch.device, *, bitwise: bool = True) -> int:
    """How many rows activations are padded to, once: whole tiles in bitwise mode."""
    tile = GPU_TILE_ROWS if device.type == "cuda" else TILE_ROWS
    return -(-rows // tile) * tile if bitwise else rows


def _in_tiles(multiply: Linear, x_TK: Tensor, rows: int) -> Tensor:
    tiles = [multiply(x_TK[begin : begin + rows]) for begin in range(0, len(x_TK), rows)]
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles)


@attrs.define(eq=False)
class PackedLinear:
    """`x @ weight.T` by oneDNN over a weight in oneDNN's own layout: in tiles of 16 rows, or whole.

    The fastest that stock torch has: twice the plain product for 16 rows, six times for one.
    """

    _packed: Tensor
    _tile_rows: int  # 0: all rows at once

    @classmethod
    def of(cls, weight_NK: Tensor, *, tiled: bool = True) -> "PackedLinear":
        """Pack `weight_NK`; it is not needed any more afterwards."""
        # The layout for a single row serves any number of them, and one row best.
        tile_rows = TILE_ROWS if tiled else 0
        return cls(torch.ops.mkldnn._reorder_linear_weight(weight_NK, tile_rows or 1), tile_rows)

    def __call__(self, x_TK: Tensor) -> Tensor:
        """The products, contiguous."""
        multiply = torch.ops.mkldnn._linear_pointwise
        return _in_tiles(
            lambda x_tK: multiply(x_tK, self._packed, None, "none", [], ""),
            x_TK,
            self._tile_rows or max(1, len(x_TK)),
        )


@attrs.define(eq=False)
class StripLinear:
    """`x @ weight.T` in tiles of 16 rows and 64 columns. The number of rows must be padded."""

    _strips: Tensor  # (strips, 64, K); rows of the weight, zero-padded to at least two strips
    _columns: int

    @classmethod
    def of(cls, weight_NK: Tensor) -> "StripLinear":
        """Cut `weight_NK` into strips; it is not needed any more afterwards."""
        columns, width = weight_NK.shape
        strips = max(2, -(-columns // STRIP_COLUMNS))
        if columns != strips * STRIP_COLUMNS:
            rest = strips * STRIP_COLUMNS - columns
            weight_NK = torch.cat((weight_NK, weight_NK.new_zeros(rest, width)))
        return cls(weight_NK.contiguous().view(strips, STRIP_COLUMNS, width), columns)

    def __call__(self, x_TK: Tensor) -> Tensor:
        """The products, contiguous."""
        strips, _, width = self._strips.shape
        weights = self._strips.transpose(1, 2)
        y = x_TK.new_empty(len(x_TK), strips, STRIP_COLUMNS)
        for begin in range(0, len(x_TK), TILE_ROWS):
            tile = x_TK[begin : begin + TILE_ROWS].expand(strips, TILE_ROWS, width)
            y[begin : begin + TILE_ROWS] = torch.bmm(tile, weights).transpose(0, 1)
        y = y.view(len(x_TK), -1)
        return y if y.shape[1] == self._columns else y[:, : self._columns].contiguous()


@attrs.define(eq=False)
class TileLinear:
    """`x @ weight.T` in tiles of 128 rows, on a GPU. The number of rows must be padded.

    One shape, so one kernel of the library; that it treats all rows of a tile alike is checked when
    a model is loaded (`worker.torch.trial`).
    """

    _weight_NK: Tensor

    def __call__(self, x_TK: Tensor) -> Tensor:
        """The products, contiguous."""
        return _in_tiles(lambda x_tK: functional.linear(x_tK, self._weight_NK), x_TK, GPU_TILE_ROWS)


@attrs.define(eq=False)
class PlainLinear:
    """`x @ weight.T` as the library likes it: its bits depend on the batch."""

    _weight_NK: Tensor

    def __call__(self, x_TK: Tensor) -> Tensor:
        """The products, contiguous."""
        return functional.linear(x_TK, self._weight_NK)


@attrs.define(eq=False)
class BiasedLinear:
    """A product plus a bias; a sum of two numbers is rounded exactly, wherever it is computed."""

    _product: Linear
    _bias_N: Tensor

    def __call__(self, x_TK: Tensor) -> Tensor:
        """The biased products, contiguous."""
        return self._product(x_TK).add_(self._bias_N)


def make_linear(weight_NK: Tensor, bias_N: Tensor | None = None, *, bitwise: bool) -> Linear:
    """A linear layer over a weight in Hugging Face's layout (outputs first)."""
    product = _make_product(weight_NK, bitwise=bitwise)
    return product if bias_N is None else BiasedLinear(product, bias_N)


def _make_product(weight_NK: Tensor, *, bitwise: bool) -> Linear:
    if bitwise and weight_NK.device.type == "cuda":
        return TileLinear(weight_NK)
    packs = weight_NK.device.type == "cpu" and has_packed_linear(weight_NK.dtype)
    if not bitwise:
        return PackedLinear.of(weight_NK, tiled=False) if packs else PlainLinear(weight_NK)
    if packs and weight_NK.shape[1] <= PACKED_INPUTS_MAX:
        return PackedLinear.of(weight_NK)
    return StripLinear.of(weight_NK)


@cache
def has_packed_linear(dtype: torch.dtype = torch.float32) -> bool:
    """Whether `PackedLinear` works here; decides about bits, so it is in the numerics id.

    Its two operators are private to torch: a build may lack oneDNN, and a release may rename them
    or change what they take. Asked by trying; without them the strips are as bitwise, and slower.
    """
    if not torch._C._has_mkldnn:
        return False
    weight, x = torch.eye(TILE_ROWS, dtype=dtype), torch.eye(TILE_ROWS, dtype=dtype)
    try:
        return torch.equal(PackedLinear.of(weight)(x), x)
    except (AttributeError, TypeError, RuntimeError):
        return False


@attrs.define(eq=False)
class RmsNorm:
    """Root mean square norm of the last dimension, computed in float32.

    The weight may differ between heads, (H, D). The mean is the one sum, in a fixed order.
    """

    _weight: Tensor
    _epsilon: float
    _dtype: torch.dtype  # of the result

    def __call__(self, x: Tensor) -> Tensor:
        """The normed values, rounded once."""
        exact = x.float()
        mean = (exact * exact).sum(-1, keepdim=True) * (1.0 / x.shape[-1])
        return (exact / (mean + self._epsilon).sqrt() * self._weight).to(self._dtype)


def silu_and_multiply(gate_up_T2N: Tensor) -> Tensor:
    """`silu(gate) * up`, where the two are side by side."""
    gate, up = gate_up_T2N.chunk(2, dim=-1)
    gate = gate.contiguous()
    _in_pieces(functional.silu, gate)
    return gate.mul_(up)


def gelu_and_multiply(gate_up_T2N: Tensor) -> Tensor:
    """`gelu(gate) * up` by GELU's formula with tanh, where the two are side by side."""
    gate, up = gate_up_T2N.chunk(2, dim=-1)
    gate = gate.contiguous()
    _in_pieces(_gelu_tanh, gate)
    return gate.mul_(up)


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def softcap_(x: Tensor, cap: float) -> Tensor:
    """`cap * tanh(x / cap)` of each item, in place; `x` is contiguous."""
    return _in_pieces(torch.tanh, x.div_(cap)).mul_(cap)


def exp2_(x: Tensor) -> Tensor:
    """2 to the power of each item, in place; `x` is contiguous."""
    return _in_pieces(torch.exp2, x)


def _in_pieces(function: Callable[..., Tensor], x: Tensor) -> Tensor:
    """Apply an element-wise function in place, each item in the same way whatever is around it."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return x.copy_(function(x))
    flat = x.view(-1)
    for begin in range(0, len(flat), PIECE_ITEMS):
        piece = flat[begin : begin + PIECE_ITEMS]
        if len(piece) % 32:
            padded = functional.pad(piece, (0, 32 - len(piece) % 32))
            piece.copy_(function(padded)[: len(piece)])
        elif function is torch.exp2:
            torch.exp2(piece, out=piece)
        else:
            piece.copy_(function(piece))
    return x
