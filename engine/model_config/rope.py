"""Rotary embedding by the config: its base, how long waves are stretched, and the frequencies.

Fields are named and defaulted as `transformers` does, in folders of its old form (`rope_scaling`
beside `rope_theta`) and its new one (`rope_parameters`). A variant whose angles depend on how long
the sequence has become is not computed: a key would no longer be a function of what precedes it.
No tensors here: torch and the kernels use the same numbers.
"""

import math

import attrs

from .folder import ConfigFields

POSITIONS_MAX = 2**27  # no published model comes near
THETA_DEFAULT = 10_000.0
# Gemma 3's, of layers that see all; of those with a window it is the usual one.
GLOBAL_THETA_DEFAULT = 1_000_000.0
# Bounds of YaRN's blend that coincide are held so far apart, in channels, as `transformers` does.
BLEND_CHANNELS_MIN = 0.001
SERVED = "default, linear, dynamic, llama3 and yarn"


@attrs.frozen
class LinearScaling:
    """Waves longer by `factor`, all of them."""

    factor: float


@attrs.frozen
class Llama3Scaling:
    """Llama 3's stretch of long rotary wavelengths; the names are those of the config file."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@attrs.frozen
class YarnScaling:
    """YaRN: channels that turn often enough in the original length stay, slow ones are stretched.

    Cosines and sines are multiplied by `attention_factor`. `truncate` rounds the bounds of the
    blend to whole channels.
    """

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int
    attention_factor: float
    truncate: bool


@attrs.frozen
class Rope:
    """Base of the wavelengths, and their stretch (None: as the base says)."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None


def read_rope(fields: ConfigFields, max_positions: int) -> Rope:
    """Read a config whose `max_position_embeddings` are `max_positions`.

    Raises `ModelFolderError`, also for variants that are not served.
    """
    rope = _rope_fields(fields)
    for source in (fields, rope):
        if source.number("partial_rotary_factor", default=1.0) != 1.0:
            raise source.unserved("partial_rotary_factor", "is not served: only 1 is")
    theta = rope.number(
        "rope_theta", least=1.001, default=fields.number("rope_theta", default=THETA_DEFAULT)
    )
    match _kind(rope):
        case "default":
            return Rope(theta, None)
        case "dynamic":
            # Stretches what is longer than `max_positions`, which is the longest that is served.
            rope.number("factor")
            return Rope(theta, None)
        case "linear":
            return Rope(theta, LinearScaling(rope.number("factor")))
        case "llama3":
            return Rope(theta, _llama3(rope, max_positions))
        case "yarn":
            return Rope(theta, _yarn(rope, max_positions))
        case kind:
            raise rope.unserved("rope_type", f"{kind!r:.40} is not served: {SERVED} are")


def read_window_ropes(fields: ConfigFields, max_positions: int) -> tuple[Rope, Rope]:
    """Ropes of layers that see all and of layers with a window, each with a base of its own.

    The old form says the second's base in `rope_local_base_freq`, and its stretch is the first's
    alone; the new one has parameters for each type of layer. Raises `ModelFolderError`.
    """
    parameters = ConfigFields(fields.path, fields.mapping("rope_parameters") or {})
    whole = {
        "rope_theta": fields.number("rope_theta", default=GLOBAL_THETA_DEFAULT),
        **(parameters.mapping("full_attention") or {}),
        **(fields.mapping("rope_scaling") or {}),
    }
    window = {
        "rope_theta": fields.number("rope_local_base_freq", default=THETA_DEFAULT),
        **(parameters.mapping("sliding_attention") or {}),
    }
    both = [
        read_rope(ConfigFields(fields.path, {"rope_parameters": given}), max_positions)
        for given in (whole, window)
    ]
    return both[0], both[1]


def stretched_length(fields: ConfigFields, max_positions: int) -> int:
    """The longest sequence, in tokens: `max_positions`, or more where the stretch was made for it.

    As vLLM has it: by `factor` for linear, by `factor` from the original length for yarn.
    """
    rope = _rope_fields(fields)
    kind = _kind(rope)
    if kind not in ("linear", "yarn"):
        return max_positions
    original = max_positions if kind == "linear" else _original(rope, max_positions)
    length = original * rope.number("factor", default=max_positions / original)
    return min(POSITIONS_MAX, max(max_positions, int(length)))


def _rope_fields(fields: ConfigFields) -> ConfigFields:
    values = fields.mapping("rope_scaling") or fields.mapping("rope_parameters") or {}
    if any(isinstance(value, dict) for value in values.values()):
        raise fields.unserved("rope_parameters", "that differ between layers are not served")
    return ConfigFields(fields.path, values)


def _kind(rope: ConfigFields) -> object:
    return rope.values.get("rope_type", rope.values.get("type", "default"))


def _original(rope: ConfigFields, max_positions: int) -> int:
    return rope.integer("original_max_position_embeddings", POSITIONS_MAX, default=max_positions)


def _llama3(rope: ConfigFields, max_positions: int) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=_original(rope, max_positions),
    )
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise rope.fault("low_freq_factor", "must be below high_freq_factor")
    return scaling


def _yarn(rope: ConfigFields, max_positions: int) -> YarnScaling:
    original = _original(rope, max_positions)
    factor = rope.number("factor", default=max_positions / original)
    # 0 is "not given", as in `transformers`.
    scale, scale_all = (
        rope.number(n, least=0.0, default=0.0) for n in ("mscale", "mscale_all_dim")
    )
    attention = _attention_scale(factor, 1.0)
    if scale and scale_all:
        attention = _attention_scale(factor, scale) / _attention_scale(factor, scale_all)
    return YarnScaling(
        factor=factor,
        beta_fast=rope.number("beta_fast", default=32.0),
        beta_slow=rope.number("beta_slow", default=1.0),
        original_max_position_embeddings=original,
        attention_factor=rope.number("attention_factor", default=attention),
        truncate=rope.flag("truncate", default=True),
    )


def _attention_scale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def rotary_scale(rope: Rope) -> float:
    """Factor of cosines and sines."""
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
            return [_llama3_frequency(frequency, scaling) for frequency in plain]
        case YarnScaling() as scaling:
            first, last = _yarn_blend(head_size, rope.theta, scaling)
            return [
                _yarn_frequency(frequency, (pair - first) / (last - first), scaling.factor)
                for pair, frequency in enumerate(plain)
            ]


def _llama3_frequency(frequency: float, scaling: Llama3Scaling) -> float:
    """Short waves as they are, long ones stretched, between them a blend."""
    wavelength = 2 * math.pi / frequency
    turns = scaling.original_max_position_embeddings / wavelength
    if turns > scaling.high_freq_factor:
        return frequency
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - share) * frequency / scaling.factor + share * frequency


def _yarn_frequency(frequency: float, place: float, factor: float) -> float:
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
