"""Which architectures there are, and how a model is made from a folder or from a seed.

A closed table: the architecture's name in `config.json` selects a function written here, and no
code is ever taken from a model folder. Must not know steps, requests or processes.
"""

import pathlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from ..model_config import LLAMA, MISTRAL, QWEN2, QWEN3, ModelConfig
from .attention import AttentionShape, KvCache
from .decoder import DecoderLayer, ForwardBatch
from .layer_weights import LayerWeights, load_decoder
from .llama import load_llama_layer
from .loader import DummyWeights, Progress, WeightSource, open_folder_weights
from .mistral import load_mistral_layer
from .qwen2 import load_qwen2_layer
from .qwen3 import load_qwen3_layer

DTYPES = MappingProxyType(
    {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
)


class Model(Protocol):
    """What the model runner needs of a loaded model of any architecture."""

    @property
    def config(self) -> ModelConfig:
        """The architecture that was loaded."""

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and cache."""

    @property
    def device(self) -> torch.device:
        """Where it is."""

    @property
    def attention_shape(self) -> AttentionShape:
        """What the cache and the attention plan are made for."""

    def forward(self, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """Compute one step's tokens into `cache`; the wanted logits, (R, V) float32."""


LAYER_LOADERS: MappingProxyType[str, Callable[[LayerWeights], DecoderLayer]] = MappingProxyType(
    {
        LLAMA: load_llama_layer,
        MISTRAL: load_mistral_layer,
        QWEN2: load_qwen2_layer,
        QWEN3: load_qwen3_layer,
    }
)


def compute_dtype(config: ModelConfig, *, bitwise: bool) -> torch.dtype:
    """float32 in bitwise mode; else what the model was trained in."""
    return torch.float32 if bitwise else DTYPES[config.dtype]


def load_model(
    folder: pathlib.Path, config: ModelConfig, *, load_format: str, bitwise: bool, positions: int,
    device: torch.device, progress: Progress,
) -> Model:  # fmt: skip
    """Load the model of `folder`, or its dummy twin from `config.json` alone ("dummy").

    Raises `ModelFolderError`. `progress` gets the fraction of the weights' bytes that are loaded.
    """
    dtype = compute_dtype(config, bitwise=bitwise)
    source: AbstractContextManager[WeightSource]
    if load_format == "dummy":
        source = nullcontext(DummyWeights(dtype, device))
    else:
        source = open_folder_weights(folder, dtype=dtype, device=device, progress=progress)
    with source as weights:
        model = load_decoder(
            config,
            weights,
            LAYER_LOADERS[config.architecture],
            positions=positions,
            bitwise=bitwise,
            dtype=dtype,
            device=device,
        )
    progress(1.0)
    return model
