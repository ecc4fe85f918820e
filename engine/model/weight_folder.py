"""A folder's weight files as one table of tensors, compared with what a model will ask for.

What is missing, of another shape or left over is refused with the file and tensor named, before a
value is read. No torch here: both executors read by it.
"""

import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType

import attrs

from ..errors import ModelFolderError
from ..model_config.config import GEMMA3_MULTIMODAL
from ..model_config.experts import EXPERTS_MAX
from ..model_config.folder import CONFIG_FILE, check_link, read_object
from .safetensors_reader import FLOATS, ITEM_BYTES, SafetensorsFile, TensorEntry, open_safetensors

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# 2 kB per tensor would be generous; models have thousands of tensors.
INDEX_BYTES_MAX = 64 * 2**20

# Shards are files of the folder itself. Links in it may lead anywhere: the hub's own cache does so.
_SHARD_NAME = re.compile(r"[^/\\]+\.safetensors")
# Tensors of checkpoints that no model takes: tables that are computed, and a head beside a tie.
_UNUSED = re.compile(r"\.rotary_emb\.inv_freq$|^lm_head\.weight$")
# Experts' matrices as one tensor of all of them.
GATE_UP, DOWN = ".experts.gate_up_proj", ".experts.down_proj"
# The text part's tensors as published, and as `transformers` saved them for a time.
_TEXT_PART = re.compile(r"^(?:language_model\.model|model\.language_model)\.")
_VISION_PART = re.compile(r"^(?:model\.)?(?:vision_tower|multi_modal_projector)\.")
# The model's name of a tensor by its name in the files; None for one that the model has no use for.
Rename = Callable[[str], str | None]


@attrs.frozen(eq=False)
class WeightFolder:
    """The open shards of a folder. `bytes_all` are those of all tensors that a model may take."""

    folder: str
    # {tensor name: its entry, and the shard that the index, or the single file itself, says it is
    # in}; no entry where the index is wrong.
    tensors: dict[str, tuple[SafetensorsFile, TensorEntry | None]]
    bytes_all: int

    def check(self, planned: Mapping[str, tuple[int, ...]]) -> None:
        """Compare with all that will be taken, by the headers alone.

        Raises `ModelFolderError`. A tensor that the model does not take is a fault, too: weights
        that have biases where the config says none would be computed otherwise than they were
        trained.
        """
        for name, shape in planned.items():
            self.find(name, shape)
        rest = [name for name in self.tensors if name not in planned and not _UNUSED.search(name)]
        if rest:
            path = str(self.tensors[rest[0]][0].path)
            reason = f"has a tensor {rest[0]!r:.200} that the model of {CONFIG_FILE} has no use for"
            raise ModelFolderError(path, reason)

    def find(self, name: str, shape: tuple[int, ...]) -> tuple[SafetensorsFile, TensorEntry]:
        """Find a float tensor of that shape. Raises `ModelFolderError`."""
        found = self.tensors.get(name)
        if found is None:
            raise ModelFolderError(self.folder, f"has no tensor {name}")
        shard, entry = found
        if entry is None:
            raise ModelFolderError(shard.path, f"has no tensor {name}, but the index says so")
        if entry.shape != shape:
            raise ModelFolderError(
                shard.path,
                f"tensor {name} has shape {entry.shape}; the config implies {shape}",
            )
        if entry.dtype not in FLOATS:
            raise ModelFolderError(shard.path, f"tensor {name} is {entry.dtype}, no float")
        return shard, entry


def same_name(name: str) -> str:
    """The `Rename` of folders that have the model's own names."""
    return name


@contextmanager
def open_weight_folder(folder: pathlib.Path, rename: Rename = same_name) -> Iterator[WeightFolder]:
    """Open all shards of `folder` and check their headers. Raises `ModelFolderError`."""
    with ExitStack() as stack:
        paths = weight_files(folder)
        for path in paths:
            check_link(path)
        files = {path: stack.enter_context(open_safetensors(path)) for path in paths}
        index = _read_index(folder)
        if index is None:
            file = files[folder / SINGLE_FILE]
            stored = dict.fromkeys(file.entries, file)
        else:
            stored = {name: files[folder / shard] for name, shard in index.items()}
        tensors = _model_tensors(stored, rename)
        bytes_all = sum(entry.end - entry.begin for _, entry in tensors.values() if entry)
        yield WeightFolder(str(folder), tensors, bytes_all)


def _model_tensors(
    stored: Mapping[str, SafetensorsFile], rename: Rename
) -> dict[str, tuple[SafetensorsFile, TensorEntry | None]]:
    """Tensors of the files, by the names of the model. Raises `ModelFolderError`."""
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
                raise ModelFolderError(file.path, f"has a tensor {part.name!r:.200} twice")
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
            folder, f"has neither {SINGLE_FILE} nor {INDEX_FILE}; only safetensors are read"
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
        raise ModelFolderError(path, "has no weight_map")
    for name in shards.values():
        plain = isinstance(name, str) and name.isprintable() and _SHARD_NAME.fullmatch(name)
        if not plain:
            raise ModelFolderError(
                path,
                f"names a shard {name!r:.80}, which is no .safetensors file of the folder",
            )
    return shards


def separate_experts(entry: TensorEntry) -> list[TensorEntry]:
    """Entries for each matrix in a fused tensor, under the published names; else `entry` itself.

    The published form has a tensor for each projection of each expert; the other one, which
    `transformers` computes with and can save, has two for a layer: `experts.gate_up_proj` (experts,
    gate's rows then up's, inputs) and `experts.down_proj` (experts, outputs, inputs). Values are in
    row order, so each expert's matrix is a range of the file, and is read alone. A fused tensor of
    impossible shape stays as it is: no model asks for it, which is then the fault that is reported.
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


def text_tensor(name: str) -> str | None:
    """The name in the text part of a tensor of the whole; None for what only pictures need."""
    if _VISION_PART.match(name):
        return None
    return _TEXT_PART.sub("model.", name).removeprefix("language_model.")


_RENAMES: MappingProxyType[str, Rename] = MappingProxyType({GEMMA3_MULTIMODAL: text_tensor})


def rename_of(architecture: str) -> Rename:
    """How the files of an architecture name what its model takes."""
    return _RENAMES.get(architecture, same_name)
