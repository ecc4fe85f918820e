"""Rotary embedding: the table of all positions' cosines and sines, and its use.

Channel i of a head is paired with channel i + D/2 (Hugging Face's layout). The table is the same
bits for any number of threads or positions; why that takes care stands in `layers`, whose letters
are used here.
"""

import attrs
import torch
from torch import Tensor

from ..model_config.rope import Rope, rotary_frequencies, rotary_scale
from .layers import PIECE_ITEMS

# float64 angles: at position 100 000 a float32 angle is off by up to 0.004.
ANGLE_DTYPE = torch.float64


@attrs.define(eq=False)
class RotaryTable:
    """Cosines and signed sines of all positions, float32, computed once.

    The sines of the first half of the channels carry a minus, so that
    `x * cos + swapped_halves(x) * sin` is the rotation.
    """

    _cosines_PD: Tensor
    _sines_PD: Tensor

    @classmethod
    def of(
        cls, head_size: int, positions: int, rope: Rope, *, device: torch.device
    ) -> "RotaryTable":
        """The table for positions 0 … `positions` - 1.

        It is filled in pieces of fixed shape at fixed positions, so that it does not depend on the
        number of threads or of positions.
        """
        frequencies = torch.tensor(rotary_frequencies(head_size, rope), dtype=ANGLE_DTYPE)
        scale = rotary_scale(rope)
        rows = max(1, PIECE_ITEMS // head_size)
        cosines, sines = [], []
        for begin in range(0, positions, rows):
            angles = torch.arange(begin, begin + rows, dtype=ANGLE_DTYPE)[:, None] * frequencies
            cosine, sine = (angles.cos() * scale).float(), (angles.sin() * scale).float()
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
