"""Where a model's weights come from: a folder of safetensors shards, or a seed.

A model asks for each weight by its Hugging Face name and the shape that its config implies; a
source gives exactly that or raises. What a folder has is compared with what a model will ask for
before a value is read: what is missing, of another shape or left over is refused with the file and
tensor named. Must not know architectures or what the weights do.
"""

import hashlib
import math
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Protocol

import attrs
import torch
from torch import Tensor

from ..errors import ModelFolderError
from ..model_config import CONFIG_FILE
from ..model_folder import read_object
from .fused_experts import separate_experts
from .safetensors_reader import SafetensorsFile, TensorEntry, open_safetensors

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# 2 kB per tensor would be generous; models have thousands of tensors.
INDEX_BYTES_MAX = 64 * 2**20

# Shards are files of the folder itself. Links in it may lead anywhere: the hub's own cache does so.
_SHARD_NAME = re.compile(r"[^/\\]+\.safetensors")
# What checkpoints carry that no model takes: tables that are computed, and a head beside a tie.
_UNUSED = re.compile(r"\.rotary_emb\.inv_freq$|^lm_head\.weight$")
# Standard deviation: enough to be seen in any logit.
DUMMY_BIAS = 0.1

Progress = Callable[[float], None]
# The model's name of a tensor by its name in the files; None for one that the model has no use for.
Rename = Callable[[str], str | None]


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

    # {tensor name: its entry, and the shard that the index, or the single file itself, says it is
    # in}; no entry where the index is wrong.
    _tensors: dict[str, tuple[SafetensorsFile, TensorEntry | None]]
    _folder: str
    dtype: torch.dtype
    device: torch.device
    _progress: Progress
    _bytes_all: int
    _bytes_taken: int = attrs.field(default=0, init=False)

    def check(self, planned: Mapping[str, tuple[int, ...]]) -> None:
        """Compare with all that will be taken, by the headers alone.

        Raises `ModelFolderError`. A tensor that nobody takes is a fault, too: weights that have
        biases where the config says none would be computed otherwise than they were trained.
        """
        for name, shape in planned.items():
            self._find(name, shape)
        rest = [name for name in self._tensors if name not in planned and not _UNUSED.search(name)]
        if rest:
            path = str(self._tensors[rest[0]][0].path)
            reason = f"has a tensor {rest[0]!r:.200} that the model of {CONFIG_FILE} has no use for"
            raise ModelFolderError(path, reason)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`, checked against the shape that the config implies."""
        shard, entry = self._find(name, shape)
        weight = shard.read(entry, dtype=self.dtype, device=self.device)
        self._bytes_taken += entry.end - entry.begin
        self._progress(min(1.0, self._bytes_taken / max(1, self._bytes_all)))
        return weight

    def _find(self, name: str, shape: tuple[int, ...]) -> tuple[SafetensorsFile, TensorEntry]:
        found = self._tensors.get(name)
        if found is None:
            raise ModelFolderError(self._folder, f"has no tensor {name}")
        shard, entry = found
        if entry is None:
            raise ModelFolderError(str(shard.path), f"has no tensor {name}, but the index says so")
        if entry.shape != shape:
            raise ModelFolderError(
                str(shard.path),
                f"tensor {name} has shape {entry.shape}; the config implies {shape}",
            )
        if not entry.dtype.is_floating_point:
            raise ModelFolderError(str(shard.path), f"tensor {name} is {entry.dtype}, no float")
        return shard, entry


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


def same_name(name: str) -> str:
    """The `Rename` of folders that have the model's own names."""
    return name


@contextmanager
def open_folder_weights(
    folder: pathlib.Path, *, dtype: torch.dtype, device: torch.device, progress: Progress,
    rename: Rename = same_name,
) -> Iterator[FolderWeights]:  # fmt: skip
    """Open all shards of `folder` and check their headers. Weights taken outlive the block.

    Raises `ModelFolderError`.
    """
    with ExitStack() as stack:
        files = {path: stack.enter_context(open_safetensors(path)) for path in weight_files(folder)}
        index = _read_index(folder)
        if index is None:
            file = files[folder / SINGLE_FILE]
            stored = dict.fromkeys(file.entries, file)
        else:
            stored = {name: files[folder / shard] for name, shard in index.items()}
        tensors = _model_tensors(stored, rename)
        bytes_all = sum(entry.end - entry.begin for _, entry in tensors.values() if entry)
        yield FolderWeights(tensors, str(folder), dtype, device, progress, bytes_all)


def _model_tensors(
    stored: Mapping[str, SafetensorsFile], rename: Rename
) -> dict[str, tuple[SafetensorsFile, TensorEntry | None]]:
    """What the files have, by the names of the model. Raises `ModelFolderError`."""
    tensors: dict[str, tuple[SafetensorsFile, TensorEntry | None]] = {}
    for stored_name, file in stored.items():
        name = rename(stored_name)
        if name is None:
            continue
        entry = file.entries.get(stored_name)
        if entry is None:
            tensors[name] = (file, None)
            continue
        for part in separate_experts(attrs.evolve(entry, name=name)):
            if part.name in tensors:
                raise ModelFolderError(str(file.path), f"has a tensor {part.name!r:.200} twice")
            tensors[part.name] = (file, part)
    return tensors


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The weight files of `folder`, sorted by name: one file, or the shards of the index.

    Raises `ModelFolderError` if there are none, or the index names files outside of the folder.
    """
    index = _read_index(folder)
    if index is not None:
        return [folder / name for name in sorted(set(index.values()))]
    if not (folder / SINGLE_FILE).exists():
        raise ModelFolderError(
            str(folder), f"has neither {SINGLE_FILE} nor {INDEX_FILE}; only safetensors are read"
        )
    return [folder / SINGLE_FILE]


def numerics_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Every file of `folder` that decides about logits: the config and the weights."""
    return [folder / CONFIG_FILE, *weight_files(folder)]


def _read_index(folder: pathlib.Path) -> dict[str, str] | None:
    path = folder / INDEX_FILE
    if (folder / SINGLE_FILE).exists() or not path.exists():
        return None
    shards = read_object(path, INDEX_BYTES_MAX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelFolderError(str(path), "has no weight_map")
    for name in shards.values():
        plain = isinstance(name, str) and name.isprintable() and _SHARD_NAME.fullmatch(name)
        if not plain:
            raise ModelFolderError(
                str(path),
                f"names a shard {name!r:.80}, which is no .safetensors file of the folder",
            )
    return shards
