"""Sampling defaults of a model, read from its `generation_config.json`.

A client's own parameters go before it. Its end tokens are read by `config`; `do_sample` and
lengths are not looked at, as in vLLM.
"""

import pathlib
from types import MappingProxyType
from typing import Any

import attrs

from ..errors import InvalidParameter
from ..parameter_bounds import Number, Whole
from ..sampling_params import LEFT_TO_THE_MODEL, PARAMETERS, SamplingParams
from .config import GENERATION_CONFIG_FILE
from .folder import ConfigFields, read_fields

# Advice that is not followed, and the value that asks for nothing.
UNSERVED: MappingProxyType[str, float] = MappingProxyType(
    {
        "encoder_repetition_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "typical_p": 1.0,
        "epsilon_cutoff": 0.0,
        "eta_cutoff": 0.0,
        "penalty_alpha": 0.0,
        "num_beams": 1,
    }
)
# Parameters whose 0 in such a file says "off", which no client's 0 does.
_OFF_AT_0 = ("top_p", "repetition_penalty")


@attrs.frozen
class GenerationConfig:
    """`defaults` has what is advised, None elsewhere; `unserved` what cannot be followed."""

    defaults: SamplingParams = attrs.field(factory=SamplingParams)
    unserved: tuple[str, ...] = ()


def load_generation_config(folder: str | pathlib.Path) -> GenerationConfig:
    """Read the file, if there is one. Raises `ModelFolderError`, naming the field."""
    path = pathlib.Path(folder) / GENERATION_CONFIG_FILE
    if not path.exists():
        return GenerationConfig()
    fields = read_fields(path)
    unserved = [
        f"{name} {fields.values[name]!r:.40}"
        for name, neutral in UNSERVED.items()
        if fields.values.get(name) not in (None, neutral)
    ]
    advised = {name: _advice(fields, name) for name in LEFT_TO_THE_MODEL}
    for name in _OFF_AT_0:
        if advised[name] == 0:
            unserved.append(f"{name} 0")
            advised[name] = None
    try:
        defaults = SamplingParams(**advised)
    except InvalidParameter as error:
        raise fields.fault(error.parameter, error.reason) from error
    return GenerationConfig(defaults, tuple(unserved))


def _advice(fields: ConfigFields, name: str) -> Any:
    """The file's value of a parameter; -1 and 0 are both "off" where integers are taken."""
    value = fields.values.get(name)
    if value is None:
        return None
    bound = PARAMETERS[name].bound
    if isinstance(bound, Whole):
        if isinstance(value, float) and value.is_integer():
            fields = ConfigFields(fields.path, {name: int(value)})
        return max(0, fields.integer(name, bound.most, least=-1))
    assert isinstance(bound, Number)
    return fields.number(name, least=0.0, largest=bound.most)
