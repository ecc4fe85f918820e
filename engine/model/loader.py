"""Sources of a model's weights: a folder of safetensors shards, or a seed.

A model asks for each weight by its Hugging Face name and the shape that its config implies; a
source gives exactly that or raises (`weight_folder`).
"""

import hashlib
import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Protocol

import attrs
import torch
from torch import Tensor

from .safetensors_reader import SafetensorsFile, TensorEntry
from .weight_folder import WeightFolder

# Torch's types of floats, by the format's names.
DTYPES = MappingProxyType(
    {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
    }
)
# Standard deviation: enough to be seen in any logit.
DUMMY_BIAS = 0.1

Progress = Callable[[float], None]


class WeightSource(Protocol):
    """Gives weights by name. `progress` is called with the fraction given so far."""

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A new tensor in memory of its own. Raises `ModelFolderError` if there is none such."""


@attrs.define(eq=False)
class PlannedWeights:
    """Gives tensors without values, and remembers what was taken: all that a model asks for."""

    taken: dict[str, tuple[int, ...]] = attrs.field(factory=dict, init=False)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor on the meta device."""
        self.taken[name] = shape
        return torch.empty(shape, device="meta")


@attrs.define(eq=False)
class FolderWeights:
    """Weights of a folder in Hugging Face format, cast while they are read."""

    _files: WeightFolder
    dtype: torch.dtype
    device: torch.device
    _progress: Progress
    _bytes_taken: int = attrs.field(default=0, init=False)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`, checked against the shape that the config implies."""
        shard, entry = self._files.find(name, shape)
        weight = read_tensor(shard, entry, dtype=self.dtype, device=self.device)
        self._bytes_taken += entry.end - entry.begin
        self._progress(min(1.0, self._bytes_taken / max(1, self._files.bytes_all)))
        return weight


@attrs.define(eq=False)
class DummyWeights:
    """Random weights from the names alone: the same in every process, for any thread count.

    Norms are 1, biases small, and matrices scaled by their width. Embeddings are, too: small beside
    what layers add to them, so that a tied head does not just repeat its input.
    """

    dtype: torch.dtype
    device: torch.device

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor that `name` and `shape` determine."""
        is_bias = name.endswith(".bias")
        if len(shape) == 1 and not is_bias:
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
        generator = torch.Generator().manual_seed(seed)
        weight = torch.empty(shape).normal_(generator=generator)
        weight = weight * DUMMY_BIAS if is_bias else weight / math.sqrt(shape[-1])
        return weight.to(dtype=self.dtype, device=self.device, copy=True)


def read_tensor(
    file: SafetensorsFile, entry: TensorEntry, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A copy of one tensor of floats, in aligned memory of its own, cast to `dtype` on `device`."""
    stored = DTYPES[entry.dtype]
    target = torch.empty(entry.shape, dtype=dtype, device=device)
    if entry.end > entry.begin:
        raw = torch.frombuffer(file.values(entry), dtype=torch.uint8)
        if entry.begin % stored.itemsize:
            raw = raw.clone()  # a view as wider items needs them aligned
        target.copy_(raw.view(stored).view(entry.shape))
    return target
