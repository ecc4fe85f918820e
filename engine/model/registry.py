"""Registry of architectures; models made from a folder or from a seed.

A closed table: the architecture's name in `config.json` selects a function written here, and no
code is ever taken from a model folder. A folder is checked as a whole, and against the memory there
is, before a value is read.
"""

import math
import pathlib
from collections.abc import Callable
from contextlib import ExitStack
from types import MappingProxyType

import torch

from ..errors import ModelFolderError
from ..host import memory_bytes
from ..model_config.config import (
    GEMMA3,
    GEMMA3_MULTIMODAL,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    ModelConfig,
)
from .decoder import Decoder, DecoderLayer
from .gemma3 import load_gemma3_layer
from .layer_weights import LayerWeights, load_decoder
from .llama import load_llama_layer
from .loader import DummyWeights, FolderWeights, PlannedWeights, Progress, WeightSource
from .mistral import load_mistral_layer
from .qwen2 import load_qwen2_layer
from .qwen3 import load_qwen3_layer
from .qwen3_moe import load_qwen3_moe_layer
from .weight_folder import open_weight_folder, rename_of

META = torch.device("meta")
DTYPES = MappingProxyType(
    {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
)


LAYER_LOADERS: MappingProxyType[str, Callable[[LayerWeights], DecoderLayer]] = MappingProxyType(
    {
        LLAMA: load_llama_layer,
        MISTRAL: load_mistral_layer,
        QWEN2: load_qwen2_layer,
        QWEN3: load_qwen3_layer,
        QWEN3_MOE: load_qwen3_moe_layer,
        GEMMA3: load_gemma3_layer,
        GEMMA3_MULTIMODAL: load_gemma3_layer,
    }
)


def compute_dtype(config: ModelConfig, device: torch.device, *, bitwise: bool) -> torch.dtype:
    """float32 in bitwise mode on a CPU; else what the model was trained in."""
    return torch.float32 if bitwise and device.type == "cpu" else DTYPES[config.dtype]


def plan_weights(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a model of this config takes."""
    planned = PlannedWeights()
    load_decoder(
        config,
        planned,
        LAYER_LOADERS[config.architecture],
        positions=1,
        bitwise=False,
        dtype=torch.float32,
        device=META,
    )
    return planned.taken


def load_model(
    folder: pathlib.Path, config: ModelConfig, *, load_format: str, bitwise: bool, positions: int,
    device: torch.device, progress: Progress,
) -> Decoder:  # fmt: skip
    """Load the model of `folder`, or its dummy twin from `config.json` alone ("dummy").

    Raises `ModelFolderError`, also for weights that exceed the device's memory. `progress` gets
    the fraction of the weights' bytes that are loaded.
    """
    dtype = compute_dtype(config, device, bitwise=bitwise)
    planned = plan_weights(config)
    with ExitStack() as stack:
        source: WeightSource = DummyWeights(dtype, device)
        if load_format != "dummy":
            rename = rename_of(config.architecture)
            files = stack.enter_context(open_weight_folder(folder, rename))
            files.check(planned)
            source = FolderWeights(files, dtype, device, progress)
        needed = sum(math.prod(shape) for shape in planned.values()) * dtype.itemsize
        if needed > (there := device_memory_bytes(device)):
            raise ModelFolderError(
                folder,
                f"needs {needed / 2**30:.1f} GiB for its weights as {dtype}, and {device} has"
                f" {there / 2**30:.1f} GiB",
            )
        model = load_decoder(
            config,
            source,
            LAYER_LOADERS[config.architecture],
            positions=positions,
            bitwise=bitwise,
            dtype=dtype,
            device=device,
        )
    progress(1.0)
    return model


def device_memory_bytes(device: torch.device) -> int:
    """Memory of a device, free or not: more than that can never be had."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return memory_bytes()
