"""Layers of dense decoder models, in two ways: bit for bit the same in any batch, or plain.

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
H heads, D size of a head. Must not know weights' names, sequences or blocks.
"""

import math
from collections.abc import Callable

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from ..model_config import Llama3Scaling

# Rows and columns of a product in bitwise mode. 16 rows are half as fast per row as many; 64
# columns are wide enough for one thread's kernel and give narrow layers several strips.
TILE_ROWS = 16
STRIP_COLUMNS = 64
# oneDNN splits the sum over the inputs between threads beyond this width, if the outputs are few
# (measured: never up to here with 32 threads, always at 20 000).
PACKED_INPUTS_MAX = 16384
# torch splits element-wise work from 32768 items on; half of that is safe, and a multiple of any
# vector's length (torch unrolls to two vectors, 32 items at most).
PIECE_ITEMS = 16384
# float64 angles: at position 100 000 a float32 angle is off by up to 0.004.
ANGLE_DTYPE = torch.float64

Linear = Callable[[Tensor], Tensor]


def padded_rows(rows: int) -> int:
    """The least multiple of `TILE_ROWS` that holds `rows`; activations are padded once to it."""
    return -(-rows // TILE_ROWS) * TILE_ROWS


@attrs.define(eq=False)
class PackedLinear:
    """`x @ weight.T` in tiles of 16 rows by oneDNN, over a weight in oneDNN's own layout.

    The fastest that stock torch has for 16 rows: twice the plain product.
    """

    _packed: Tensor

    @classmethod
    def of(cls, weight_NK: Tensor) -> "PackedLinear":
        """Pack `weight_NK`; it is not needed any more afterwards."""
        return cls(torch.ops.mkldnn._reorder_linear_weight(weight_NK, TILE_ROWS))

    def __call__(self, x_TK: Tensor) -> Tensor:
        """The products, contiguous."""
        multiply = torch.ops.mkldnn._linear_pointwise
        tiles = [
            multiply(x_TK[begin : begin + TILE_ROWS], self._packed, None, "none", [], "")
            for begin in range(0, len(x_TK), TILE_ROWS)
        ]
        return tiles[0] if len(tiles) == 1 else torch.cat(tiles)


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
class PlainLinear:
    """`x @ weight.T` as the library likes it: faster, and its bits depend on the batch."""

    _weight_NK: Tensor

    def __call__(self, x_TK: Tensor) -> Tensor:
        """The products, contiguous."""
        return functional.linear(x_TK, self._weight_NK)


def make_linear(weight_NK: Tensor, *, bitwise: bool) -> Linear:
    """A linear layer without bias over a weight in Hugging Face's layout (outputs first)."""
    if not bitwise:
        return PlainLinear(weight_NK)
    narrow = weight_NK.shape[1] <= PACKED_INPUTS_MAX
    if narrow and weight_NK.device.type == "cpu" and has_packed_linear():
        return PackedLinear.of(weight_NK)
    return StripLinear.of(weight_NK)


def has_packed_linear() -> bool:
    """Whether this build of torch has oneDNN; decides about bits, so it is in the numerics id."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def rms_norm(x_TK: Tensor, weight_K: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm, computed in float32. The mean is the one sum, in a fixed order."""
    x = x_TK.float()
    mean = (x * x).sum(-1, keepdim=True) * (1.0 / x.shape[-1])
    return (x / (mean + epsilon).sqrt()).to(x_TK.dtype) * weight_K


def silu_and_multiply(gate_up_T2N: Tensor) -> Tensor:
    """`silu(gate) * up`, where the two are side by side."""
    gate, up = gate_up_T2N.chunk(2, dim=-1)
    gate = gate.contiguous()
    _in_pieces(functional.silu, gate)
    return gate.mul_(up)


def exp2_(x: Tensor) -> Tensor:
    """2 to the power of each item, in place; `x` is contiguous, its size a multiple of 32."""
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


@attrs.define(eq=False)
class RotaryTable:
    """Cosines and signed sines of all positions, float32, computed once.

    Channel i of a head is paired with channel i + D/2 (Hugging Face's layout). The sines of the
    first half carry a minus, so that `x * cos + swapped_halves(x) * sin` is the rotation.
    """

    _cosines_PD: Tensor
    _sines_PD: Tensor

    @classmethod
    def of(
        cls,
        head_size: int,
        positions: int,
        *,
        theta: float,
        scaling: Llama3Scaling | None,
        device: torch.device,
    ) -> "RotaryTable":
        """The table for positions 0 … `positions` - 1.

        It is filled in pieces of fixed shape at fixed positions, so that it does not depend on the
        number of threads or of positions.
        """
        frequencies = torch.tensor(_frequencies(head_size, theta, scaling), dtype=ANGLE_DTYPE)
        rows = max(1, PIECE_ITEMS // head_size)
        cosines, sines = [], []
        for begin in range(0, positions, rows):
            angles = torch.arange(begin, begin + rows, dtype=ANGLE_DTYPE)[:, None] * frequencies
            cosine, sine = angles.cos().float(), angles.sin().float()
            cosines.append(torch.cat((cosine, cosine), dim=-1))
            sines.append(torch.cat((-sine, sine), dim=-1))
        return cls(
            torch.cat(cosines)[:positions].to(device), torch.cat(sines)[:positions].to(device)
        )

    def at(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of these tokens, (T, 1, D) each; looked up once for all layers."""
        cosines = self._cosines_PD.index_select(0, positions_T)
        return cosines.unsqueeze(1), self._sines_PD.index_select(0, positions_T).unsqueeze(1)


def rotate(x_THD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of queries or keys, computed and returned in float32."""
    x = x_THD.float()
    swapped = x.roll(x.shape[-1] // 2, -1)
    return x * rotation[0] + swapped.mul_(rotation[1])


def _frequencies(head_size: int, theta: float, scaling: Llama3Scaling | None) -> list[float]:
    plain = [theta ** (-2.0 * pair / head_size) for pair in range(head_size // 2)]
    if scaling is None:
        return plain
    return [_scaled(frequency, scaling) for frequency in plain]


def _scaled(frequency: float, scaling: Llama3Scaling) -> float:
    """Llama 3's rule: short waves as they are, long ones stretched, between them a blend."""
    wavelength = 2 * math.pi / frequency
    turns = scaling.original_max_position_embeddings / wavelength
    if turns > scaling.high_freq_factor:
        return frequency
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - share) * frequency / scaling.factor + share * frequency
