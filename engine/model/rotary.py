"""Rotary embedding: the table of all positions' cosines and sines, and its use.

Channel i of a head is paired with channel i + D/2 (Hugging Face's layout). The table is the same
bits for any number of threads or positions; why that takes care is told in `layers`, whose letters
are used here. Must not know weights, sequences or config files.
"""

import math

import attrs
import torch
from torch import Tensor

from ..rope_config import LinearScaling, Llama3Scaling, Rope, YarnScaling
from .layers import PIECE_ITEMS

# float64 angles: at position 100 000 a float32 angle is off by up to 0.004.
ANGLE_DTYPE = torch.float64
# Bounds of YaRN's blend that coincide are held so far apart, in channels, as `transformers` does.
BLEND_CHANNELS_MIN = 0.001


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
        scale = rope.scaling.attention_factor if isinstance(rope.scaling, YarnScaling) else 1.0
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


def rotary_frequencies(head_size: int, rope: Rope) -> list[float]:
    """Angle from one position to the next, in radians, of each pair of channels."""
    plain = [rope.theta ** (-2.0 * pair / head_size) for pair in range(head_size // 2)]
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor=factor):
            return [frequency / factor for frequency in plain]
        case Llama3Scaling() as scaling:
            return [_llama3(frequency, scaling) for frequency in plain]
        case YarnScaling() as scaling:
            first, last = _yarn_blend(head_size, rope.theta, scaling)
            return [
                _yarn(frequency, (pair - first) / (last - first), scaling.factor)
                for pair, frequency in enumerate(plain)
            ]


def _llama3(frequency: float, scaling: Llama3Scaling) -> float:
    """Short waves as they are, long ones stretched, between them a blend."""
    wavelength = 2 * math.pi / frequency
    turns = scaling.original_max_position_embeddings / wavelength
    if turns > scaling.high_freq_factor:
        return frequency
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - share) * frequency / scaling.factor + share * frequency


def _yarn(frequency: float, place: float, factor: float) -> float:
    """`place` is 0 where the blend begins, 1 where it ends: all stretched from there on."""
    stretched = min(1.0, max(0.0, place))
    return frequency / factor * stretched + frequency * (1 - stretched)


def _yarn_blend(head_size: int, theta: float, scaling: YarnScaling) -> tuple[float, float]:
    """The pairs, as fractions, between which channels go over from plain to stretched."""

    def pair_of(turns: float) -> float:
        """The pair that turns so often in the original length."""
        wavelength = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return head_size * math.log(wavelength) / (2 * math.log(theta))

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_size - 1)
    return first, last + BLEND_CHANNELS_MIN if first == last else last
