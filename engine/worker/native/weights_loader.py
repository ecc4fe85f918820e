"""Loads a model's packed weights: those that its run shares, or a copy of this process's own.

Behind the weights lie the rotation tables: what no worker changes, all can share.
"""

import hashlib
import logging
import math
import pathlib
from collections.abc import Callable
from ctypes import CDLL

import attrs
import numpy

from ...config import EngineSettings
from ...kernels.binding import Bytes, take_memory
from ...kernels.layout import FLOAT_BYTES, Layout
from ...kernels.library import NativeLibrary
from ...kernels.model import Floats, fill_rotations, rotations_shape
from ...kernels.shared_memory import protect
from ...kernels.weights import DummyTensors, FolderTensors, Packer, TensorSource, plan_tensors
from ...model.weight_folder import numerics_files, open_weight_folder, rename_of
from ...model_config.config import ModelConfig
from ...place_memory import PlaceMemory
from ..executor_interface import Pause
from ..numerics import model_numerics_id
from .shared_weights import WeightsRecord, share_weights

logger = logging.getLogger(__name__)
KV_LAYOUT = "layer,block,kv head,keys: channel pair,token|values: token pair,channel"


@attrs.frozen(eq=False)
class LoadedWeights:
    """`numerics_id` is empty while the files have not been hashed."""

    memory: Bytes
    rotations: Floats
    numerics_id: str = ""


@attrs.frozen(eq=False)
class WeightsLoader:
    """Loads one model's weights, and the rotation tables behind them."""

    settings: EngineSettings
    config: ModelConfig
    library: NativeLibrary
    functions: CDLL  # `declare_functions`
    positions: int
    threads: int
    progress: Callable[[float], None]

    def load(self, place: PlaceMemory | None, pause: Pause) -> LoadedWeights:
        """The run's weights, or where they cannot be shared a copy of our own."""
        tables = math.prod(rotations_shape(self.config, self.positions)) * FLOAT_BYTES
        size = Layout.of(self.config).size + tables
        if place is not None:
            shared = share_weights(
                place.weights, self._key(), size,
                fill=self._fill_shared, pause=pause, progress=self.progress,
            )  # fmt: skip
            if shared is not None:
                if shared.record.files != self._files():
                    logger.warning(
                        "the files of %s have changed since they were loaded; what was loaded"
                        " serves on, until the server is started again",
                        self.settings.model,
                    )
                return self._loaded(shared.memory, shared.record.numerics_id)
            logger.warning(
                "the weights are a copy of this worker's own: those of the run are of"
                " other files or settings, or the kernel has no huge pages to share"
            )
        memory = take_memory(size)
        self._fill(memory)
        protect(memory)
        return self._loaded(memory)

    def numerics_id(self) -> str:
        """Numerics id of this loader's weights; hashes the files."""
        facts = {
            "executor": "native",
            "isa": self.library.isa,
            # Any change of the kernels is a new revision: whether it changes bits is not decided
            # here.
            "revision": self.library.source_hash,
            "dtype": "bfloat16",
            "kv_layout": KV_LAYOUT,
        }
        return model_numerics_id(facts, self.settings, self.config)

    def _fill_shared(self, memory: Bytes) -> WeightsRecord:
        files = self._files()
        self._fill(memory)
        return WeightsRecord(key=self._key(), numerics_id=self.numerics_id(), files=files)

    def _fill(self, memory: Bytes) -> None:
        loaded = self._loaded(memory)
        fill_rotations(self.config, loaded.rotations)
        if self.settings.load_format == "dummy":
            self._pack(DummyTensors(), memory)
            return
        rename = rename_of(self.config.architecture)
        with open_weight_folder(pathlib.Path(self.settings.model), rename) as files:
            files.check(plan_tensors(self.config))
            self._pack(FolderTensors(files, self.progress), memory)

    def _pack(self, source: TensorSource, memory: Bytes) -> None:
        layout = Layout.of(self.config)
        Packer(self.config, layout, memory, self.functions, self.threads, source).pack_all()

    def _loaded(self, memory: Bytes, identity: str = "") -> LoadedWeights:
        weights = Layout.of(self.config).size
        shape = rotations_shape(self.config, self.positions)
        return LoadedWeights(memory, memory[weights:].view(numpy.float32).reshape(shape), identity)

    def _key(self) -> str:
        """Key of all that decides about the memory's bytes, but the files."""
        facts = (
            self.settings.model, self.settings.revision, self.settings.load_format,
            self.library.isa, self.library.source_hash, self.config, self.positions,
            Layout.of(self.config),
        )  # fmt: skip
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def _files(self) -> list[tuple[str, int, int]]:
        """Which files there are now; dummy weights have none."""
        if self.settings.load_format == "dummy":
            return []
        files = numerics_files(pathlib.Path(self.settings.model))
        found = [(path.name, path.stat()) for path in files]
        return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]
