"""How fast each pair of channels turns from one position to the next, by what the config says.

Sans-IO: plain numbers, for whatever computes the table. Must not know tensors, weights or
sequences.
"""

import math

from ..model_config.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling

# Bounds of YaRN's blend that coincide are held so far apart, in channels, as `transformers` does.
BLEND_CHANNELS_MIN = 0.001


def rotary_scale(rope: Rope) -> float:
    """What cosines and sines are multiplied by."""
    return rope.scaling.attention_factor if isinstance(rope.scaling, YarnScaling) else 1.0


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
