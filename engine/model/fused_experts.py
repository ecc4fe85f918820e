"""Experts' weights that a checkpoint stores as one tensor of all of them, told apart again.

The published form has a tensor for each projection of each expert; the other one, which
`transformers` computes with and can save, has two for a layer: `experts.gate_up_proj` (experts,
gate's rows then up's, inputs) and `experts.down_proj` (experts, outputs, inputs). Values are in row
order, so each expert's matrix is a range of the file, and is read alone.

Sans-IO: arithmetic on header entries. Must not know files or values.
"""

import attrs

from ..model_config.experts import EXPERTS_MAX
from .safetensors_reader import ITEM_BYTES, TensorEntry

GATE_UP, DOWN = ".experts.gate_up_proj", ".experts.down_proj"


def separate_experts(entry: TensorEntry) -> list[TensorEntry]:
    """One entry for each matrix in a fused tensor, under the published names; else `entry` itself.

    A fused tensor of impossible shape stays as it is: no model asks for it, which is then the
    fault that is told.
    """
    if not entry.name.endswith((GATE_UP, DOWN)) or len(entry.shape) != 3:
        return [entry]
    experts, rows, columns = entry.shape
    parts = ("gate_proj", "up_proj") if entry.name.endswith(GATE_UP) else ("down_proj",)
    if experts > EXPERTS_MAX or rows % len(parts):
        return [entry]
    prefix = entry.name.rpartition(".")[0]
    shape = (rows // len(parts), columns)
    size = shape[0] * shape[1] * ITEM_BYTES[entry.dtype]
    names = [f"{prefix}.{expert}.{part}.weight" for expert in range(experts) for part in parts]
    begins = (entry.begin + size * index for index in range(len(names)))
    return [
        attrs.evolve(entry, name=name, shape=shape, begin=begin, end=begin + size)
        for name, begin in zip(names, begins, strict=True)
    ]
